#!/bin/bash
# grpclib-close.sh   Show that grpclib's Channel.close() leaves the connection open if the server has not read the request.
#
# Software    grpclib, the gRPC library for asyncio, in the version below, with its dependencies as of that version.
# Behaviour   A server resets a call before it has read the whole request.  The call raises StreamTerminatedError, and the
#             client closes its channel.  The socket stays open: asyncio closes a transport after all data was written, and
#             the server reads no more.  After asyncio.run the loop is closed, so nothing can write the rest any more.
# Effect      A daemon that makes a call now and then keeps a descriptor for each such call, until garbage collection.
# Remedy      Abort the transport when the call is over (base/grpc.py).
#
# Needs Python 3.11 or later with venv and pip; no root.  The packages go into a temporary folder.  The output of 2026-11-28:
#
#   grpclib 0.4.9
#   the call ended with StreamTerminatedError
#   1 socket is open after Channel.close() and asyncio.run()
#
# It ends with 0 if the output is the same, and with 1 if the behaviour has changed or the version is not available.
set -euo pipefail

version=0.4.9
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install \
    "grpclib==$version" h2==4.4.1 hpack==4.2.0 hyperframe==6.1.0 multidict==7.2.1
cat >"$work/show.py" <<'END'
import asyncio
import gc
import os
import socket
import struct
import sys
import threading

import grpclib
import grpclib.client


class Request:
    def SerializeToString(self):
        return bytes(10_000_000)


def frame(kind, stream, body):
    return struct.pack(">HBBBI", len(body) >> 8, len(body) & 255, kind, 0, stream) + body


def serve(listener, over):
    sock, _ = listener.accept()
    # SETTINGS with a large window, WINDOW_UPDATE of the connection; then RST_STREAM of the call.
    sock.sendall(frame(4, 0, struct.pack(">HI", 4, 1 << 24)) + frame(8, 0, struct.pack(">I", 1 << 24)))
    read = 0
    while read < 1_000_000:
        read += len(sock.recv(1 << 16))
    sock.sendall(frame(3, 1, struct.pack(">I", 7)))
    over.wait(60)
    sock.close()


async def call(path):
    channel = grpclib.client.Channel(path=path)
    try:
        await grpclib.client.UnaryUnaryMethod(channel, "/t.Test/Echo", Request, Request)(Request())
    finally:
        channel.close()


def sockets():
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return {os.readlink(link) for link in links if os.path.exists(link) and "socket:" in os.readlink(link)}


path = sys.argv[1]
over = threading.Event()
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(path)
    listener.listen()
    thread = threading.Thread(target=serve, args=(listener, over))
    thread.start()
    gc.disable()
    before = sockets()
    ended = "an answer"
    try:
        asyncio.run(call(path))
    except Exception as e:
        ended = type(e).__name__
    left = len(sockets() - before) - 1  # the server's end
    over.set()
    thread.join()
print("grpclib", grpclib.__version__)
print("the call ended with", ended)
print(left, "socket is open after Channel.close() and asyncio.run()")
END
said=$("$work/venv/bin/python" -W ignore "$work/show.py" "$work/s.sock")
echo "$said"
[[ $said == "grpclib $version
the call ended with StreamTerminatedError
1 socket is open after Channel.close() and asyncio.run()" ]] || { echo "the behaviour has changed" >&2 && exit 1; }
