"""TLS with a backend's servers: certificate checks, and this node's own certificate."""

import os
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from base.protocol.errors import BackendRefused

# Alerts about this node's certificate (RFC 8446, section 6.2), by OpenSSL's names.  The server then read no request.
_ABOUT_OURS: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
_EXPIRED: Final = 10  # X509_V_ERR_CERT_HAS_EXPIRED


@dataclass(frozen=True)
class Tls:
    """Certificates and a key as PEM, each empty if absent.

    - ``ca``: the authority that signed the server's certificate; if empty, the machine's authorities.
    - ``cert``, ``key``: this node's.
    - ``server_name``: the name in the server's certificate, if it is not the host of the URL.
    - ``source``: the file of this node's certificate, for messages.
    """

    ca: bytes = b""
    cert: bytes = b""
    key: bytes = b""
    server_name: str = ""
    source: str = ""


def refusal(error: Exception, server: str, trust: Callable[[], Tls]) -> BackendRefused | None:
    """Return the error of a connection, if one side rejected the other's certificate; None otherwise.

    ``trust`` returns this node's certificate, for the message.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = (
            "renew it there, or correct this machine's clock"
            if error.verify_code == _EXPIRED
            else "name the authority that signed it, or the server by a name in its certificate"
        )
        return BackendRefused(f"the certificate of {server} is not trusted: {error.verify_message}; {remedy}")
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if "ALERT" in reason and any(word in reason for word in _ABOUT_OURS):
        alert = reason.partition("ALERT_")[2].lower().replace("_", " ")
        return BackendRefused(f"{server} refuses this node's certificate: {alert}; {_remedy(trust())}")
    return None


class Certificate(NamedTuple):
    """``name``: the subject's common name, or empty.  ``until``: the end of validity, in seconds since 1970."""

    name: str
    until: float


def certificate(pem: bytes) -> Certificate | None:
    """Return the first certificate of a PEM file; None if none is readable.  It is not verified."""
    if not pem:  # the parser would leave its error to the next read of a connection
        return None
    try:
        with _as_file(pem) as path:
            # The standard library's only parser of a certificate that no peer presented; its own tests use it.
            found = ssl._ssl._test_decode_cert(path)  # type: ignore[attr-defined]  # noqa: SLF001
        names = (value for one in found["subject"] for key, value in one if key == "commonName")
        return Certificate(next(names, ""), float(ssl.cert_time_to_seconds(found["notAfter"])))
    except (ssl.SSLError, ValueError):
        return None


def _remedy(ours: Tls) -> str:
    """Return the remedy for this node's certificate.  A server in Go reports an expired one as just "bad"."""
    if not ours.cert:
        return f"{ours.source} names no certificate; name one, and its key"
    found = certificate(ours.cert)
    if found and found.until < time.time():
        ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.until))
        return f"that of {ours.source} expired at {ended}; renew it"
    return f"that of {ours.source} is not trusted there; name one signed by an authority of the server"


def context(trusted: Tls) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if trusted.ca:
            made.load_verify_locations(cadata=trusted.ca.decode("ascii"))
        else:
            made.load_default_certs()
    except (ssl.SSLError, ValueError) as e:
        raise BackendRefused(f"{trusted.source}: its certificate authority is not PEM ({e}); correct it") from e
    if trusted.cert:
        try:
            with _as_file(trusted.cert) as cert, _as_file(trusted.key) as key:
                # Without this argument, OpenSSL prompts for a password at the terminal.
                made.load_cert_chain(cert, key, password="")
        except (ssl.SSLError, ValueError) as e:
            why = getattr(e, "reason", None) or e
            raise BackendRefused(
                f"{trusted.source}: its client certificate and key cannot be used ({why}); they must be PEM, without "
                "a password, and belong together"
            ) from e
    return made


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yield a path to these bytes in memory, because OpenSSL reads files only."""
    fd = os.memfd_create("hpn")
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
