"""A process of ours that does one piece of work, hands over what comes of it, and ends.

What the work imports is gone with it, and a driver that never answers holds up that process and not this one.
"""

import os
import pickle
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final, NoReturn

_STANDARD: Final = 3  # stdin, stdout, stderr
# The parent only takes note of these.  Not SIGHUP, by which it is told to read its file anew.
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


class Child:
    """It begins at once.  To be made by a process with one thread."""

    def __init__(self, work: Callable[[], object], keeps: Collection[int] = ()) -> None:
        """``work`` returns what can be pickled; ``keeps`` are the sockets that it needs.  Raises OSError."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            self._pid = os.fork()
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        if not self._pid:
            _answer(writer, work, keeps)
        os.close(writer)
        self.fd: Final = reader
        """Readable when it has ended, or is about to."""

    def answer(self) -> Any:
        """Wait until it has ended; what the work has returned.  To be called once.

        Raises ChildProcessError, which says how it ended, if that is nothing; OSError.
        """
        answer, is_whole = None, False
        # Not to the pipe's end: a process that the work has forked may hold that for long.
        with os.fdopen(self.fd, "rb") as pipe, suppress(EOFError, pickle.UnpicklingError):
            answer, is_whole = pickle.load(pipe), True  # noqa: S301  # of our own child
        _, status = os.waitpid(self._pid, 0)
        if status or not is_whole:
            raise ChildProcessError(f"ended with status {os.waitstatus_to_exitcode(status)}")
        return answer

    def leave(self) -> None:
        """Tell it to end, and do not wait: nothing ends a process that sleeps in a driver.  To be called in place of
        ``answer``."""
        os.close(self.fd)
        os.kill(self._pid, signal.SIGTERM)  # guard: ends-with-hpn-node

    def end(self) -> None:
        """End it now, whatever it does.  To be called in place of ``answer``."""
        os.close(self.fd)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _answer(writer: int, work: Callable[[], object], keeps: Collection[int]) -> NoReturn:
    """Write what the work returns, and end this process."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)  # guard: ends-by-sigterm
        _close_sockets(keeps)  # guard: sockets-of-the-parent
        data = pickle.dumps(work())
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(data)
        status = 0
    except Exception:  # noqa: BLE001  # whatever it is, this process must not go on as a second parent
        import traceback  # noqa: PLC0415

        traceback.print_exc()
    finally:
        os._exit(status)


def _close_sockets(keeps: Collection[int]) -> None:
    """Close the parent's other sockets: while we have one, its peer would not see that the parent has closed it.  Files
    stay open, because the frozen program's modules are read from one."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        with suppress(OSError):  # that of the listing
            if fd >= _STANDARD and fd not in keeps and os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                os.close(fd)
