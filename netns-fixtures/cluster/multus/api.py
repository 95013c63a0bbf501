"""The API server, by a kubeconfig."""

import base64
import http.client
import json
import ssl
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]
# Multus's number of tries for a pod while the server is not ready, and the pause between them.
_TRIES = 10
_PAUSE = 0.25
_RETRIED = (http.client.INTERNAL_SERVER_ERROR, http.client.SERVICE_UNAVAILABLE)


class ApiFailed(Exception):
    """The server did not answer, or refused."""


class NotFound(ApiFailed):
    """The object does not exist."""


class Server:
    """One connection, made at the first request and kept until ``close``."""

    def __init__(self, kubeconfig: Path) -> None:
        """Open by a kubeconfig, which must be JSON.  Paths in it are absolute."""
        conf = json.loads(kubeconfig.read_text())
        context = _named(conf, "context", conf["current-context"])
        cluster, user = _named(conf, "cluster", context["cluster"]), _named(conf, "user", context["user"])
        url = urlsplit(cluster["server"])
        self._headers = {"Accept": "application/json"}
        if token := user.get("token"):
            self._headers["Authorization"] = f"Bearer {token}"
        host, port = url.hostname or "", url.port
        if url.scheme == "https":
            # time: multus asks again
            self._connection = http.client.HTTPSConnection(host, port, context=_tls(cluster, user), timeout=10)
        else:
            # time: multus asks again
            self._connection = http.client.HTTPConnection(host, port, timeout=10)

    def get(self, path: str) -> Json:
        """An object.  Raises NotFound, ApiFailed."""
        return self._ask("GET", path, None)

    def patch(self, path: str, change: Json) -> Json:
        """Merge a change into an object, which must have the change's ``metadata.uid``.  Raises as get."""
        return self._ask("PATCH", path, json.dumps(change))

    def close(self) -> None:
        """Close the connection.  The next request opens another."""
        self._connection.close()

    def _ask(self, method: str, path: str, body: str | None) -> Json:
        headers = self._headers | ({"Content-Type": "application/merge-patch+json"} if body else {})
        failure = ""
        for attempt in range(_TRIES):
            if attempt:
                # time: the pace at which it asks again
                time.sleep(_PAUSE)
            try:
                self._connection.request(method, path, body, headers)
                answer = self._connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as e:
                self._connection.close()
                failure = f"{e!r}"
                continue
            if answer.status == http.client.OK:
                return dict(json.loads(text))
            failure = f"{answer.status} {text.decode(errors='replace')}"
            if answer.status == http.client.NOT_FOUND:
                raise NotFound(f"{method} {path}: {failure}")
            if answer.status not in _RETRIED:
                break
        raise ApiFailed(f"{method} {path}: {failure}")


def _named(conf: Json, kind: str, name: str) -> Json:
    return dict(next(each[kind] for each in conf[f"{kind}s"] if each["name"] == name))


def _tls(cluster: Json, user: Json) -> ssl.SSLContext:
    """The CA for the server's certificate, and our own certificate."""
    data = cluster.get("certificate-authority-data")
    context = ssl.create_default_context(
        cafile=cluster.get("certificate-authority"), cadata=base64.b64decode(data).decode() if data else None
    )
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate := user.get("client-certificate"):
        context.load_cert_chain(certificate, user["client-key"])
    return context
