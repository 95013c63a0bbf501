"""Open vSwitch's datapath in the kernel, with ports, as ovs-vswitchd makes it (include/uapi/linux/openvswitch.h)."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST, genlmsg
from pyroute2.netlink.generic import GenericNetlinkSocket
from support.topology import ip

NEW, DELETE = 1, 2  # OVS_DP_CMD_NEW, OVS_DP_CMD_DEL; OVS_VPORT_CMD_NEW
DATAPATH = "ovs-system"
_HEADER = (("cmd", "B"), ("version", "B"), ("reserved", "H"), ("dp_ifindex", "i"))


class _Datapath(genlmsg):  # type: ignore[misc]
    fields = _HEADER
    nla_map = (("UNSPEC", "none"), ("NAME", "asciiz"), ("UPCALL_PID", "uint32"))


class _Port(genlmsg):  # type: ignore[misc]
    fields = _HEADER
    nla_map = (
        ("UNSPEC", "none"), ("PORT_NO", "uint32"), ("TYPE", "uint32"), ("NAME", "asciiz"), ("OPTIONS", "none"),
        ("UPCALL_PID", "uint32"),
    )  # fmt: skip


@contextmanager
def ports(*names: str) -> Iterator[None]:
    """Make these interfaces ports of the datapath, which forwards nothing: it has no flows."""
    subprocess.run(["modprobe", "openvswitch"], check=True)
    _ask("ovs_datapath", _Datapath, NEW, 0, NAME=DATAPATH, UPCALL_PID=0)
    try:
        (link,) = ip("link", "show", "dev", DATAPATH)
        for name in names:
            _ask("ovs_vport", _Port, NEW, link["ifindex"], TYPE=1, NAME=name, UPCALL_PID=0)  # OVS_VPORT_TYPE_NETDEV
        yield
    finally:
        _ask("ovs_datapath", _Datapath, DELETE, 0, NAME=DATAPATH)


def _ask(family: str, form: type[genlmsg], command: int, index: int, **attributes: str | int) -> None:
    """Raises NetlinkError."""
    with GenericNetlinkSocket() as sock:
        sock.bind(family, form)
        message = form()
        message["cmd"], message["version"], message["dp_ifindex"] = command, 1, index
        message["attrs"] = list(attributes.items())
        list(sock.nlm_request(message, msg_type=sock.prid, msg_flags=NLM_F_REQUEST | NLM_F_ACK))
