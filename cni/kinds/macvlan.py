"""Kind macvlan: a link with its own MAC over the master (drivers/net/macvlan.c)."""

import os
import secrets
from typing import TYPE_CHECKING, Final, cast

from base.kernel.links import Link
from base.kernel.netlink import attr, attributes, read_u32, u32
from base.kernel.rtnl import Rtnl
from base.protocol.errors import KernelRefused
from base.protocol.spec import Json
from base.state.pod import Pod
from cni.kinds import child
from cni.kinds.child import check, claiming, describe, detach, interfaces, stands, status

if TYPE_CHECKING:
    from cni.models import NetConf
    from cni.models.macvlan import Macvlan

__all__ = ["attach", "check", "claiming", "describe", "detach", "interfaces", "plan", "stands", "status"]

IFLA_MACVLAN_MODE, IFLA_MACVLAN_BC_QUEUE_LEN = 1, 7
MODES: Final = {"private": 1, "vepa": 2, "bridge": 4, "passthru": 8}


def plan(conf: "NetConf", host: Rtnl, pod: Pod) -> Json:
    """Kind.plan: choose a MAC if none is requested, so that it identifies our link in the journal beforehand."""
    wanted = cast("Macvlan", conf.attach)  # kinds.KINDS: the kind chose this module
    mac = conf.mac or ("" if wanted.mode == "passthru" else random_mac())
    data = attr(IFLA_MACVLAN_MODE, u32(MODES[wanted.mode]))
    if wanted.bcqueuelen:
        data += attr(IFLA_MACVLAN_BC_QUEUE_LEN, u32(wanted.bcqueuelen))
    return child.plan(conf, kind="macvlan", mac=mac, data=data, host=host, pod=pod)


def attach(plan: Json, host: Rtnl, pod: Pod, ifname: str) -> Link:
    """Kind.attach: raises KernelRefused for a queue length that the kernel ignores, as before Linux 5.11."""
    link = child.attach(plan, host, pod, ifname)
    asked = attributes(bytes.fromhex(plan["data"])).get(IFLA_MACVLAN_BC_QUEUE_LEN, b"")
    if asked and asked != attributes(link.data).get(IFLA_MACVLAN_BC_QUEUE_LEN):
        raise KernelRefused(
            f"bcqueuelen {read_u32(asked)}: Linux {os.uname().release} ignores it; use a kernel from 5.11 on, or "
            "remove bcqueuelen"
        )
    return link


def random_mac() -> str:
    """Return a random, locally administered unicast MAC (IEEE 802: of the first byte, bit 1 set and bit 0 clear)."""
    first, *rest = secrets.token_bytes(6)
    return bytes((first & 0xFC | 0x02, *rest)).hex(":")
