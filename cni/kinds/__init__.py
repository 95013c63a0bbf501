"""The kinds of attachments: how each gets its interface into the pod and out again.

A kind is a row of ``KINDS``: a module here with the functions of ``Kind``, and a model in cni/models with its keys.
A kind's plan is a JSON object in the journal, so ``detach``, ``check`` and ``describe`` need no configuration.  A kind
chooses the members of its plan, but these mean the same for all kinds, and other modules read them:

    device, incarnation   bus address of a device that only this attachment uses; identifies the device among those
                          that have or will have that address (base/kernel/sysfs.py)
    netdev                name of that device's interface on the host
    pci                   address of the PCI function that sends the packets, if it is not the attachment's own device
    pf                    address of the VF's PF
    parent, index, mac    of an interface made over a master: the master's ifindex, its own ifindex, its own MAC
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
    # Not at run time, because DEL does not need pydantic.
    from cni.models import Common, NetConf


class Row(NamedTuple):
    """One kind: the name of its modules in cni/kinds and cni/models, and the name of its model.

    The first kind with a true ``is_implied_by`` is that of a configuration that names none.
    """

    module: str
    model: str
    is_implied_by: Callable[[Json], bool] = lambda _: False


def _has_auxiliary_device(conf: Json) -> bool:
    """Whether the deviceID has the form of the auxiliary bus, as mlx5_core.sf.4; a PCI address has colons."""
    device = str(conf.get("deviceID", ""))
    return ":" not in device and device.count(".") == 2 and device.rpartition(".")[2].isdecimal()


def _has_vf(conf: Json) -> bool:
    return "pf" in conf or ("deviceID" in conf and not _has_auxiliary_device(conf))


# A new kind is a row here.  The first is the default.
KINDS: Final[Mapping[str, Row]] = {
    "macvlan": Row("macvlan", "Macvlan"),
    "ipvlan": Row("ipvlan", "Ipvlan"),
    "ipoib": Row("ipoib", "Ipoib"),
    "sriov": Row("sriov", "Sriov", _has_vf),
    "host-device": Row("host_device", "HostDevice", _has_auxiliary_device),
}
# With one of these keys a configuration is of the first kind, whatever other keys it has.  Multus adds deviceID to
# every configuration of a resource with devices.
_OVER_A_MASTER: Final = frozenset({"master", "mode"})


class Kind(Protocol):
    """The functions of a kind's module, which cni/transaction.py, cni/commands.py and cni/undo.py call."""

    def claiming(self, conf: "NetConf") -> AbstractContextManager["NetConf"]:
        """Hold this from before ``plan`` until the journal has the plan, so no two attachments choose one device.

        The value is the configuration for ``plan``, with what was chosen already.
        """

    def plan(self, conf: "NetConf", host: Rtnl, pod: Pod) -> Json:
        """Read the facts, decide everything and return the plan; change nothing.  Raises CniError."""

    def attach(self, plan: Json, host: Rtnl, pod: Pod, ifname: str) -> Link | None:
        """Make the interface in the pod, down and without addresses.  Returns None for a device that the pod drives
        itself, because the kernel has no interface for it."""

    def interfaces(self, plan: Json, link: Link | None, host: Rtnl, pod: Pod, ifname: str) -> tuple[Interface, ...]:
        """Return the interfaces for the result: the pod's, then the host's interface that it depends on."""

    def stands(self, plan: Json, pod: Pod, ifname: str) -> bool:
        """Whether the interface that ``attach`` made still exists, by identity and not by name."""

    def detach(self, plan: Json, pod: Pod | None, ifname: str, found: Callable[[], None]) -> Search | None:
        """Undo ``attach``, whole or in part; succeed if there is nothing to undo.  ``pod`` is None if its namespace is
        gone.  Call ``found`` before removing the interface.

        Returns the search for what the pod may have hidden or stacked on the interface; None if there is none."""

    def check(self, plan: Json, host: Rtnl, pod: Pod, ifname: str) -> Link | None:
        """Raise CheckFailed unless the interface is as planned; return it, as ``attach`` does.
        cni/features/expected.py compares properties that all kinds share."""

    def status(self, conf: "NetConf", host: Rtnl) -> None:
        """Raise CniError if no ADD of this configuration can be served now."""

    def describe(self, plan: Json, interfaces: list[Json]) -> tuple[str, Json]:
        """Return the attachment's device for people: words for the column DEVICE of hpn inspect, and members for its
        --json.  ``interfaces`` are those of ADD's result; empty if ADD did not get that far."""


def named(kind: str) -> Kind:
    """Return the kind's module.  Raises RecordUnreadable for a name that only a newer version's record can hold."""
    if kind not in KINDS:
        raise RecordUnreadable(f"kind {kind!r} is none of {', '.join(KINDS)}; a newer version attached it")
    return cast("Kind", import_module(f"cni.kinds.{KINDS[kind].module}"))


def model(kind: str) -> "type[Common]":
    """Return the kind's model, imported only now, because each model delays a start."""
    row = KINDS[kind]
    return cast("type[Common]", getattr(import_module(f"cni.models.{row.module}"), row.model))


def implied(conf: Json) -> str:
    """Return the kind of a configuration that names none."""
    first, *others = KINDS
    if _OVER_A_MASTER.isdisjoint(conf):
        return next((kind for kind in others if KINDS[kind].is_implied_by(conf)), first)
    return first
