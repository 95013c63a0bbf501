"""A server of base.grpc as a process, for tests that are its peers: `python grpc_server.py SOCKET`.

It runs until its stdin ends.  The messages of its methods contain only bytes.
"""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import BytesValue

ROOT = Path(__file__).parents[2]
DEVICES = b"".join(
    b"\n\x1f\n\x0c0000:3b:%02x.%x\x12\x07Healthy\x1a\x06\n\x04\x08\x01  " % (i >> 3, i & 7) for i in range(3000)
)


class Served:
    """The server's process, seen from outside."""

    def __init__(self, path: Path, process: "subprocess.Popen[bytes]") -> None:
        self.path = path
        self.process = process

    @property
    def peak(self) -> int:
        """Return the peak memory so far, in bytes (man 5 proc, VmHWM)."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(60)
        sock.connect(str(self.path))
        return sock


def asking(channel: grpc.Channel, method: str) -> Any:
    """Return the method as a function from bytes to bytes."""
    return channel.unary_unary(method, _packed, _unpacked)


def listen(channel: grpc.Channel) -> Any:
    return channel.unary_stream("/t.Test/Watch", _packed, _unpacked)


def _packed(data: bytes) -> bytes:
    return BytesValue(value=data).SerializeToString()


def _unpacked(message: bytes) -> bytes:
    return BytesValue.FromString(message).value


@contextmanager
def serving(path: Path) -> Iterator[Served]:
    process = subprocess.Popen(
        [sys.executable, __file__, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
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


async def main(path: str) -> None:
    from grpclib.const import Status  # noqa: PLC0415
    from grpclib.exceptions import GRPCError  # noqa: PLC0415

    from base.grpc import Server, Stream, unary, watched  # noqa: PLC0415

    loop, ended, told = asyncio.get_running_loop(), asyncio.Event(), [b""]
    loop.set_exception_handler(lambda *_: None)
    loop.add_reader(0, ended.set)
    watchers = set[asyncio.Event]()

    async def watch(stream: Stream) -> None:
        watchers.add(watcher := asyncio.Event())
        try:
            await stream.send_message(BytesValue(value=DEVICES))
            while await watcher.wait():
                watcher.clear()
                await stream.send_message(BytesValue(value=told[0]))
        finally:
            watchers.discard(watcher)

    def tell(message: BytesValue) -> BytesValue:
        told[0] = message.value
        for watcher in watchers:
            watcher.set()
        return BytesValue(value=b"%d" % len(watchers))

    def refuse(message: BytesValue) -> BytesValue:
        raise GRPCError(Status.FAILED_PRECONDITION, message.value.decode())

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    methods = {
        "/t.Test/Echo": unary(BytesValue, lambda message: message, say),
        "/t.Test/Watch": watched(BytesValue, watch),
        "/t.Test/Tell": unary(BytesValue, tell, say),
        "/t.Test/Refuse": unary(BytesValue, refuse, say),
        "/t.Test/Break": unary(BytesValue, lambda message: BytesValue(value=b"%d" % (1 // len(message.value))), say),
        "/t.Other/Echo": unary(BytesValue, lambda message: BytesValue(value=message.value[::-1]), say),
    }
    server = Server(listener, methods)
    print("ready", flush=True)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
