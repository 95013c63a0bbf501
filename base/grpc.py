"""gRPC over unix sockets, by grpclib.  Peers must be root, or our own user; others are neither heard nor trusted."""

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import grpclib.client
import grpclib.server
from google.protobuf.message import DecodeError, Message
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol

from base.kernel import unix_sockets
from base.state import trust

MESSAGE_MOST: Final = 1 << 24  # bytes; the limit of kubelet's own clients.  The library accepts any announced length
_PREFIX: Final = struct.Struct(">BI")
M = TypeVar("M", bound=Message)
Stream = grpclib.server.Stream[Any, Any]

# grpclib logs a traceback for each mistake of a peer.  Our handlers report errors themselves.
_log = logging.getLogger("grpclib")
_log.addHandler(logging.NullHandler())
_log.propagate = False


class Failed(Exception):
    """A call without an answer; the message gives the reason."""


def call(path: Path, method: str, request: Message, kind: type[M], *, timeout: float) -> M:
    """Make one call to a server of root's, or of our own user, and return its answer.  Raises Failed.  ``method``:
    "/v1.PodResourcesLister/List".  ``timeout``: seconds for the whole call."""
    try:
        return asyncio.run(_call(path, method, request, kind, timeout))
    except TimeoutError:
        raise Failed(f"{path} did not answer in {timeout:g} s") from None
    except Failed:
        raise
    except OSError as e:
        raise Failed(f"{path}: {e.strerror or e}") from e
    except Exception as e:  # the library raises many classes for a server that does not speak gRPC
        raise Failed(f"{path}: {getattr(e, 'message', '') or str(e) or type(e).__name__}") from e


async def _call(path: Path, method: str, request: Message, kind: type[M], timeout: float) -> M:
    # Such an error ends the connection, which is enough.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with asyncio.timeout(timeout):
        with closing(_Channel(path=str(path))) as channel:
            return await grpclib.client.UnaryUnaryMethod(channel, method, type(request), kind)(request)


class _Channel(grpclib.client.Channel):
    _transport: asyncio.Transport | None = None

    def close(self) -> None:
        """Close the connection at once.  The library keeps it open until the server has read all that was sent."""
        super().close()
        if self._transport:
            self._transport.abort()

    async def _create_connection(self) -> H2Protocol:
        transport, protocol = await self._loop.create_unix_connection(self._protocol_factory, self._path)
        self._transport = transport
        _, uid = unix_sockets.peer(transport.get_extra_info("socket"))
        if not trust.is_trusted(uid):
            transport.abort()
            raise Failed(f"{self._path} is served by user {uid}, and only root's answers are trusted")
        return protocol


class Server(grpclib.server.Server):
    """Serves peers that are root, or our own user, at ``listener``, until ``close``.  Make it while an event loop runs.
    ``methods`` are by path, as in "/v1beta1.DevicePlugin/Allocate"."""

    def __init__(self, listener: socket.socket, methods: Mapping[str, Handler]) -> None:
        super().__init__([_Service(methods)])
        self._peers = set[asyncio.Transport]()
        self._started = asyncio.get_running_loop().create_task(self.start(sock=listener))

    def close(self) -> None:
        """Close the socket and all connections.  The caller removes the socket's path."""
        if self._started.done():
            super().close()
        else:
            self._started.add_done_callback(lambda _: super(Server, self).close())
        for peer in [*self._peers]:
            peer.abort()

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        return _Peer(protocol, self._peers)


class _Peer(H2Protocol):
    """A connection to a server, in the server's ``peers``."""

    def __init__(self, protocol: H2Protocol, peers: set[asyncio.Transport]) -> None:
        super().__init__(protocol.handler, protocol.config, protocol.h2_config)
        self._peers, self._transport = peers, cast("asyncio.Transport", None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        _, uid = unix_sockets.peer(transport.get_extra_info("socket"))
        if trust.is_trusted(uid):
            self._peers.add(self._transport)
            super().connection_made(transport)
        else:
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._transport in self._peers:
            self._peers.discard(self._transport)
            super().connection_lost(exc)


class _Service:
    def __init__(self, methods: Mapping[str, Handler]) -> None:
        self._methods = methods

    def __mapping__(self) -> Mapping[str, Handler]:
        return self._methods


def unary(kind: type[M], answer: Callable[[M], Message | Awaitable[Message]], report: Callable[[str], None]) -> Handler:
    """A method with one reply per request, at once or later.  It raises GRPCError to choose the peer's status.  Any
    other exception is a bug: ``report`` gets a sentence for the log."""

    async def act(stream: Stream) -> None:
        request = await receive(stream, kind)
        try:
            reply = answer(request)
            if isinstance(reply, Awaitable):
                reply = await reply
        except GRPCError:
            raise
        except Exception as e:
            report(f"{kind.DESCRIPTOR.full_name}: {type(e).__name__}: {e}; please report this")
            raise GRPCError(Status.INTERNAL, "the call failed; see the log of hpn node") from e
        await stream.send_message(reply)

    return Handler(act, Cardinality.UNARY_UNARY, kind, Message)


def watched(kind: type[M], act: Callable[[Stream], Awaitable[None]]) -> Handler:
    """A method that sends the current state, and again after each change, for as long as the peer listens."""

    async def begin(stream: Stream) -> None:
        await receive(stream, kind)
        await act(stream)

    return Handler(begin, Cardinality.UNARY_STREAM, kind, Message)


async def receive(stream: Stream, kind: type[M]) -> M:
    """A peer's only message.  The library itself would wait for four gigabytes.  Raises GRPCError."""
    body = stream._stream  # noqa: SLF001  # the library does not bound a message
    flag, length = _PREFIX.unpack(await body.recv_data(_PREFIX.size) or bytes(_PREFIX.size))
    if flag:
        raise GRPCError(Status.UNIMPLEMENTED, "compressed messages are not supported; send them uncompressed")
    if length > MESSAGE_MOST:
        raise GRPCError(Status.RESOURCE_EXHAUSTED, f"the message has {length} bytes; the limit is {MESSAGE_MOST}")
    try:
        return kind.FromString(await body.recv_data(length))
    except DecodeError as e:
        raise GRPCError(Status.INTERNAL, f"the message is not of type {kind.DESCRIPTOR.full_name}") from e
