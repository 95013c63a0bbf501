"""A proxy between nodes and a store's servers, which loses, delays and refuses requests on command and sets their
clock.

    proxy.py {"servers": [URL...], "clock": path, "record": path, "seed": 7, "cert": path, "key": path}

It prints its own URLs, one for each server.  Each line of its input is an object of rates, such as {"lost": 0.1}.  A
key of RATES sets the share of requests with that fault; "jump" sets the servers' clock forward by seconds.  The answer
counts the occurrences of each fault.
"""

import asyncio
import io
import json
import random
import ssl
import sys
from collections import Counter
from email.utils import formatdate
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from checker.clock import Clock
from checker.record import Record, recording

# The first three faults precede the request to the server; the next three follow it.
BUSY, BROKEN, DROPPED = "busy", "broken", "dropped"
LOST, FAILED, SILENT = "lost", "failed", "silent"
# The proxy answers that a change conflicts with the current state.  DENIED refuses a valid change; TWICE sends it
# twice, so the second one conflicts with the first.
DENIED, TWICE = "denied", "twice"
RATES = (BUSY, BROKEN, DROPPED, DENIED, LOST, FAILED, SILENT, TWICE)
# A condition that no etcd key meets.
_NEVER = {"target": "VERSION", "result": "LESS", "version": "0"}
# Longer than a node waits for an answer.
SILENCE = 3.5


class Proxy:
    def __init__(self, clock: Clock, record: Record, seed: int) -> None:
        self._clock, self._record, self._random = clock, record, random.Random(seed)
        self.rates: dict[str, float] = {}
        self.counts, self._asked = Counter[str](), 0
        self._tasks = set[asyncio.Task[None]]()

    def begin(self, server: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection.  Keep a reference to the task, because the loop holds none."""
        task = asyncio.get_running_loop().create_task(self.serve(server, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def serve(self, server: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _request(reader):
                fault = next((f for f in RATES if self._random.random() < self.rates.get(f, 0)), "")
                if fault in (DENIED, TWICE) and not _compares(request, fault):
                    fault = ""
                self.counts[fault or "well"] += 1
                self._asked += 1
                number = self._asked
                self._note("asked", number=number, fault=fault, **_in_words(request))
                if fault == DROPPED:
                    return
                if fault in (BUSY, BROKEN):
                    answer = (429, b'{"message": "too many"}') if fault == BUSY else (500, b'{"message": "broken"}')
                elif fault == DENIED:
                    answer = await _denied(server, request)
                else:
                    answer = await _answer(server, request)
                if fault == TWICE:
                    answer = await _answer(server, request)
                self._note("answered", number=number, status=answer[0])
                if fault == SILENT:
                    # time: what it is asked for
                    await asyncio.sleep(SILENCE)
                if fault in (LOST, SILENT):
                    return
                writer.write(self._head(*((500, b"{}") if fault == FAILED else answer)))
                await writer.drain()
        except (OSError, HTTPException, asyncio.IncompleteReadError):  # the server or the node is killed
            pass
        finally:
            writer.close()

    def _note(self, what: str, **about: Any) -> None:
        self._record.jump = self.rates.get("jump", 0)
        self._record.note(what, **about)

    def _head(self, status: int, body: bytes) -> bytes:
        date = formatdate(self._clock.now() + self.rates.get("jump", 0), usegmt=True)
        return f"HTTP/1.1 {status} It\r\nDate: {date}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def _request(reader: asyncio.StreamReader) -> bytes:
    """Read one request in the form to forward; empty at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    body = await reader.readexactly(length) if length else b""
    return head[:-2] + b"Connection: close\r\n\r\n" + body


def _in_words(request: bytes) -> dict[str, str]:
    head, _, body = request.partition(b"\r\n\r\n")
    method, path = head.split(b" ", 2)[:2]
    return {"request": f"{method.decode()} {path.decode()}", "body": body.decode()}


def _compares(request: bytes, fault: str) -> bool:
    """Report whether this fault fits the request: it changes the store on condition that something is unchanged.

    DENIED never applies to the creation of an etcd key, because etcd's denial would show an existing key.
    """
    if _is_for_etcd(request):
        return (b'"target":"MOD"' if fault == DENIED else b'"compare":[{') in request
    return request.startswith((b"POST ", b"PUT ", b"DELETE "))


def _is_for_etcd(request: bytes) -> bool:
    return request.startswith(b"POST /v3/")


async def _denied(server: str, request: bytes) -> tuple[int, bytes]:
    """Answer a change as if another node was faster.  Raises OSError, HTTPException."""
    if not _is_for_etcd(request):
        return 409, b'{"message": "the object has been modified"}'
    head, _, text = request.partition(b"\r\n\r\n")
    asked = json.loads(text)
    asked["compare"].append({**_NEVER, "key": asked["compare"][0]["key"]})
    body = json.dumps(asked).encode()
    fields = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length:")]
    return await _answer(server, b"\r\n".join([*fields, b"Content-Length: %d" % len(body), b"", body]))


async def _answer(server: str, request: bytes) -> tuple[int, bytes]:
    """Raises OSError, HTTPException."""
    url = urlsplit(server)
    trusting = ssl._create_unverified_context() if url.scheme == "https" else None
    reader, writer = await asyncio.open_connection(url.hostname, url.port, ssl=trusting)
    try:
        writer.write(request)
        raw = await reader.read(-1)
    finally:
        writer.close()
    answer = HTTPResponse(_Read(raw))  # type: ignore[arg-type]
    answer.begin()
    return answer.status, answer.read()


class _Read:
    """Received bytes with the interface that HTTPResponse requires of a socket."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._raw)


async def main(settings: dict[str, Any], proxy: Proxy) -> None:
    urls, secured = [], None
    if "cert" in settings:
        secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        secured.load_cert_chain(settings["cert"], settings["key"])
    for server in settings["servers"]:
        one = await asyncio.start_server(
            lambda r, w, server=server: proxy.begin(server, r, w), "127.0.0.1", 0, ssl=secured, backlog=2048
        )
        urls.append(f"http{'s' if secured else ''}://127.0.0.1:{one.sockets[0].getsockname()[1]}")
    print(json.dumps(urls), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        proxy.rates = json.loads(line)
        print(json.dumps(proxy.counts), flush=True)


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    time = Clock(told["clock"])
    with recording(told["record"], time) as record:
        asyncio.run(main(told, Proxy(time, record, told["seed"])))
