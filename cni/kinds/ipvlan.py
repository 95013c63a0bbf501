"""ipvlan (drivers/net/ipvlan): the master's MAC, told apart by address."""

import struct
from typing import TYPE_CHECKING, Final, cast

from cni.kernel.rtnl import Rtnl, attr
from cni.kinds import child
from cni.kinds.child import attach, check, detach, find, status
from cni.pod import Pod
from cni.spec import Json

if TYPE_CHECKING:
    # Not at run time: DEL does without pydantic.
    from cni.config import Ipvlan, NetConf

__all__ = ["attach", "check", "detach", "find", "plan", "status"]

IFLA_IPVLAN_MODE: Final = 1
MODES: Final = {"l2": 0, "l3": 1, "l3s": 2}


def plan(conf: "NetConf", host: Rtnl, pod: Pod) -> Json:
    """Kind.plan."""
    wanted = cast("Ipvlan", conf.attach)  # config.MODELS: the kind chose this module
    data = attr(IFLA_IPVLAN_MODE, struct.pack("=H", MODES[wanted.mode]))
    return child.plan(wanted, kind="ipvlan", mac="", data=data, host=host, pod=pod)
