"""Run another program as root, for a limited time.  One descriptor serves to check and to run it, so the program cannot
be replaced in between."""

import errno
import os
import signal
import stat
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from base.kernel import files
from base.protocol.errors import DelegateFailed, DelegateNotRun, DelegateNotStarted
from base.state import trust

# Seconds that a program may take.  The reference plugin dhcp gives up after 62; our launcher waits 120 for the agent.
TIMEOUT = 90.0
# Seconds that a program has to end after SIGTERM.
GRACE = 5.0
_EXECUTABLE = 0o111


def open_trusted(path: str) -> int:
    """Open the program.  Raises DelegateNotRun if another user than root, or than the owner of the program's directory,
    could have written it."""
    try:
        fd = files.open_regular(path, os.O_RDONLY)
        folder, found = os.stat(os.path.dirname(path)), os.fstat(fd)
    except OSError as e:
        raise DelegateNotRun(f"IPAM plugin {path} cannot be run: {e.strerror}") from e
    if why := _why_not(os.path.dirname(path), folder, path, found):
        os.close(fd)
        raise DelegateNotRun(f"IPAM plugin {path} is not run: {why}")
    return fd


def run(fd: int, path: str, stdin: bytes, environ: Mapping[str, str]) -> tuple[int, bytes]:
    """Run the program.  Returns its exit status and its stdout; ``path`` becomes its ``argv[0]``.

    Raises DelegateNotRun; DelegateFailed if the program takes longer than TIMEOUT, after ending its process group.
    """
    try:
        # The program inherits the descriptor, because a script's interpreter opens it once more (man 2 execveat).
        child = subprocess.Popen(  # noqa: S603  # the runtime's own CNI_PATH decides what runs
            [path],
            executable=f"/proc/self/fd/{fd}",
            pass_fds=(fd,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environ),
            process_group=0,
        )
    except OSError as e:
        kind = DelegateNotStarted if e.errno == errno.EAGAIN else DelegateNotRun
        raise kind(f"IPAM plugin {path} cannot be run: {_unrunnable(e, fd)}") from e
    with child:
        try:
            stdout, _ = child.communicate(stdin, TIMEOUT)
        except subprocess.TimeoutExpired as e:
            _end(child)
            raise DelegateFailed(
                f"IPAM plugin {path} did not answer in {TIMEOUT:g} s and was ended; see what it waits for, then repeat"
            ) from e
        except BaseException:
            _signal(child, signal.SIGKILL)
            raise
    return child.returncode, stdout


def _why_not(above: str, folder: os.stat_result, path: str, found: os.stat_result) -> str:
    if _others_write(folder) and not folder.st_mode & stat.S_ISVTX:
        return f"every user can write programs into {above}, a directory of CNI_PATH; chmod go-w {above}"
    if not trust.is_trusted(found.st_uid) and found.st_uid != folder.st_uid:
        return f"its owner is {found.st_uid}; chown root:root {path}"
    if _others_write(found):
        return f"others can write it (mode {stat.S_IMODE(found.st_mode):o}); chmod go-w {path}"
    return "" if found.st_mode & _EXECUTABLE else f"it is not executable; chmod a+x {path}"


def _unrunnable(e: OSError, fd: int) -> str:
    if e.errno == errno.ENOEXEC and (machine := files.machine(fd)):
        here = os.uname().machine
        return f"it is built for {machine}, and this node is {here}; install the one for {here}"
    if e.errno == errno.EAGAIN:
        return "no process can be started now; repeat the call, and if that stays, raise the limit of processes (pids)"
    return f"{e.strerror}"


def _others_write(found: os.stat_result) -> bool:
    """Whether a user can write it who is neither its owner nor in root's group."""
    return bool(found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid != 0))


def _end(child: "subprocess.Popen[bytes]") -> None:
    _signal(child, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(GRACE)
    # Also after the program has ended, because a process that it started may hold its stdout open.
    _signal(child, signal.SIGKILL)


def _signal(child: "subprocess.Popen[bytes]", number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)
