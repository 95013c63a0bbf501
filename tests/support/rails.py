"""Networks with rails, and ADDs of attachments on one rail."""

from pathlib import Path
from typing import Any

from support.ipam_calls import Net

A, B = {"master": "eth1", "subnet": "10.1.0.0/24"}, {"master": "eth2", "subnet": "10.2.0.0/24"}


def network(state: Path, *rails: dict[str, Any], **ipam: Any) -> Net:
    """Return a network with these rails, by default with two."""
    return Net(state, {"rails": list(rails or (A, B)), **ipam})


def on(net: Net, master: str, cid: str = "c", ifname: str | None = None, args: str = "") -> tuple[str, ...]:
    """Return the addresses of an ADD over this master; the master's name is in the interface's name."""
    return net.add(cid, ifname or f"net-{master}", args, master=master)


def refused(net: Net, master: str, cid: str = "c", ifname: str | None = None, args: str = "") -> dict[str, Any]:
    """Return the error of such an ADD."""
    return net.call("ADD", cid, ifname or f"net-{master}", args, master=master)


def few(rail: dict[str, Any], first: int, last: int, **more: Any) -> dict[str, Any]:
    """Return the rail with only these host numbers."""
    base = rail["subnet"].rpartition(".")[0]
    return rail | {"rangeStart": f"{base}.{first}", "rangeEnd": f"{base}.{last}", **more}
