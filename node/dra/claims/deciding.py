"""The decision on the claims of one call of kubelet, in a child process: it may wait for the API server."""

import asyncio
import signal
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from base.child_process import Child
from base.protocol.errors import CniError
from base.state.claims import Claim
from node.dra.claims import kept, prepare
from node.dra.claims.parameters import Refused
from node.dra.claims.prepare import Asked, Find
from node.log import cause

_MOST: Final = 42  # seconds for one child process: kubelet waits 45


async def decided(kubeconfig: str, asked: Sequence[Asked], find: Find, latest: float) -> Mapping[str, Claim | str]:
    """Decide each claim in a child process; return the results by UID: the claim, or why it cannot be prepared.

    The child waits for the API server, and what it imports ends with it.  After ``latest`` (of the monotonic clock) it
    reads no more claims.
    """
    loop = asyncio.get_running_loop()
    try:
        child = Child(partial(_decide, kubeconfig, asked, find, latest))
    except OSError as e:
        return {one.uid: f"no process can be started on this node: {e.strerror}" for one in asked}
    ended = asyncio.Event()
    loop.add_reader(child.fd, ended.set)
    try:
        await ended.wait()
    except asyncio.CancelledError:
        loop.remove_reader(child.fd)
        child.end()
        raise
    loop.remove_reader(child.fd)
    answer: Mapping[str, Claim | str]
    try:
        answer, accepted = child.answer()
    except (OSError, EOFError) as e:
        return {one.uid: f"the process that reads the claim {e}; see the log of hpn node" for one in asked}
    prepare.remember(accepted)
    return answer


def _decide(
    kubeconfig: str, asked: Sequence[Asked], find: Find, latest: float
) -> tuple[Mapping[str, Claim | str], Mapping[bytes, str]]:
    """The decisions, and the configurations that are accepted by now."""
    signal.alarm(_MOST)
    found = dict[str, Claim | str]()
    try:
        from node.dra import api  # noqa: PLC0415  # for the child only

        server = api.opened(kubeconfig)
    except (CniError, OSError) as e:
        why = cause(e) if isinstance(e, OSError) else e.msg
        return {one.uid: why for one in asked}, prepare.accepted()
    for one in asked:
        if time.monotonic() > latest:
            found[one.uid] = f"{one.title} was not read: {server.url} answers too slowly; kubelet tries again"
            continue
        try:
            found[one.uid] = prepare.decide(one, server.claim(one.namespace, one.name), find, kept.prepared(one.uid))
        except Refused as e:
            found[one.uid] = str(e)
        except CniError as e:
            found[one.uid] = e.msg
        except OSError as e:
            found[one.uid] = f"{one.title} was not read: {cause(e)}; kubelet tries again"
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            found[one.uid] = f"{one.title} is not as the API server makes it: {type(e).__name__}: {e}"
    return found, prepare.accepted()
