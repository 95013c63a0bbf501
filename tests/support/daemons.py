"""A daemon that a test runs, and its log."""

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path


class Daemon:
    """A daemon from ``start`` to ``end``; ``said`` holds the lines of its log, which is its stderr."""

    def __init__(self) -> None:
        self.said = list[str]()

    def start(self, argv: Sequence[str], folder: Path) -> None:
        """Run the daemon in that directory."""
        self.process = subprocess.Popen(argv, cwd=folder, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def end(self) -> int:
        """Terminate the daemon if it still runs, wait, and return its exit status.  Raises TimeoutExpired."""
        self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join()
            assert self.process.stderr
            self.process.stderr.close()

    def reload(self) -> None:
        """Make the daemon read its configuration again."""
        os.kill(self.process.pid, signal.SIGHUP)

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.said.append(line.removesuffix("\n"))
