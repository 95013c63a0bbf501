"""Networks that list two rails, rail0 and rail1 of chained.add_rails, for one ADD."""

from typing import Any

from support.topology import Host, Pod

RAILS = ["rail0", "rail1"]
SUBNETS = [
    {"master": rail, "subnet": f"10.{56 + i}.0.0/24", "ranges": [[{"subnet": f"fd00:{56 + i}::/64"}]]}
    for i, rail in enumerate(RAILS)
]
ATTACHED = {f"hpn{i}": {f"10.{56 + i}.0.2/24", f"fd00:{56 + i}::2/64"} for i in range(2)}


def conf(host: Host, **keys: Any) -> dict[str, Any]:
    ipam = {"type": "hpn-ipam", "rails": SUBNETS, "align": True} | keys.pop("ipam", {})
    return host.conf(**({"master": ..., "rails": RAILS, "ipam": ipam} | keys))


def addresses(pod: Pod) -> dict[str, set[str]]:
    return {name: pod.addresses(name) for name in pod.links()}


def gc(host: Host, *valid: Pod, **keys: Any) -> dict[str, Any]:
    return conf(host, **keys) | {
        "cni.dev/valid-attachments": [{"containerID": pod.name, "ifname": "hpn0"} for pod in valid]
    }
