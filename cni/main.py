"""The CNI plugin as a function: a request in, a reply out."""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from base.kernel import budget
from base.protocol import dispatch, report, spec
from base.protocol.errors import CniError, InvalidConfig
from base.protocol.location import is_stripped
from base.protocol.result import Result
from base.protocol.spec import DELEGATED, VERBS, Config, Reply, Request
from base.state.log import log_command

if TYPE_CHECKING:
    # Not at run time, because VERSION does not need it.
    from cni.features.delegate import Programs


def run(request: Request, programs: "Programs") -> Reply:
    """Return the reply to one CNI request.  ``programs`` are the IPAM plugins that are functions of this program."""
    began = time.monotonic()
    budget.begin()
    reply = dispatch.answer(request, dict.fromkeys(VERBS, partial(_run, programs)))
    report.send(request.command, reply, began, partial(_kind, request))
    if reply.code:
        from base.state import last_error  # noqa: PLC0415  # only after a failure

        last_error.note(request, reply)
    return reply


def _run(programs: "Programs", request: Request, conf: Config, log: list[str]) -> Result | None:
    if request.var(DELEGATED):
        # Another plugin calls us, by a link, as its IPAM plugin.  We would delegate to ourselves without end.
        if request.command not in ("DEL", "GC"):
            raise InvalidConfig("ipam.type names hpn, which gives no addresses; did you mean hpn-ipam?")
        return None
    # Imported here because VERSION does not need them.
    from cni import collect, commands  # noqa: PLC0415

    command: Callable[..., Result | None] = {
        "ADD": commands.add,
        "DEL": commands.delete,
        "CHECK": commands.check,
        "GC": collect.gc,
        "STATUS": commands.status,
    }[request.command]
    if conf.get("claims"):
        from cni import chain  # noqa: PLC0415  # only the cluster's network has it

        command = chain.COMMANDS.get(request.command, command)
    elif "rails" in conf:
        from cni import rails  # noqa: PLC0415  # as above, for networks of several rails

        command = rails.COMMANDS.get(request.command, command)
    with log_command(request, conf, log):
        return command(request, conf, log, programs)


def _kind(request: Request) -> str:
    """Return the configuration's kind; empty if it is unknown, or if its attachments may have several."""
    from cni import kinds  # noqa: PLC0415  # as above

    try:
        conf = spec.configuration(request)
    except CniError:
        return ""
    kind = "" if is_stripped(conf) or conf.get("claims") else conf.get("kind", kinds.implied(dict(conf)))
    return next((known for known in kinds.KINDS if known == kind), "")
