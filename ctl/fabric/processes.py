"""Processes of perftest: started with fixed command lines, watched, and killed with this process.

Their output goes into memory files, so that nothing of them stays behind, however they or this process end.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from base.kernel.syscalls import die_with_parent

_MOST: Final = 65536  # octets of output that are read
_LISTEN: Final = "0A"  # TCP_LISTEN in /proc/net/tcp


class Running:
    """One process.  ``report`` is the path of a memory file that its command line can name."""

    def __init__(self, words: Sequence[str], seconds: float, report: int) -> None:
        """``report`` is that file's descriptor, which this closes at the end.  Raises OSError."""
        self.until = time.monotonic() + seconds
        self._report, self._output = report, os.memfd_create("output")
        try:
            self._process = subprocess.Popen(  # noqa: S603  # a fixed program, and options that we wrote
                words,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=(report,),
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509  # this process has one thread
            )
        except BaseException:
            self._close()
            raise

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        return _text(self._output)

    @property
    def written(self) -> str:
        """The report."""
        return _text(self._report)

    def end(self) -> None:
        """Kill it if it runs, and forget its files."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        for fd in (self._report, self._output):
            os.close(fd)


def report_file() -> tuple[int, str]:
    """A memory file for a report: the descriptor, and its path in a child that inherits it."""
    fd = os.memfd_create("report", 0)
    return fd, f"/proc/self/fd/{fd}"


@contextmanager
def ended(processes: list[Running]) -> Iterator[None]:
    """End all of them when the block ends."""
    try:
        yield
    finally:
        while processes:
            processes.pop().end()


def listens(port: int) -> bool:
    """Whether a TCP socket of this network namespace listens at that port."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/self/net/{table}", encoding="ascii") as lines:
            if any(words[1].endswith(f":{port:04X}") and words[3] == _LISTEN for words in map(str.split, lines)):
                return True
    return False


def _text(fd: int) -> str:
    return os.pread(fd, _MOST, 0).decode(errors="replace")
