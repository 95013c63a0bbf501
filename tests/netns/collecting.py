"""GC as a runtime calls it."""

from typing import Any

from topology import Host, Pod

LISTS = ("cni.dev/valid-attachments", "cni.dev/attachments")


def listed(*pods: Pod, ifname: str = "hpn0") -> list[dict[str, str]]:
    return [{"containerID": pod.name, "ifname": ifname} for pod in pods]


def collect(host: Host, conf: dict[str, Any] | None = None, **keys: Any) -> None:
    """GC, which prints nothing when it succeeds."""
    reply = host.call("GC", None, (conf or host.conf()) | keys, CNI_IFNAME="")
    assert (reply.exit_code, reply.stdout) == (0, ""), reply
