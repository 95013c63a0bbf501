"""The configuration of a request: parsed, and for ADD and STATUS allowed by the node's file."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from cni.protocol.location import is_stripped
from cni.protocol.spec import Config, Request
from cni.state import permitted

if TYPE_CHECKING:
    from cni.config import NetConf


def parsed(request: Request) -> "NetConf":
    """Raises InvalidConfig, UnsupportedField, BadEnvironment."""
    # Imported here because DEL and GC need no pydantic, which takes most of the time of a start.
    from cni import config  # noqa: PLC0415

    return config.of(request)


def allowed(request: Request, conf: Config, programs: Collection[str]) -> "NetConf":
    """``parsed``.  Raises InvalidConfig for what it names, or the pod chooses, and the node's file does not allow.
    ``programs`` are the names of the IPAM plugins that keep leases here."""
    permits = permitted.read()
    permits.refuse_choices(request, conf)  # guard: choices-of-a-pod
    wanted = parsed(request)
    # What Multus (4.3) strips a network to for STATUS names nothing of what its ADD names.
    if request.command == "ADD" or not is_stripped(conf):  # guard: stripped-add (request), stripped = True
        permits.refuse_names(request, conf, wanted.named, has_leases=wanted.where.ipam in programs)
    return wanted
