"""The server of metrics as a process, for tests that are its peers: `python metrics_server.py ADDRESS LINES`.

It runs until its stdin ends.  Its page is long, and says how often one was made.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINE = 'hpn_line{number="%d"} 1\n'
LINES = 20_000


@contextmanager
def serving(address: str, lines: int = LINES) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, __file__, address, str(lines)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
        assert process.poll() is None
    finally:
        process.communicate(timeout=30)


def main(address: str, lines: str) -> None:
    from node.loop import Loop  # noqa: PLC0415
    from node.metrics.address import parse  # noqa: PLC0415
    from node.metrics.collection import Collection  # noqa: PLC0415
    from node.metrics.http import Server  # noqa: PLC0415

    loop = Loop()
    loop.watch(0, loop.stop)

    def make() -> tuple[bytes, tuple[str, ...]]:
        page = "".join(LINE % number for number in range(int(lines)))
        return f"{page}made {time.monotonic()}\n".encode(), ()

    collection = Collection(loop, make, lambda _: None)
    server = Server(loop, parse(address).listen(), collection.ask, collection.withdraw)
    print("ready", flush=True)
    loop.run()
    server.close()
    collection.close()
    loop.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
