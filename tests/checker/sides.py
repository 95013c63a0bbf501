"""The two stores of the checker: how their servers are killed, and how a node dies there."""

import json
import random
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from checker.moves import moves
from support.shared_stores import Api, Etcds

from ipam.cluster import BLOCK
from ipam.cluster.backends import kv
from ipam.cluster.backends.etcd import Etcd
from ipam.cluster.backends.kv import Gateway, Settings
from ipam.cluster.rules.documents import Block

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
BLOCKS = "/apis/hpn-cni.io/v1/hpnblocks"
_CONFLICT, _ABSENT = 409, 404
# Seconds that servers may take to start on a busy machine.
_PATIENCE = 300


@dataclass
class ThreeMembers:
    """An etcd with three members.  At most one of them is killed at a time."""

    etcd: Etcds
    down: int | None = None
    urls: Sequence[str] = field(init=False)
    # A node that comes back allocates addresses before it has reported itself alive.  Until then only the hour protects
    # its blocks, so a larger jump of the clock would end that protection, and nothing is promised.
    jumps: Sequence[int] = (60, -60)

    def __post_init__(self) -> None:
        self.urls = self.etcd.urls

    def settings(self, proxies: Sequence[str], _folder: Path) -> Mapping[str, Any]:
        return {"etcd": {"endpoints": list(proxies)}}

    def born(self, node: str) -> None:
        """Do nothing: the node announces itself."""

    def dead(self, node: str) -> None:
        """End the node's lease."""
        last_seen = json.dumps({"node": node, "heard": 1}).encode()
        self._change([kv.delete(f"/hpn/alive/{node}"), kv.put(f"/hpn/nodes/{node}", last_seen)])

    def replaced(self, _node: str) -> bool:
        return False

    def harm(self, draw: random.Random) -> bool:
        if self.down is None:
            self.down = self.etcd.leader() if draw.random() < 0.7 else draw.randrange(len(self.urls))
            self.etcd.members[self.down].kill()
            return True
        self.etcd.members[self.down].start(wait=False)
        self.down = None
        return False

    def heal(self) -> None:
        if self.down is not None:
            self.etcd.members[self.down].start()
            self.down = None
        self.etcd.leader()

    def blocks(self) -> dict[int, str]:
        gateway = Gateway(Settings(tuple(self.urls)), is_patient=True)
        try:
            found = [Block.of(one) for one in Etcd(gateway, "/hpn").listed(BLOCK)]
        finally:
            gateway.close()
        return {block.index: block.node for block in found if block.network == "net"}

    def moves(self) -> dict[str, int]:
        return moves(self.urls[self.etcd.leader()], "/hpn/block/net.", lambda body: str(body["node"]))

    def _change(self, requests: list[dict[str, Any]]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            for number in range(len(self.urls)):
                if self.etcd.call(number, "/v3/kv/txn", {"success": requests}).get("succeeded"):
                    return
        pytest.fail("etcd takes no change")


@dataclass
class ApiServer:
    """An API server that is killed and restarted.

    ``authority`` signed the proxy's certificate.  ``up`` is the time of the server's first answer since its latest
    start.
    """

    api: Api
    authority: bytes
    up: float | None = None
    urls: Sequence[str] = field(init=False)
    # All live nodes have a Node object and a Lease.
    jumps: Sequence[int] = (60, 7200, -7200)

    def __post_init__(self) -> None:
        self.urls = [self.api.url]

    def settings(self, proxies: Sequence[str], folder: Path) -> Mapping[str, Any]:
        file = folder / "kubeconfig"
        file.write_text(json.dumps(self.api.kubeconfig("root", proxies[0], self.authority)))
        file.chmod(0o600)
        return {"kubernetes": {"kubeconfig": str(file)}}

    def born(self, node: str) -> None:
        """Create a Node object and a Lease that never ends: the clock runs too fast to renew one."""
        self._change("POST", NODES, {"metadata": {"name": node}})
        lease = {"holderIdentity": node, "renewTime": "2099-01-01T00:00:00.000000Z", "leaseDurationSeconds": 40}
        self._change("POST", LEASES, {"metadata": {"name": node}, "spec": lease})

    def dead(self, node: str) -> None:
        self._change("DELETE", f"{NODES}/{node}")
        self._change("DELETE", f"{LEASES}/{node}")

    def replaced(self, node: str) -> bool:
        """Delete the Node object and create another, as kubelet does."""
        self._change("DELETE", f"{NODES}/{node}")
        self._change("POST", NODES, {"metadata": {"name": node}})
        return True

    def harm(self, draw: random.Random) -> bool:
        """Kill the server once it has served for some seconds.  It takes some seconds to start."""
        if self.up is None and self._answers():
            self.up = time.monotonic()
        # time: how long a side is up at least, drawn
        if self.up is None or time.monotonic() - self.up < draw.uniform(5, 30):
            return False
        self.up = None
        self.api.server.kill()
        self.api.server.start(wait=False)
        return True

    def heal(self) -> None:
        self._change("GET", BLOCKS)

    def blocks(self) -> dict[int, str]:
        found = self._change("GET", BLOCKS)
        specs = [one["spec"] for one in found["items"]]
        return {spec["index"]: spec["node"] for spec in specs if spec["network"] == "net"}

    def moves(self) -> dict[str, int]:
        keys = "/registry/hpn-cni.io/hpnblocks/net."
        return moves(self.api.etcd.urls[0], keys, lambda body: str(body["spec"]["node"]))

    def _answers(self) -> bool:
        try:
            return bool(self._asked("GET", BLOCKS, None, 1))
        except urllib.error.HTTPError as e:
            e.close()
        except OSError:
            pass
        return False

    def _asked(self, method: str, path: str, body: Mapping[str, Any] | None, patience: float) -> dict[str, Any]:
        """Send one request.  Raises OSError, urllib.error.HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": "Bearer root", "Content-Type": "application/json"}
        asked = urllib.request.Request(self.api.url + path, data, headers, method=method)
        trusting = ssl._create_unverified_context()
        with urllib.request.urlopen(asked, context=trusting, timeout=patience) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def _change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Repeat the request until it succeeds, and return the answer."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            try:
                return self._asked(method, path, body, 10)
            except urllib.error.HTTPError as e:
                with e:
                    if e.code in (_CONFLICT, _ABSENT):  # an earlier attempt succeeded
                        return {}
            except OSError:
                pass
            # time: the pace of a loop with a deadline
            time.sleep(0.1)
        pytest.fail(f"the API server does not answer {method} {path}")
