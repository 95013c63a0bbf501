"""The pod's network namespace: opened once per request, recognised again later."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from cni.kernel import netns, rtnl
from cni.kernel.rtnl import Rtnl
from cni.spec import Json


@dataclass(frozen=True)
class Identity:
    """What tells a namespace from every other of this boot.

    The inode alone does not: the next namespace gets the number of the last one that went, and cnitool brings
    path and container id back with it.  ``cookie`` is 0 on kernels before 5.14, where the inode must do.
    """

    inode: int
    cookie: int

    def to_json(self) -> Json:
        return {"inode": self.inode, "cookie": self.cookie}

    @classmethod
    def from_json(cls, body: Json) -> "Identity":
        return cls(int(body["inode"]), int(body["cookie"]))


@dataclass(frozen=True)
class Pod:
    """An open namespace and a netlink socket inside it."""

    path: str
    fd: int
    rtnl: Rtnl

    @property
    def identity(self) -> Identity:
        return Identity(netns.inode(self.fd), netns.cookie(self.rtnl.sock))


@contextmanager
def opened(path: str) -> Iterator[Pod]:
    """The namespace at ``path``.  Raises OSError: ENOENT, or EINVAL if it is no network namespace."""
    with netns.opened(path) as fd, rtnl.opened(fd) as inside:
        yield Pod(path, fd, inside)


@contextmanager
def found(identity: Identity, *paths: str) -> Iterator[Pod | None]:
    """The namespace of that identity: at one of the paths, else wherever a mount or a process has it.

    None if nobody runs in it any more; what was in there is gone with it, or soon will be.
    """
    with ExitStack() as stack:
        for path in filter(None, dict.fromkeys(paths)):
            pod = _entered(stack, path)
            if pod and pod.identity == identity:
                yield pod
                return
        # All of them lead to the same one, so the first that opens decides.
        there = next(filter(None, (_entered(stack, path) for path in netns.holders(identity.inode))), None)
        yield there if there and there.identity == identity else None


def _entered(stack: ExitStack, path: str) -> Pod | None:
    try:
        return stack.enter_context(opened(path))
    except OSError:  # gone, or something else now: either way it is not the one looked for
        return None
