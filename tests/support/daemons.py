"""A daemon that a test runs, and the lines that it says."""

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path


class Daemon:
    """It runs from ``start`` to ``end``; ``said`` has the lines of its log, which is its stderr."""

    def __init__(self) -> None:
        self.said = list[str]()

    def start(self, argv: Sequence[str], folder: Path) -> None:
        """Run it in that directory."""
        self.process = subprocess.Popen(argv, cwd=folder, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def end(self) -> int:
        """Ask it to end, if it still runs, and wait for that; its exit status.  Raises TimeoutExpired."""
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
        """Have it read its configuration again."""
        os.kill(self.process.pid, signal.SIGHUP)

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.said.append(line.removesuffix("\n"))
