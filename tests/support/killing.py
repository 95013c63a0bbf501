"""Run the real plugin in a child that kills itself just before its n-th step that another process could notice.

A step is: a file opened for writing, flushed, synced, renamed or removed; a directory or link made; a message sent to
the kernel.  The product need not name its steps.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from support.topology import PROGRAMS

from base.protocol.spec import Request
from cni import collect, commands, config, kinds  # noqa: F401  # else each child would import them
from cni.main import run as hpn
from ipam import config as ipam_config  # noqa: F401  # as above
from ipam import models as ipam_models
from ipam import sandboxes  # noqa: F401  # as above
from ipam.stores import access

_STEPS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate", "socket.sendto"}
_CALLS = {"flush", "fsync", "fdatasync", "pwrite"}  # steps without an audit event
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_ENDED = 77


def killed_at(step: int, request: Request) -> bool:
    """Run the request in a child that dies before its n-th step; return False if it ended before that."""
    return killed_in(step, lambda: hpn(request, PROGRAMS).exit_code)


def killed_in(step: int, command: Callable[[], int]) -> bool:
    """Run the command, which returns its exit status, like ``killed_at``."""
    _load()
    child = os.fork()
    if not child:
        try:
            at_step(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
            os._exit(_ENDED if command() == 0 else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == _ENDED, "the command itself failed"
    return False


@cache
def _load() -> None:
    """Import modules and build models in this process; in each child this would take ten times as long as its
    command."""
    access.preload()
    ipam_models.Conf.model_rebuild()
    for kind in kinds.KINDS:
        kinds.named(kind)
        kinds.model(kind).model_rebuild()


def at_step(step: int, act: Callable[[], None]) -> None:
    """Call ``act`` in this process just before its n-th step from now."""
    count, plugin = 0, os.getpid()

    def one_more() -> None:
        nonlocal count
        if os.getpid() != plugin:  # a child that outlives it
            return
        if count == step:
            act()
        count += 1

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event in _STEPS or (event == "open" and isinstance(args[2], int) and args[2] & _WRITING):
            one_more()

    def profile(_frame: object, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in _CALLS:
            one_more()

    sys.addaudithook(audit)
    threading.setprofile(profile)
    sys.setprofile(profile)
