"""The plugin as a function."""

from functools import partial

from cni import dispatch
from cni.delegate import Programs
from cni.log import kept
from cni.result import Result
from cni.spec import VERBS, Config, Reply, Request


def run(request: Request, programs: Programs) -> Reply:
    """Answer one CNI request.  ``programs`` are the IPAM plugins that need no process of their own."""
    return dispatch.answer(request, dict.fromkeys(VERBS, partial(_run, programs)))


def _run(programs: Programs, request: Request, conf: Config, log: list[str]) -> Result | None:
    # Here, because VERSION needs nothing of it.
    from cni import commands  # noqa: PLC0415

    command = {
        "ADD": commands.add,
        "DEL": commands.delete,
        "CHECK": commands.check,
        "GC": commands.gc,
        "STATUS": commands.status,
    }[request.command]
    with kept(request, conf, log):
        return command(request, conf, log, programs)
