"""Ask the IPAM plugin: a given function where there is one, else the program found on CNI_PATH.

SPEC 1.1.0 section 4: same environment, whole configuration on stdin, stderr passed through, errors passed on.  A
function answers the same request with the same results and errors, and neither is made into text in between.

A program gets one variable more, ``spec.DELEGATED``: this plugin under another name sees by it that it was taken for an
IPAM plugin, and does not ask itself again.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from cni.protocol.errors import (
    BadEnvironment,
    CniError,
    DelegateError,
    DelegateFailed,
    IncompatibleVersion,
    InvalidConfig,
    LinkUnavailable,
)
from cni.protocol.result import Result
from cni.protocol.spec import DELEGATED, Reply, Request

# Answers as a plugin does, but in Python; lines for stderr go into the list.
Ask = Callable[[Request, list[str]], Result | None]
Programs = Mapping[str, Ask]

# How an IPAM plugin that predates a command answers it: unknown command, or version too old.
_TOO_OLD = (IncompatibleVersion.code, BadEnvironment.code)


def call(ipam: str, request: Request, programs: Programs, log: list[str] | None = None) -> Result | None:
    """What the IPAM plugin answers to this request; None where it prints nothing.  ``log`` gets what one of ours says.

    Raises DelegateError with the plugin's own code, DelegateFailed if it cannot be run or understood.
    """
    return find(ipam, request, programs)(request, [] if log is None else log)


def addresses(ipam: str, request: Request, programs: Programs, log: list[str]) -> Result:
    """What it gives.  Raises what ``call`` does, and DelegateFailed for nothing."""
    result = call(ipam, request, programs, log)
    if result is None or not result.ips:
        raise DelegateFailed(f"IPAM plugin {ipam} returned no address; correct its configuration or remove ipam")
    return result


@contextmanager
def unless_it_needs_the_link() -> Iterator[None]:
    """Ours says by error 101 that it has to see the link, and then holds nothing."""
    try:
        yield
    except DelegateError as e:
        if e.code != LinkUnavailable.code:
            raise


def ask_if_it_can(ipam: str, request: Request, programs: Programs) -> None:
    """STATUS and GC for the IPAM plugin; one that is older than these commands is not in the way."""
    if ipam:
        try:
            call(ipam, request, programs)
        except DelegateError as e:
            if e.code not in _TOO_OLD:
                raise


def find(ipam: str, request: Request, programs: Programs) -> Ask:
    """The plugin: ours, else the first of CNI_PATH's directories that has it.  Raises InvalidConfig, DelegateFailed."""
    if ipam in programs:
        return partial(_ask, ipam, programs[ipam])
    if "/" in ipam or ipam in (".", ".."):
        raise InvalidConfig(f"ipam.type {ipam!r} is not a plugin's name; name a program in CNI_PATH")
    path = request.var("CNI_PATH")
    for folder in filter(None, path.split(os.pathsep)):
        file = f"{folder}/{ipam}"
        if Path(file).is_file() and os.access(file, os.X_OK):
            from cni.parts import program  # noqa: PLC0415  # as below

            os.close(program.opened(file))  # refused here, and so before anything has changed
            return partial(_execute, file)
    raise DelegateFailed(f"ipam.type {ipam!r} is no program in CNI_PATH={path!r}; install it there")


def _ask(ipam: str, ours: Ask, request: Request, log: list[str]) -> Result | None:
    try:
        return ours(request, log)
    except CniError as e:
        raise DelegateError(e.code, f"{ipam}: {e.msg}", e.details) from e


def _execute(file: str, request: Request, _log: list[str]) -> Result | None:
    # Not needed for ours, and subprocess is a fortieth of the start.
    from cni.parts import program  # noqa: PLC0415

    fd = program.opened(file)
    try:
        status, stdout = program.run(fd, file, request.stdin, {**request.environ, DELEGATED: "1"})
    finally:
        os.close(fd)
    return _understood(os.path.basename(file), Reply(stdout.decode(errors="replace"), status))


def _understood(ipam: str, reply: Reply) -> Result | None:
    if reply.exit_code:
        raise _error(ipam, reply)
    if not reply.stdout.strip():
        return None
    try:
        return Result.from_json(json.loads(reply.stdout))
    except (ValueError, RecursionError) as e:
        raise DelegateFailed(f"IPAM plugin {ipam} printed no result: {e}", reply.stdout[:500]) from e


def _error(ipam: str, reply: Reply) -> Exception:
    """The plugin's own error, if it printed one."""
    try:
        document = json.loads(reply.stdout)
        return DelegateError(
            int(document["code"]), f"{ipam}: {document.get('msg', '')}", str(document.get("details") or "")
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        how = f"signal {-reply.exit_code}" if reply.exit_code < 0 else f"status {reply.exit_code}"
        return DelegateFailed(f"IPAM plugin {ipam} ended with {how} and no CNI error", reply.stdout[:500])
