"""Ask the IPAM plugin: a given function where there is one, else the program found on CNI_PATH.

SPEC 1.1.0 section 4: same environment, whole configuration on stdin, stderr passed through, errors passed on.  A
function answers the same request with the same results and errors, and neither is made into text in between.

A program gets one variable more, ``spec.DELEGATED``: this plugin under another name sees by it that it was taken for an
IPAM plugin, and does not ask itself again.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cni import parts
from cni.protocol.errors import (
    BadEnvironment,
    CniError,
    DelegateError,
    DelegateFailed,
    DelegateNotRun,
    IncompatibleVersion,
    InvalidConfig,
    LinkUnavailable,
)
from cni.protocol.result import Result
from cni.protocol.spec import DELEGATED, Reply, Request

if TYPE_CHECKING:
    from cni.state.pod import Pod

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


class Ipam:
    """The IPAM plugin of one ADD, which asks it for addresses once: before there is a link, or after."""

    __slots__ = ("_holds", "_log", "_name", "_programs", "_request", "_result")

    def __init__(self, name: str, request: Request, programs: Programs, log: list[str]) -> None:
        """An empty name stands for no plugin."""
        self._name, self._request, self._programs, self._log = name, request, programs, log
        self._result, self._holds = Result(), False

    def ask_early(self, pod: "Pod") -> None:
        """Ask our own plugin before there is a link: to refuse then is cheaper and quieter.  It gives all or nothing.
        Where it has to see the link it answers 101, holds nothing, and is asked again by ``ask``."""
        if self._name not in self._programs:
            return
        if not self._request.inside:
            self._request = replace(self._request, inside=(pod.fd, pod.rtnl.sock.fileno()))
        try:
            self._result, self._holds = addresses(self._name, self._request, self._programs, self._log), True
        except DelegateError as e:
            if e.code != LinkUnavailable.code:
                raise

    def ask(self) -> Result:
        """What the plugin gives, nothing without a plugin.  A program may need the link, as dhcp does, and one that
        fails may hold something all the same."""
        if self._name and not self._holds:
            self._holds = True
            self._result = addresses(self._name, self._request, self._programs, self._log)
        return self._result

    def may_hold(self, failure: BaseException) -> bool:
        """Whether ADD, which ended by that failure, has to ask the plugin to release."""
        return self._holds and not isinstance(failure, DelegateNotRun)


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
            os.close(parts.program.open_trusted(file))  # refused here, and so before anything has changed
            return partial(_execute, file)
    raise DelegateFailed(f"ipam.type {ipam!r} is no program in CNI_PATH={path!r}; install it there")


def _ask(ipam: str, ours: Ask, request: Request, log: list[str]) -> Result | None:
    try:
        return ours(request, log)
    except CniError as e:
        raise DelegateError(e.code, f"{ipam}: {e.msg}", e.details) from e


def _execute(file: str, request: Request, _log: list[str]) -> Result | None:
    fd = parts.program.open_trusted(file)
    try:
        status, stdout = parts.program.run(fd, file, request.stdin, {**request.environ, DELEGATED: "1"})
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
