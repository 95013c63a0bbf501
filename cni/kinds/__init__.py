"""How each kind of attachment gets its interface into the pod and out again.

A kind is a module with the functions of ``Kind``; what it plans is a JSON object, kept in the journal so that
``detach`` and ``check`` need no configuration.  Others read of it ``device``, ``pf`` and ``number`` (a PCI function's
address, its PF's, and its number there) or ``master`` and ``pci`` (its
function's address), and ``rdma_devs``, the RDMA devices that the pod has.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from cni.kernel.rtnl import Link, Rtnl
from cni.kinds.escaped import Search
from cni.protocol.errors import RecordUnreadable
from cni.protocol.result import Interface
from cni.protocol.spec import Json
from cni.state.pod import Pod

if TYPE_CHECKING:
    # Not at run time: DEL does without pydantic.
    from cni.config import NetConf


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
        common, cni/parts/promises.py compares."""

    def status(self, conf: "NetConf", host: Rtnl) -> None:
        """Raise CniError if no ADD of this configuration can be served now."""


NAMES: Final = ("macvlan", "ipvlan", "sriov")


def named(kind: str) -> Kind:
    """The kind's module.  Raises RecordUnreadable for a name that only a newer version's record can hold."""
    if kind not in NAMES:
        raise RecordUnreadable(f"kind {kind!r} is none of {', '.join(NAMES)}; a newer version attached it")
    return cast("Kind", import_module(f"cni.kinds.{kind}"))
