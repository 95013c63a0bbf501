"""How each kind of attachment gets its interface into the pod and out again.

A kind is a row of ``KINDS``: a module here with the functions of ``Kind``, and a model in cni/models with its keys.
What a kind plans is a JSON object, which the journal keeps, so that ``detach``, ``check`` and ``describe`` need no
configuration.  Its members are the kind's own, but these have one meaning for all kinds, and others read them:

    device, incarnation   bus address of a device that the attachment has for itself, and which one it is of those that
                          were or will be at that address (kernel/sysfs.py); netdev is the interface's name on the host
    pci                   address of the PCI function that the packets leave by, where that is not the attachment's own
    pf                    address of the PF that its VF is of
    parent, index, mac    of an interface that is made over a master: ifindex of the master, ifindex and MAC of its own
    rdma_devs             names of the RDMA devices that the pod has
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from base.kernel.links import Link
from base.kernel.rtnl import Rtnl
from base.protocol.errors import RecordUnreadable
from base.protocol.result import Interface
from base.protocol.spec import Json
from base.state.pod import Pod
from cni.kinds.escaped import Search

if TYPE_CHECKING:
    # Not at run time: DEL does without pydantic.
    from cni.models import Common, NetConf


class Row(NamedTuple):
    """One kind: the name of its module, in cni/kinds and in cni/models, and its model there.

    A configuration that names no kind is of the first one whose ``is_implied_by`` says so.
    """

    module: str
    model: str
    is_implied_by: Callable[[Json], bool] = lambda _: False


def _has_auxiliary_device(conf: Json) -> bool:
    """Whether the deviceID has the form of the auxiliary bus, as mlx5_core.sf.4 has; a PCI address has colons."""
    device = str(conf.get("deviceID", ""))
    return ":" not in device and device.count(".") == 2 and device.rpartition(".")[2].isdecimal()


def _has_vf(conf: Json) -> bool:
    return "pf" in conf or ("deviceID" in conf and not _has_auxiliary_device(conf))


# A new kind is a row here.  The first is that of a configuration that says nothing at all.
KINDS: Final[Mapping[str, Row]] = {
    "macvlan": Row("macvlan", "Macvlan"),
    "ipvlan": Row("ipvlan", "Ipvlan"),
    "ipoib": Row("ipoib", "Ipoib"),
    "sriov": Row("sriov", "Sriov", _has_vf),
    "host-device": Row("host_device", "HostDevice", _has_auxiliary_device),
}
# With these a configuration is of the first kind whatever else it has: Multus adds deviceID to any configuration whose
# resource has one.
_OVER_A_MASTER: Final = frozenset({"master", "mode"})


class Kind(Protocol):
    """What commands.py asks of a kind's module."""

    def claiming(self, conf: "NetConf") -> AbstractContextManager[None]:
        """Held from before ``plan`` until the journal has what was planned: whose device it is is decided once."""

    def plan(self, conf: "NetConf", host: Rtnl, pod: Pod) -> Json:
        """Read the facts and decide everything; changes nothing.  Raises CniError for what cannot be."""

    def attach(self, plan: Json, host: Rtnl, pod: Pod, ifname: str) -> Link | None:
        """Make the interface in the pod, down and without addresses; None for a device that the pod drives itself
        and the kernel has no interface of."""

    def interfaces(self, plan: Json, link: Link | None, host: Rtnl, pod: Pod, ifname: str) -> tuple[Interface, ...]:
        """What the result says of it: the pod's interface, then the host's that it depends on."""

    def stands(self, plan: Json, pod: Pod, ifname: str) -> bool:
        """Whether what ``attach`` made is there still; a stranger of the same name is not it."""

    def detach(self, plan: Json, pod: Pod | None, ifname: str, found: Callable[[], None]) -> Search | None:
        """Undo ``attach``, whole or in part; nothing there is fine.  ``pod`` is None when nobody runs in it any more.
        ``found`` is to be called before what ``attach`` made goes.

        What is to be looked for still, if the pod may have hidden it, or made more of it."""

    def check(self, plan: Json, host: Rtnl, pod: Pod, ifname: str) -> Link | None:
        """Raise CheckFailed unless the interface is as planned; return it, as ``attach`` does.  What all kinds have in
        common, cni/features/expected.py compares."""

    def status(self, conf: "NetConf", host: Rtnl) -> None:
        """Raise CniError if no ADD of this configuration can be served now."""

    def describe(self, plan: Json, interfaces: list[Json]) -> tuple[str, Json]:
        """The attachment for people: a few words on what it is made of, for the column DEVICE of hpn inspect, and
        members for its --json.  ``interfaces`` are those of ADD's result, none if it has not come so far."""


def named(kind: str) -> Kind:
    """The kind's module.  Raises RecordUnreadable for a name that only a newer version's record can hold."""
    if kind not in KINDS:
        raise RecordUnreadable(f"kind {kind!r} is none of {', '.join(KINDS)}; a newer version attached it")
    return cast("Kind", import_module(f"cni.kinds.{KINDS[kind].module}"))


def model(kind: str) -> "type[Common]":
    """The kind's model, imported now: a start pays for the one in use."""
    row = KINDS[kind]
    return cast("type[Common]", getattr(import_module(f"cni.models.{row.module}"), row.model))


def implied(conf: Json) -> str:
    """The kind of a configuration that names none."""
    first, *others = KINDS
    if _OVER_A_MASTER.isdisjoint(conf):
        return next((kind for kind in others if KINDS[kind].is_implied_by(conf)), first)
    return first
