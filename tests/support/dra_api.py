"""An API server that stores ResourceSlices, and has one ResourceClaim: routes of support/tls_server.py."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.tls_server import Asked, Told, api_server

_API = "/apis/resource.k8s.io/v1"


class DraApi:
    """``claim`` is the only claim; ``slices`` are the stored slices by name, ``statuses`` the applied statuses.

    It answers while ``is_ready``."""

    def __init__(self) -> None:
        self.claim: dict[str, Any] = {}
        self.slices = dict[str, dict[str, Any]]()
        self.statuses = list[dict[str, Any]]()
        self.is_ready = threading.Event()
        self.is_ready.set()
        self._version = 0

    def devices(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Each device of the slices by its deviceID: its pool, and itself."""
        return {
            one["attributes"]["k8s.cni.cncf.io/deviceID"]["string"]: (made["spec"]["pool"]["name"], one)
            for made in self.slices.values()
            for one in made["spec"].get("devices", ())
        }

    def route(self, asked: Asked) -> Told:
        self.is_ready.wait(120)
        path, query = urlsplit(asked.path).path, parse_qs(urlsplit(asked.path).query)
        if path.startswith("/api/v1/nodes/"):
            return Told(200, {"metadata": {"name": path.rpartition("/")[2], "uid": "node-uid"}})
        if "/resourceclaims/" in path:
            if asked.method == "PATCH":
                self.statuses.append(asked.body)
            return Told(200, self.claim)
        assert path.startswith(f"{_API}/resourceslices"), asked.path
        name = path.removeprefix(f"{_API}/resourceslices").lstrip("/")
        if asked.method == "GET" and name:
            return Told(200, self.slices[name])
        if asked.method == "GET":
            return Told(200, {"metadata": {"resourceVersion": "1"}, "items": list(self.slices.values())})
        if asked.method == "DELETE":
            self.slices.pop(name, None)
            return Told(200, {"metadata": {}})
        self._version += 1
        about = {"uid": f"u-{self._version}", **asked.body["metadata"], "resourceVersion": f"{self._version}"}
        made = {**json.loads(json.dumps(asked.body)), "metadata": about}
        if "dryRun" not in query:
            self.slices[about["name"]] = made
        return Told(200, made)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[DraApi, Path]]:
    """Serve one in this folder; yield it, and a kubeconfig with the name of node1."""
    made = DraApi()
    with api_server(folder) as (server, kubeconfig):
        server.route = made.route
        document = json.loads(kubeconfig.read_text())
        document["users"][0]["name"] = document["contexts"][0]["context"]["user"] = "system:node:node1"
        kubeconfig.write_text(json.dumps(document))
        yield made, kubeconfig
