"""A child process that does one piece of work, returns its result, and ends.

The work's imports end with it, and a driver that never answers blocks the child instead of this process.
"""

import fcntl
import gc
import os
import pickle
import signal
import stat
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final, NoReturn

from base.kernel.syscalls import die_with_parent, libc

_STANDARD: Final = 3  # stdin, stdout, stderr
# The parent only notes these.  Not SIGHUP, which makes it read its file again.
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


class Child:
    """A child process.  It starts at once.  Its parent must have one thread."""

    def __init__(self, work: Callable[[], object], keeps: Collection[int] = (), *, is_lasting: bool = False) -> None:
        """``work`` returns an object that can be pickled; ``keeps`` are the sockets that it needs.  A lasting child
        dies with its parent, and holds none of the parent's locks, pipes and events.  Raises OSError."""
        libc.malloc_trim(0)  # what was freed, the child would copy
        reader, writer = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        if not self._pid:
            _answer(writer, work, keeps, parent if is_lasting else None)
        os.close(writer)
        self.fd: Final = reader
        """Becomes readable when the child has ended, or is about to."""

    def answer(self) -> Any:
        """Wait for the child's end; return the work's result.  Call it once.  Raises ChildProcessError, with the
        child's status, if there is no result; OSError."""
        answer, is_whole = None, False
        # Do not read to the pipe's end: a process that the work forked may hold it open for long.
        with os.fdopen(self.fd, "rb") as pipe, suppress(EOFError, pickle.UnpicklingError):
            answer, is_whole = pickle.load(pipe), True  # noqa: S301  # from our own child
        _, status = os.waitpid(self._pid, 0)
        if status or not is_whole:
            raise ChildProcessError(f"ended with status {os.waitstatus_to_exitcode(status)}")
        return answer

    def leave(self) -> None:
        """Ask the child to end, without waiting: nothing ends a process that sleeps in a driver.  Call it instead of
        ``answer``."""
        os.close(self.fd)
        os.kill(self._pid, signal.SIGTERM)

    def end(self) -> int:
        """Kill the child at once; return its exit status.  Call it instead of ``answer``."""
        os.close(self.fd)
        os.kill(self._pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def _answer(writer: int, work: Callable[[], object], keeps: Collection[int], parent: int | None) -> NoReturn:
    """Send the work's result, and end this process.  ``parent`` is that of a lasting child."""
    status = 1
    try:
        gc.disable()  # a collection would write to each object that the parent shares
        signal.set_wakeup_fd(-1)
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
        if parent:
            die_with_parent(parent)
        _close_inherited((*keeps, writer), is_lasting=bool(parent))
        data = pickle.dumps(work())
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(data)
        status = 0
    except Exception:  # noqa: BLE001  # whatever it is: this process must not continue as a second parent
        import traceback  # noqa: PLC0415

        traceback.print_exc()
    finally:
        os._exit(status)


def _close_inherited(keeps: Collection[int], *, is_lasting: bool) -> None:
    """Close the parent's other sockets: while the child holds one, the peer does not notice that the parent closed it.
    A lasting child closes all but files for reading: the frozen program reads its modules from one."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the listing's own descriptor
            if fd >= _STANDARD and fd not in keeps:
                mode, how = os.fstat(fd).st_mode, fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
                is_for_reading = how == os.O_RDONLY and (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
                if stat.S_ISSOCK(mode) or (is_lasting and not is_for_reading):
                    os.close(fd)
