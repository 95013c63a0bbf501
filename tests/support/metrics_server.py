"""The metrics server as a process, for tests that are its peers: `python metrics_server.py ADDRESS LINES HURRY`.

It runs until its stdin ends.  HURRY divides the time limit of peers.  The page is long, and states when the server
began and finished it.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINE = 'hpn_line{number="%d"} 1\n'
LINES = 20_000


@dataclass(frozen=True)
class Metrics:
    """The process, and its port; 0 if it listens at a path."""

    port: int
    pid: int

    def descriptors(self) -> int:
        """Return the number of its open descriptors."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def switches(self) -> int:
        """Return how often its first thread has waited (man 5 proc, status)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@contextmanager
def serving(address: str = "", lines: int = LINES, hurry: float = 1) -> Iterator[Metrics]:
    process = subprocess.Popen(
        [sys.executable, __file__, address, str(lines), str(hurry)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        cwd=ROOT, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout
    try:
        ready, port = process.stdout.readline().split()
        assert ready == b"ready"
        yield Metrics(int(port), process.pid)
        assert process.poll() is None
    finally:
        process.communicate(timeout=60)


def main(address: str, lines: str, hurry: str) -> None:
    from node.metrics import server  # noqa: PLC0415
    from node.metrics.address import Address, parse  # noqa: PLC0415

    server._Handler.timeout /= float(hurry)

    def make() -> bytes:
        began = time.monotonic()
        page = "".join(LINE % number for number in range(int(lines)))
        return f"{page}made {began} {time.monotonic()}\n".encode()

    listener = (parse(address) if address else Address(host="127.0.0.1")).listen()
    name = listener.getsockname()
    print("ready", name[1] if isinstance(name, tuple) else 0, flush=True)
    server.Server(listener, make).serve_until_end_of(sys.stdin)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
