"""The pod's network namespace: opened once per request, and identified again by later requests."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Self

from base.kernel import netns, nsid, rtnl
from base.kernel.links import Link
from base.kernel.rtnl import Rtnl
from base.protocol.errors import BadEnvironment, InvalidNetns
from base.protocol.spec import Json, Request


@dataclass(frozen=True)
class Identity:
    """A namespace's identity, unique within this boot.

    - ``inode``: not enough alone, because a new namespace reuses an ended one's number, and cnitool even reuses path
      and container id.
    - ``cookie``: never reused; 0 before Linux 5.14, where only the inode is available.
    - ``mounts``, ``processes``: the observer's mount and PID namespace (netns.gone); not compared.
    """

    inode: int
    cookie: int
    mounts: int = field(default=0, compare=False)
    processes: int = field(default=0, compare=False)

    @classmethod
    def from_json(cls, body: Json) -> "Identity":
        """The inverse of ``vars``.  Older records lack mounts and processes, so they never prove a pod gone.  Raises
        KeyError, ValueError, TypeError."""
        what = int(body["inode"]), int(body["cookie"])
        return cls(*what, int(body.get("mounts", 0)), int(body.get("processes", 0)))


@dataclass(frozen=True)
class Pod:
    """An open namespace, and a netlink socket inside.  ``ours``: we close the descriptor."""

    path: str
    fd: int
    rtnl: Rtnl
    ours: bool = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rtnl.sock.close()
        if self.ours:
            os.close(self.fd)

    @cached_property
    def identity(self) -> Identity:
        """The namespace's identity, as observed by this process."""
        return Identity(netns.inode(self.fd), netns.cookie(self.rtnl.sock), *netns.view(self.path, self.fd))

    @cached_property
    def before(self) -> tuple[set[str], list[Link]]:
        """The names and altnames of the links, and the links that have a lower device, in any namespace.

        As first read, before ADD makes its own.
        """
        return nsid.names_and_links(self.rtnl)

    def has_as_port(self, link: Link) -> bool:
        """Whether the link is a port of a bridge, bond or team, whose MAC, MTU, addresses and name it then has.  A VRF
        leaves a link all of these."""
        over = self.rtnl.link(index=link.enslaved) if link.enslaved else None
        return over is not None and over.kind != "vrf"


def open_netns(request: Request) -> Pod:
    """CNI_NETNS, opened.  Raises BadEnvironment if it cannot be opened."""
    try:
        return _open_requested(request)
    except OSError as e:
        raise BadEnvironment(f"CNI_NETNS={request.netns!r} cannot be opened: {e.strerror}; is the pod gone?") from e


@contextmanager
def open_pod(request: Request) -> Iterator[Pod]:
    """Open CNI_NETNS.  Raises BadEnvironment; InvalidNetns for the plugin's own namespace, because ADD would change the
    host."""
    with open_netns(request) as pod:
        if netns.is_own(pod.fd) and request.var("CNI_NETNS_OVERRIDE").lower() not in ("1", "true"):
            raise InvalidNetns(f"CNI_NETNS={request.netns!r} is the plugin's own namespace; give the pod's")
        yield pod


@contextmanager
def find(identity: Identity, path: str, request: Request | None = None) -> Iterator[Pod | None]:
    """The namespace with that identity: at CNI_NETNS, at the path, or at any visible mount or process.  None if no
    visible mount or process holds it any more; ``gone`` decides whether that proves anything."""
    ways: list[Callable[[], Pod | None]] = [partial(_open_held, identity)]
    if path and not (request and path == request.netns):
        ways.insert(0, partial(_open_at, path))
    if request and request.netns:
        ways.insert(0, partial(_open_requested, request))
    for way in ways:
        pod = _try(way)
        if pod:
            with pod:
                if pod.identity == identity:
                    yield pod
                    return
    yield None


def gone(seen: Sequence[tuple[Identity, str]]) -> list[bool]:
    """For each namespace and its path, whether it has provably ended: then all inside has ended, or soon will.  It
    scans the processes once for all namespaces."""
    sought = [identity for identity, path in seen if not _is_at(identity, path)]
    absent = {_seen_from(one) for one in netns.gone(sought)}
    return [_seen_from(identity) in absent for identity, _ in seen]


def _seen_from(identity: Identity) -> tuple[int, ...]:
    """An identity with its observer: what is gone for an observer here may exist for others."""
    return tuple(vars(identity).values())


def _is_at(identity: Identity, path: str) -> bool:
    pod = _try(partial(_open_at, path))
    if pod is None:
        return False
    with pod:
        return pod.identity == identity


def _open_requested(request: Request) -> Pod:
    """CNI_NETNS, by the launcher's descriptors or by its path.  Raises OSError as ``_open_at`` does."""
    if request.inside is None:
        return _open_at(request.netns)
    fd, sock = request.inside
    return Pod(request.netns, fd, rtnl.adopt(sock), ours=False)


def _open_at(path: str) -> Pod:
    """The namespace at ``path``, opened.  Raises OSError: ENOENT, or EINVAL if it is not a network namespace."""
    fd = netns.open_at(path)
    try:
        return Pod(path, fd, rtnl.open_in(fd))
    except BaseException:
        os.close(fd)
        raise


def _open_held(identity: Identity) -> Pod | None:
    # All holders lead to the same namespace, so the first that can be opened is enough.
    return next(filter(None, (_try(partial(_open_at, path)) for path in netns.holders(identity.inode))), None)


def _try(way: Callable[[], Pod | None]) -> Pod | None:
    try:
        return way()
    except OSError:  # it is gone, or no namespace, so not the wanted one
        return None
