"""The server of metrics as a process, for tests that are its peers: `python metrics_server.py ADDRESS LINES PATIENCE`.

It runs until its stdin ends.  Its page is long, and says when it was begun and made.
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
    """The process, and the port that it has been given, 0 at a path."""

    port: int
    pid: int

    def descriptors(self) -> int:
        """How many it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


@contextmanager
def serving(address: str = "", lines: int = LINES, patience: float = 10) -> Iterator[Metrics]:
    process = subprocess.Popen(
        [sys.executable, __file__, address, str(lines), str(patience)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
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


def main(address: str, lines: str, patience: str) -> None:
    from node.loop import Loop  # noqa: PLC0415
    from node.metrics import http  # noqa: PLC0415
    from node.metrics.address import Address, parse  # noqa: PLC0415
    from node.metrics.collection import Collection  # noqa: PLC0415

    http.TIMEOUT = float(patience)  # type: ignore[misc]
    loop = Loop()
    loop.watch(0, loop.stop)

    def make() -> tuple[bytes, tuple[str, ...]]:
        began = time.monotonic()
        page = "".join(LINE % number for number in range(int(lines)))
        return f"{page}made {began} {time.monotonic()}\n".encode(), ()

    collection = Collection(loop, make, lambda _: None)
    listener = (parse(address) if address else Address(host="127.0.0.1")).listen()
    name = listener.getsockname()
    server = http.Server(loop, listener, collection.ask, collection.withdraw)
    print("ready", name[1] if isinstance(name, tuple) else 0, flush=True)
    loop.run()
    server.close()
    collection.close()
    loop.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
