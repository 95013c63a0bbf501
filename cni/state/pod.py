"""The pod's network namespace: opened once per request, recognised again later."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from cni.kernel import netns, rtnl
from cni.kernel.rtnl import Rtnl
from cni.protocol.errors import BadEnvironment
from cni.protocol.spec import Json, Request


@dataclass(frozen=True)
class Identity:
    """What tells a namespace from every other of this boot.

    The inode alone does not: the next namespace gets the number of the last one that went, and cnitool brings
    path and container id back with it.  ``cookie`` is 0 on kernels before 5.14, where the inode must do.
    ``mounts`` and ``processes`` say from where it was seen, which is no part of what it is (netns.gone).
    """

    inode: int
    cookie: int
    mounts: int = field(default=0, compare=False)
    processes: int = field(default=0, compare=False)

    @classmethod
    def from_json(cls, body: Json) -> "Identity":
        """A record of before there was a view has none, and so proves nothing."""
        what = int(body["inode"]), int(body["cookie"])
        return cls(*what, int(body.get("mounts", 0)), int(body.get("processes", 0)))


@dataclass(frozen=True)
class Pod:
    """An open namespace and a netlink socket inside it."""

    path: str
    fd: int
    rtnl: Rtnl
    ours: bool = True  # to close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rtnl.sock.close()
        if self.ours:
            os.close(self.fd)

    @property
    def identity(self) -> Identity:
        return Identity(netns.inode(self.fd), netns.cookie(self.rtnl.sock), *netns.view(self.path, self.fd))


@contextmanager
def open_netns(request: Request) -> Iterator[Pod]:
    """CNI_NETNS, for who cannot do without.  Raises BadEnvironment."""
    try:
        pod = _of(request)
    except OSError as e:
        raise BadEnvironment(f"CNI_NETNS={request.netns!r} cannot be opened: {e.strerror}; is the pod gone?") from e
    with pod:
        yield pod


@contextmanager
def find(identity: Identity, path: str, request: Request | None = None) -> Iterator[Pod | None]:
    """The namespace of that identity: where the request says, at the path, else wherever a mount or a process has it.

    None if nobody runs in it any more that we can see; ``is_gone`` says whether that proves anything.
    """
    ways: list[Callable[[], Pod | None]] = [partial(_somewhere, identity)]
    if path and not (request and path == request.netns):
        ways.insert(0, partial(_at, path))
    if request and request.netns:
        ways.insert(0, partial(_of, request))
    for way in ways:
        pod = _if_there(way)
        if pod:
            with pod:
                if pod.identity == identity:
                    yield pod
                    return
    yield None


def is_gone(identity: Identity, path: str) -> bool:
    """Whether it provably is no more, and what was in there with it, or soon will be."""
    with find(identity, path) as pod:
        return pod is None and bool(netns.gone([identity]))


def _of(request: Request) -> Pod:
    """CNI_NETNS.  Raises OSError as ``_at`` does."""
    if request.inside is None:
        return _at(request.netns)
    fd, sock = request.inside
    return Pod(request.netns, fd, rtnl.adopt(sock), ours=False)


def _at(path: str) -> Pod:
    """The namespace at ``path``.  Raises OSError: ENOENT, or EINVAL if it is no network namespace."""
    fd = netns.open_at(path)
    try:
        return Pod(path, fd, rtnl.open_in(fd))
    except BaseException:
        os.close(fd)
        raise


def _somewhere(identity: Identity) -> Pod | None:
    # All of them lead to the same one, so the first that opens decides.
    return next(filter(None, (_if_there(partial(_at, path)) for path in netns.holders(identity.inode))), None)


def _if_there(way: Callable[[], Pod | None]) -> Pod | None:
    try:
        return way()
    except OSError:  # gone, or something else now: either way it is not the one looked for
        return None
