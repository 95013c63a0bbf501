"""Prepared claims with one macvlan for each of a pod's rails, and the requests of a conflist in chain mode."""

import json
import uuid
from collections.abc import Sequence
from typing import Any

from support.topology import Host, Pod, ip

from base.protocol.spec import Request
from base.state import claims
from base.state.claims import Claim, ClaimedDevice

RAILS = ("rail0", "rail1")
PREVIOUS: dict[str, Any] = {
    "cniVersion": "1.1.0",
    "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/pod", "theirs": 1}],
    "ips": [{"interface": 0, "address": "10.0.0.5/24"}],
    "dns": {},
    "ofAnotherVersion": None,
}


def add_rails() -> None:
    """Add the second master; the fixture ``host`` has the first."""
    for name in RAILS[1:]:
        ip("link", "add", name, "type", "veth", "peer", "name", f"{name}-far")
        ip("link", "set", name, "up")
        ip("link", "set", f"{name}-far", "up")


def device(host: Host, number: int, **keys: Any) -> ClaimedDevice:
    """Return the device of a rail, attached as hpn<number>, with one address for each family."""
    pool = {
        "type": "hpn-ipam",
        "ranges": [
            [{"subnet": f"10.56.{number}.0/30"}],
            [{"subnet": f"fd00:{56 + number}::/126", "rangeEnd": f"fd00:{56 + number}::2"}],
        ],
    }
    config = {"name": f"net{number}", "ipam": pool} | keys.pop("config", {})
    members = {
        "request": f"r{number}", "pool": "node", "device": f"rail{number}", "share": "", "id": RAILS[number],
        "kind": "master", "resource": f"example.com/rail{number}", "attach": "chain", "interface": f"hpn{number}",
        "config": {k: v for k, v in config.items() if v is not ...},
    }  # fmt: skip
    return ClaimedDevice(**{**members, **keys})


def prepared(host: Host, pod: Pod, devices: Sequence[ClaimedDevice] = (), name: str = "rails") -> Claim:
    """Write a claim of the pod's to disk, as hpn node does."""
    found = tuple(devices) or tuple(device(host, number) for number in range(len(RAILS)))
    claim = Claim(str(uuid.uuid4()), "default", name, (uid(pod),), found)
    claims.save(claim)
    return claim


def uid(pod: Pod) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, pod.name))


def conf(host: Host, **keys: Any) -> dict[str, Any]:
    """Return the configuration in the cluster's conflist."""
    whole = {"cniVersion": "1.1.0", "name": "cluster", "type": "hpn", "claims": True}
    return {k: v for k, v in (whole | {"prevResult": PREVIOUS} | keys).items() if v is not ...}


def variables(pod: Pod) -> dict[str, str]:
    named = f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod.name};K8S_POD_UID={uid(pod)}"
    return {"CNI_IFNAME": "eth0", "CNI_ARGS": f"IgnoreUnknown=1;MAC=02:00:00:00:00:07;{named}"}


def request(host: Host, command: str, pod: Pod | None, **keys: Any) -> Request:
    return host.request(command, pod, conf(host, **keys), **(variables(pod) if pod else {}))


def gc(host: Host, *pods: Pod) -> dict[str, Any]:
    """Return the configuration of a GC that lists these pods."""
    listed = [{"containerID": pod.name, "ifname": "eth0"} for pod in pods]
    return conf(host, prevResult=..., **{"cni.dev/valid-attachments": listed})


def shown(reply: str) -> Any:
    return json.loads(reply)
