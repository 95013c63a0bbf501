"""What kubelet has allocated to pods, beside what is attached to them."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from base.protocol.spec import Json
from ctl.screen import Table

if TYPE_CHECKING:
    from base.kubelet.client import Held

KUBELET: Final = "/var/lib/kubelet"


def allocated(kubelet: Path) -> "list[Held]":
    """The devices that containers have, says the kubelet that keeps its state there; none if there is none."""
    socket = kubelet / "pod-resources" / "kubelet.sock"
    if not socket.is_socket():
        return []
    # Only here, because most of what this takes is the import.
    from base.kubelet.client import pods  # noqa: PLC0415

    return pods(socket)


def match(attachments: Iterable[Json], given: "Iterable[Held]") -> list[Json]:
    """Put "resource" into the attachments whose device kubelet gave to their pod; what it gave besides."""
    attachments = list(attachments)
    rest = list[Json]()
    for one in given:
        ids = [identity for identity in one.ids if not _mark(attachments, one, identity)]
        if ids:
            rest.append({"pod": _pod(one), "container": one.container, "resource": one.resource, "ids": ids})
    return rest


def table(rest: Iterable[Json]) -> Table:
    """What ``match`` has left over."""
    rows = [(one["pod"], one["container"], one["resource"], ", ".join(one["ids"])) for one in rest]
    return Table(("POD", "CONTAINER", "RESOURCE", "DEVICES"), rows)


def _mark(attachments: Iterable[Json], one: "Held", identity: str) -> bool:
    """Whether an attachment of the pod is made of what this ID stands for."""
    found = False
    for a in attachments:
        # Who calls the plugin by hand names no pod.
        if a["pod"] in ("", _pod(one)) and _stands_for(identity, a):
            a.setdefault("resource", {"name": one.resource, "id": identity, "container": one.container})
            found = True
    return found


def _stands_for(identity: str, a: Json) -> bool:
    """An ID is a device's own, or with a number behind it where containers share the device."""
    device, _, number = identity.rpartition("-")
    own = {a.get(key) for key in ("device", "netdev", "master")} - {None, ""}
    return identity in own or (number.isdecimal() and device in own)


def _pod(one: "Held") -> str:
    return f"{one.namespace}/{one.pod}"
