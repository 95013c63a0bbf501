"""Delegation to the IPAM plugin: one of our own functions, else the program of that name on CNI_PATH.

A program gets the same environment, and the whole configuration on stdin (SPEC 1.1.0 section 4).  Its stderr and its
errors are passed on.  A function returns the same results and errors for the same request, without text in between.

A program gets one more variable, ``spec.DELEGATED``.  With it, this plugin under another name detects that it was
called as an IPAM plugin, and does not delegate to itself.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from base.protocol.errors import (
    BadEnvironment,
    CniError,
    DelegateError,
    DelegateFailed,
    DelegateNotRun,
    IncompatibleVersion,
    InvalidConfig,
    LinkUnavailable,
)
from base.protocol.result import Result
from base.protocol.spec import DELEGATED, Kept, Reply, Request
from cni import features

if TYPE_CHECKING:
    from base.state.pod import Pod

# A function that answers as a plugin does.  It appends lines for stderr to the list.
Ask = Callable[[Request, list[str]], Result | None]
Programs = Mapping[str, Ask]

# Error codes of a plugin that is older than a command: unknown command, or version too old.
_TOO_OLD = (IncompatibleVersion.code, BadEnvironment.code)


def call(ipam: str, request: Request, programs: Programs, log: list[str] | None = None) -> Result | None:
    """Return the IPAM plugin's result; None if it prints nothing.  ``log`` gets the lines of our own plugin.

    Raises DelegateError with the plugin's own code; DelegateFailed if the plugin cannot be run or prints no result.
    """
    return find(ipam, request, programs)(request, [] if log is None else log)


def addresses(ipam: str, request: Request, programs: Programs, log: list[str]) -> Result:
    """Return the plugin's result with addresses.  Raises what ``call`` does, and DelegateFailed if there is none."""
    result = call(ipam, request, programs, log)
    if result is None or not result.ips:
        raise DelegateFailed(f"IPAM plugin {ipam} returned no address; correct its configuration or remove ipam")
    return result


class Ipam:
    """The IPAM plugin of one ADD.  It allocates once: before the link exists, or after.

    ``may_hold``: whether it may hold addresses, and must release them if ADD fails.  ``has_refused``: whether ``ask``
    got an error from it.
    """

    __slots__ = ("_log", "_name", "_programs", "_request", "_result", "has_refused", "may_hold")

    def __init__(self, name: str, request: Request, programs: Programs, log: list[str]) -> None:
        """An empty name stands for no plugin."""
        self._name, self._request, self._programs, self._log = name, request, programs, log
        self._result, self.may_hold, self.has_refused = Result(), False, False

    def ask_early(self, pod: "Pod", kept: Kept | None = None) -> None:
        """Call our own plugin before the link exists, because a refusal is cheaper then.  If our plugin fails, it holds
        nothing.  If it needs the link, it answers 101, and ``ask`` calls it again."""
        if self._name not in self._programs:
            return
        if not self._request.inside:
            self._request = replace(self._request, inside=(pod.fd, pod.rtnl.sock.fileno()))
        request = replace(self._request, kept=kept) if kept else self._request
        try:
            self._result, self.may_hold = addresses(self._name, request, self._programs, self._log), True
        except DelegateError as e:
            if e.code != LinkUnavailable.code:
                raise

    def ask(self) -> Result:
        """Return the plugin's result; an empty one without a plugin.  Other programs are called only here, because they
        may need the link, as dhcp does.  They may hold an address even if they fail."""
        if self._name and not self.may_hold:
            request = replace(self._request, is_last=True)  # a device of a userspace driver has no interface
            self.may_hold = True
            try:
                self._result = addresses(self._name, request, self._programs, self._log)
            except DelegateNotRun:
                self.may_hold = False
                raise
            except DelegateError:
                self.has_refused = True
                raise
        return self._result


def ask_if_it_can(ipam: str, request: Request, programs: Programs) -> None:
    """Pass STATUS or GC on to the IPAM plugin.  Ignore the refusal of a plugin that is older than these commands."""
    if ipam:
        try:
            call(ipam, request, programs)
        except DelegateError as e:
            if e.code not in _TOO_OLD:
                raise


def find(ipam: str, request: Request, programs: Programs) -> Ask:
    """Return the plugin: our own, else the program in the first directory of CNI_PATH that has it.  Raises
    InvalidConfig, DelegateFailed, DelegateNotRun."""
    if ipam in programs:
        return partial(_ask, ipam, programs[ipam])
    if "/" in ipam or ipam in (".", ".."):
        raise InvalidConfig(f"ipam.type {ipam!r} is not a plugin's name; name a program in CNI_PATH")
    path = request.var("CNI_PATH")
    for folder in filter(None, path.split(os.pathsep)):
        file = f"{folder}/{ipam}"
        if Path(file).is_file() and os.access(file, os.X_OK):
            os.close(features.program.open_trusted(file))  # so a refusal precedes every change
            return partial(_execute, file)
    raise DelegateFailed(f"ipam.type {ipam!r} is not a program in CNI_PATH={path!r}; install it there")


def _ask(ipam: str, ours: Ask, request: Request, log: list[str]) -> Result | None:
    try:
        return ours(request, log)
    except CniError as e:
        raise DelegateError(e.code, f"{ipam}: {e.msg}", e.details) from e


def _execute(file: str, request: Request, _log: list[str]) -> Result | None:
    if request.kept:
        request.kept.close()  # others need not wait for the program
    fd = features.program.open_trusted(file)
    try:
        status, stdout = features.program.run(fd, file, request.stdin, {**request.environ, DELEGATED: "1"})
    finally:
        os.close(fd)
    ipam, reply = os.path.basename(file), Reply(stdout.decode(errors="replace"), status)
    if reply.exit_code:
        raise _error_of(ipam, reply)
    if not reply.stdout.strip():
        return None
    try:
        return Result.from_json(json.loads(reply.stdout))
    except (ValueError, RecursionError) as e:
        raise DelegateFailed(f"IPAM plugin {ipam} printed no result: {e}", reply.stdout[:500]) from e


def _error_of(ipam: str, reply: Reply) -> Exception:
    """Return the plugin's own error if it printed one, else DelegateFailed."""
    try:
        document = json.loads(reply.stdout)
        return DelegateError(
            int(document["code"]), f"{ipam}: {document.get('msg', '')}", str(document.get("details") or "")
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        how = f"signal {-reply.exit_code}" if reply.exit_code < 0 else f"status {reply.exit_code}"
        return DelegateFailed(f"IPAM plugin {ipam} ended with {how} and no CNI error", reply.stdout[:500])
