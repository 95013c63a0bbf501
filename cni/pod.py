"""The pod's network namespace: opened once per request, recognised again later."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

from cni.errors import BadEnvironment
from cni.kernel import netns, rtnl
from cni.kernel.rtnl import Rtnl
from cni.spec import Json, Request


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

    @property
    def identity(self) -> Identity:
        return Identity(netns.inode(self.fd), netns.cookie(self.rtnl.sock), *netns.view(self.path, self.fd))


@contextmanager
def opened(path: str) -> Iterator[Pod]:
    """The namespace at ``path``.  Raises OSError: ENOENT, or EINVAL if it is no network namespace."""
    with netns.opened(path) as fd, rtnl.opened(fd) as inside:
        yield Pod(path, fd, inside)


@contextmanager
def of(request: Request) -> Iterator[Pod]:
    """CNI_NETNS.  Raises OSError as ``opened`` does."""
    if request.inside is None:
        with opened(request.netns) as pod:
            yield pod
    else:
        fd, sock = request.inside
        with rtnl.passed(sock) as inside:
            yield Pod(request.netns, fd, inside)


@contextmanager
def given(request: Request) -> Iterator[Pod]:
    """CNI_NETNS, for who cannot do without.  Raises BadEnvironment."""
    with ExitStack() as stack:
        try:
            pod = stack.enter_context(of(request))
        except OSError as e:
            raise BadEnvironment(f"CNI_NETNS={request.netns!r} cannot be opened: {e.strerror}; is the pod gone?") from e
        yield pod


@contextmanager
def found(identity: Identity, path: str, request: Request | None = None) -> Iterator[Pod | None]:
    """The namespace of that identity: where the request says, at the path, else wherever a mount or a process has it.

    None if nobody runs in it any more that we can see; ``is_gone`` says whether that proves anything.
    """
    with ExitStack() as stack:
        ways = [of(request)] if request and request.netns else []
        if path and not (request and path == request.netns):
            ways.append(opened(path))
        for way in ways:
            pod = _entered(stack, way)
            if pod and pod.identity == identity:
                yield pod
                return
        # All of them lead to the same one, so the first that opens decides.
        there = next(filter(None, (_entered(stack, opened(p)) for p in netns.holders(identity.inode))), None)
        yield there if there and there.identity == identity else None


def is_gone(identity: Identity, path: str) -> bool:
    """Whether it provably is no more, and what was in there with it, or soon will be."""
    with found(identity, path) as pod:
        return pod is None and bool(netns.gone([identity]))


def _entered(stack: ExitStack, namespace: AbstractContextManager[Pod]) -> Pod | None:
    try:
        return stack.enter_context(namespace)
    except OSError:  # gone, or something else now: either way it is not the one looked for
        return None
