"""TLS with the servers of a store: whom we believe, and who we are."""

import os
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from base.protocol.errors import StoreRefused

# What a server says of our certificate (RFC 8446, section 6.2), as OpenSSL names it.  It has not read the request then.
_ABOUT_OURS: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
_EXPIRED: Final = 10  # X509_V_ERR_CERT_HAS_EXPIRED


@dataclass(frozen=True)
class Tls:
    """Certificates and a key as PEM, each empty if there is none.

    - ``ca``: who has signed the server's certificate; the machine's authorities if empty.
    - ``cert``, ``key``: ours.
    - ``server_name``: whom the server's certificate names, if that is not the host of its URL.
    - ``source``: where ours is from, for a message.
    """

    ca: bytes = b""
    cert: bytes = b""
    key: bytes = b""
    server_name: str = ""
    source: str = ""


def refusal(error: Exception, server: str, trust: Callable[[], Tls]) -> StoreRefused | None:
    """The error of a connection, if it says that one side does not believe the other; None if it is another.

    ``trust`` is asked who we are, for the message.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = (
            "renew it there, or correct this machine's clock"
            if error.verify_code == _EXPIRED
            else "name the authority that has signed it, or the server as its certificate does"
        )
        return StoreRefused(f"the certificate of {server} is not believed: {error.verify_message}; {remedy}")
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if "ALERT" in reason and any(word in reason for word in _ABOUT_OURS):
        alert = reason.partition("ALERT_")[2].lower().replace("_", " ")
        return StoreRefused(f"{server} refuses this node's certificate: {alert}; {_remedy(trust())}")
    return None


class Certificate(NamedTuple):
    """``name`` is the subject's common name, empty if it has none; ``until`` is in seconds since 1970."""

    name: str
    until: float


def certificate(pem: bytes) -> Certificate | None:
    """The first certificate of a PEM file; None if there is none that can be read.  Nothing of it is believed."""
    try:
        with _as_file(pem) as path:
            # What tests of the standard library read one with, and all that it has for one that is nobody's peer's.
            found = ssl._ssl._test_decode_cert(path)  # type: ignore[attr-defined]  # noqa: SLF001
        names = (value for one in found["subject"] for key, value in one if key == "commonName")
        return Certificate(next(names, ""), float(ssl.cert_time_to_seconds(found["notAfter"])))
    except (ssl.SSLError, ValueError):
        return None


def _remedy(ours: Tls) -> str:
    """In words, what may be wrong with our certificate.  A server in Go calls one that has ended just "bad"."""
    if not ours.cert:
        return f"{ours.source} names none; name one, and its key"
    found = certificate(ours.cert)
    if found and found.until < time.time():
        ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.until))
        return f"that of {ours.source} ended at {ended}; renew it"
    return f"that of {ours.source} is not believed there; name one that an authority of the server has signed"


def context(trusted: Tls) -> ssl.SSLContext:
    """What a connection is secured with.  Raises StoreRefused."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # guard below: authority = made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    # guard below: host = made.check_hostname = False
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if trusted.ca:
            made.load_verify_locations(cadata=trusted.ca.decode("ascii"))
        else:
            made.load_default_certs()
    except (ssl.SSLError, ValueError) as e:
        raise StoreRefused(f"{trusted.source}: its certificate authority is no PEM ({e}); correct it") from e
    if trusted.cert:
        try:
            with _as_file(trusted.cert) as cert, _as_file(trusted.key) as key:
                # Without a password OpenSSL would ask for one at the terminal.
                made.load_cert_chain(cert, key, password="")
        except (ssl.SSLError, ValueError) as e:
            why = getattr(e, "reason", None) or e
            raise StoreRefused(
                f"{trusted.source}: its client certificate and key cannot be used ({why}); they must be PEM, without "
                "a password, and belong together"
            ) from e
    return made


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path to these bytes, which OpenSSL wants; they are in memory only."""
    fd = os.memfd_create("hpn", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
