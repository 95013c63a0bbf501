"""A server of node.grpc's as a process, for tests that are its peers: `python grpc_server.py SOCKET [PATIENCE]`.

It runs until its stdin ends.  With PATIENCE a request may take so many seconds, and frames are counted for so many.
Its methods speak in plain bytes, as grpcio does without serializers.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEVICES = b"".join(
    b"\n\x1f\n\x0c0000:3b:%02x.%x\x12\x07Healthy\x1a\x06\n\x04\x08\x01  " % (i >> 3, i & 7) for i in range(3000)
)


class Served:
    """The process, seen from outside."""

    def __init__(self, path: Path, process: "subprocess.Popen[bytes]") -> None:
        self.path = path
        self.process = process

    @property
    def peak(self) -> int:
        """Bytes of memory at most so far (man 5 proc, VmHWM)."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

    @property
    def ticks(self) -> int:
        """Hundredths of a second that it has computed (man 5 proc, stat)."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(words[11]) + int(words[12])

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(60)
        sock.connect(str(self.path))
        return sock


@contextmanager
def serving(path: Path, *patience: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [sys.executable, __file__, str(path), *patience], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, cwd=ROOT, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    try:
        assert process.stdout.readline() == b"ready\n"
        yield Served(path, process)
        assert process.poll() is None
    finally:
        process.communicate(timeout=60)


def main(path: str, *patience: str) -> None:
    from node.grpc import guard, server  # noqa: PLC0415
    from node.grpc.messages import framed  # noqa: PLC0415
    from node.grpc.server import Watched, Watcher  # noqa: PLC0415
    from node.grpc.status import Failed  # noqa: PLC0415
    from node.loop import Loop  # noqa: PLC0415

    for seconds in patience:
        server.REQUEST_TIMEOUT = guard.SPAN = float(seconds)  # type: ignore[misc]
    loop, watchers = Loop(), set[Watcher]()
    loop.watch(0, loop.stop)

    def began(watcher: Watcher, request: bytes) -> None:
        watchers.add(watcher)
        watcher.tell(framed(request or DEVICES))

    def tell(message: bytes) -> bytes:
        told = framed(message)
        for watcher in list(watchers):
            watcher.tell(told)
        return b"%d" % len(watchers)

    def refuse(message: bytes) -> bytes:
        raise Failed(9, message.decode())

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    methods = {
        "/t.Test/Echo": lambda message: message,
        "/t.Test/Watch": Watched(began, watchers.discard),
        "/t.Test/Tell": tell,
        "/t.Test/Refuse": refuse,
        "/t.Test/Break": lambda message: b"%d" % (1 // len(message)),
        "/t.Other/Echo": lambda message: message[::-1],
    }
    serves = server.Server(loop, listener, methods, lambda sentence: print(sentence, file=sys.stderr, flush=True))
    print("ready", flush=True)
    loop.run()
    serves.close()
    loop.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
