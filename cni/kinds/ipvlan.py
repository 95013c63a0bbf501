"""Kind ipvlan: links that share the master's MAC and are distinguished by their addresses (drivers/net/ipvlan)."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from base.kernel import netns
from base.kernel.netlink import attr
from base.kernel.rtnl import Rtnl
from base.protocol.errors import LinkUnavailable
from base.protocol.spec import Json
from base.state import durable, journal
from base.state import pod as pods
from base.state.pod import Pod
from base.state.record import Record
from cni.kinds import child
from cni.kinds.child import IFLA_IPVLAN_MODE, attach, check, claiming, describe, detach, interfaces, stands, status

if TYPE_CHECKING:
    from cni.models import NetConf
    from cni.models.ipvlan import Ipvlan

__all__ = ["attach", "check", "claiming", "describe", "detach", "interfaces", "plan", "stands", "status"]

MODES: Final = {"l2": 0, "l3": 1, "l3s": 2}


def plan(conf: "NetConf", host: Rtnl, pod: Pod) -> Json:
    """Kind.plan: refuses a mode that would change other pods' links."""
    wanted = cast("Ipvlan", conf.attach)  # kinds.KINDS: the kind chose this module
    data = attr(IFLA_IPVLAN_MODE, struct.pack("=H", MODES[wanted.mode]))
    planned = child.plan(conf, kind="ipvlan", mac="", data=data, host=host, pod=pod)
    for other in _others(planned, conf.where.state_dir):
        if _contradicts(other, planned, pod) and _stands(other):
            raise LinkUnavailable(
                f"mode {wanted.mode}: {other.title}, has an ipvlan of another mode over "
                f"{planned['master']}, and a master has one mode; use that, or another master"
            )
    return planned


def _others(planned: Json, state_dir: Path) -> Iterator[Record]:
    """The records of another mode over a master with that index, and perhaps some others.  A node may have a thousand
    ipvlans of one mode, so most records are not decoded."""
    parent, agrees = f"{planned['parent']}".encode(), f'"data":{durable.canonical(planned["data"])}'.encode()
    for file, text in journal.texts(state_dir):
        if parent in text.parents and agrees not in text.body and (one := journal.decoded(file, text.body)):
            yield one


def _contradicts(other: Record, planned: Json, pod: Pod) -> bool:
    """Whether our mode differs from the other attachment's over the same master.  The kernel would change the mode of
    all links over the master (ipvlan_set_port_mode).  They are in other namespaces, so only the journal knows them; it
    has neither foreign links nor one that is being made at this moment."""
    if other.kind != "ipvlan" or not other.of_this_boot:
        return False
    where = other.identity if other.link["in_container"] else None
    ours = pod.identity if planned["in_container"] else None
    same_master = (where, other.link["parent"]) == (ours, planned["parent"])
    return same_master and other.link["data"] != planned["data"]


def _stands(record: Record) -> bool:
    """Whether the record's link may exist.  A record may outlive its link, until DEL or GC of the pod."""
    with pods.find(record.identity, record.netns) as pod:
        # A namespace that we cannot see may still have the link.
        return stands(record.link, pod, record.key.ifname) if pod else not netns.gone([record.identity])
