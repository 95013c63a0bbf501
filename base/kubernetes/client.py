"""Requests to the API server of a kubeconfig, and the errors of its answers.

Every request may be sent twice, because each change compares first.  POST fails if the name exists.  PUT and DELETE
fail if the object changed after the read (kubernetes.io, "Kubernetes API Concepts").
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from base.kubernetes import credentials
from base.kubernetes.http import Answer, Http
from base.protocol.errors import BackendRefused
from base.protocol.spec import Json

T = TypeVar("T")

# Objects per page: some hundred kilobytes.
PAGE: Final = 500


class Client:
    """The API server of a kubeconfig.

    - ``why``: returns the reason of a refusal with its remedy, by the answer and the kind; empty for the server's
      reason.
    - ``is_patient``, ``patience``: those of ``Http``.
    - ``clock``: the server's, at its last answer, in seconds since 1970; 0 before.

    Every request raises Unreachable, BackendRefused and, for a kubeconfig that others can write, InvalidConfig.
    """

    def __init__(
        self,
        kubeconfig: credentials.Kubeconfig,
        why: Callable[[Answer, str], str] = lambda *_: "",
        *,
        is_patient: bool = False,
        patience: float = 0.0,
    ) -> None:
        self._why, self._is_patient, self._patience, self.clock = why, is_patient, patience, 0.0
        self._open(kubeconfig)

    def _open(self, whom: credentials.Kubeconfig) -> None:
        self._kubeconfig = whom
        self._http = Http([whom.server], whom.tls, whom.headers, is_patient=self._is_patient, patience=self._patience)

    @property
    def server(self) -> str:
        return self._http.server

    def close(self) -> None:
        self._http.close()

    def send(self, method: str, path: str, body: Json | None = None, accept: str = "application/json") -> Answer:
        """Return the answer, of any status; with the credential that the kubeconfig holds now.

        ``patience`` is for all of it: a credential that the server refuses is sent once more, over a new connection.
        """
        if not self._kubeconfig.is_current():
            self.close()
            self._open(self._kubeconfig.again())
        self._http.begin()
        answer = self._http.ask(method, path, body, is_safe=True, accept=accept)
        if answer.status == 401:  # this connection's certificate may be an old one
            self.close()
            answer = self._http.ask(method, path, body, is_safe=True, accept=accept)
        self.clock = answer.at or self.clock
        return answer

    def listed(self, path: str, unknown: str = "", query: str = "") -> Iterator[Json]:
        """Yield the objects of a list of any kind, page by page (kubernetes.io, "Kubernetes API Concepts", "Retrieving
        large results sets in chunks").

        ``unknown``: the reason for an error if the API server does not know the kind; if empty, there are no objects
        then.  ``query``: a selector, as "fieldSelector=spec.driver%3Dx&".
        """
        what, follow = f"{self.server} does not list {path.rpartition('/')[2]}", ""
        while True:
            answer = self.send("GET", f"{path}?{query}limit={PAGE}{follow}")
            if answer.status == 404 and not unknown:
                return
            if answer.status != 200:
                raise BackendRefused(f"{what}: {unknown if answer.status == 404 else answer.reason}")
            page = answer.json()
            items, about = page.get("items"), page.get("metadata")
            if not isinstance(items, list | None) or not isinstance(about, dict | None):
                raise BackendRefused(
                    f"{what}: its answer is not a list of objects; correct the server in the kubeconfig"
                )
            yield from (one for one in items or () if isinstance(one, dict))
            before, more = follow, (about or {}).get("continue")
            if not more:
                return
            follow = f"&continue={quote(str(more), safe='')}"
            if follow == before:  # it would be asked without end
                raise BackendRefused(f"{what}: it names the same next page again; correct the server in the kubeconfig")

    def get(self, path: str, what: str, read: Callable[[Json], T]) -> T | None:
        """Return what ``read`` finds in the object at the path; None if the object does not exist."""
        answer = self.send("GET", path)
        return None if answer.is_absent else self.read(answer, "get", what, read)

    def delete(self, path: str, what: str, uid: str, version: str) -> bool:
        """Delete the object if it is that version; return False if it changed, or is gone by another's request."""
        preconditions = {"uid": uid, "resourceVersion": version}
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        answer = self.send("DELETE", path, options)
        if answer.is_absent:  # an earlier sending removed it
            return answer.again
        return answer.status != 409 and bool(self.good(answer, "delete", what))

    def read(self, answer: Answer, verb: str, what: str, read: Callable[[Json], T]) -> T:
        """Return what ``read`` finds in a successful answer; it raises ValueError for one that no API server gives."""
        found = self.good(answer, verb, what)
        try:
            return read(found)
        except ValueError as e:
            raise self._strange(verb, what, f"{e}") from e

    def good(self, answer: Answer, verb: str, what: str) -> Json:
        """Return the object of a successful answer.  Raises BackendRefused for any other, which names the request: to
        ``verb`` objects of the kind ``what``."""
        if not 200 <= answer.status < 300:
            why = self._why(answer, what) or self._unknown(answer) or answer.reason
            raise BackendRefused(f"the API server {self.server} refuses to {verb} {what}: {why}")
        if found := answer.json():
            return found
        raise self._strange(verb, what, f"there is no object: {answer.reason}")

    def _strange(self, verb: str, what: str, why: str) -> BackendRefused:
        """Return the error for an answer that no API server gives, with the reason."""
        return BackendRefused(
            f"what answers at {self.server} is not an API server: the request was to {verb} {what}, and in its answer "
            f"{why}; correct the server in {self._kubeconfig.path}"
        )

    def _unknown(self, answer: Answer) -> str:
        """Return why the server knows no user of this credential; empty if it does."""
        if answer.status != 401:
            return ""
        ended = self._kubeconfig.ended()
        of = f"it does not know this node's credential ({self._kubeconfig.path})"
        if ended and ended < time.time():
            return f"{of}, which expired at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(ended))}; renew it"
        return f"{of}: {answer.reason}; name a known one"


def of_operator(kubeconfig: Path) -> Client:
    """Return the API server of a kubeconfig that an operator names, for a command with many requests.

    Raises BackendRefused, InvalidConfig.
    """
    return Client(credentials.read(f"{kubeconfig.absolute()}", as_operator=True), is_patient=True)
