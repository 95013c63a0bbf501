"""The decision on the claims of one call of kubelet, in child processes: one may wait for the API server."""

import signal
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from base.protocol.errors import CniError
from base.protocol.spec import Json
from base.state.claims import Claim
from node.dra.claims import kept, prepare
from node.dra.claims.parameters import Refused
from node.dra.claims.prepare import Asked, Find, Found
from node.dra.helpers import Helpers
from node.log import cause

_MOST: Final = 42  # seconds for one piece of work: kubelet waits 45

# Each claim by its UID as the API server has it, None if it has none, or why it was not read.
Documents = Mapping[str, Json | str | None]


async def decided(
    helpers: Helpers, kubeconfig: str, asked: Sequence[Asked], find: Find, latest: float
) -> Mapping[str, Claim | str]:
    """Decide each claim in child processes; return the results by UID: the claim, or why it cannot be prepared.

    One piece of work reads the claims, another one decides.  In between this process finds their devices, because it
    knows them.  After ``latest`` (of the monotonic clock) no more claims are read.
    """
    try:
        documents = await helpers.do(partial(_read, kubeconfig, asked, latest))
        named = {one for document in documents.values() for one in prepare.devices(document)}
        devices = {one: find(*one) for one in named}
        answer, accepted = await helpers.do(partial(_decide, asked, documents, devices))
    except ChildProcessError as e:
        return {one.uid: f"the process that reads the claim {e}; see the log of hpn node" for one in asked}
    except OSError as e:
        return {one.uid: f"no process can be started on this node: {e.strerror}" for one in asked}
    prepare.remember(accepted)
    return answer


def _read(kubeconfig: str, asked: Sequence[Asked], latest: float) -> Documents:
    from node.dra import api  # noqa: PLC0415  # for the child only

    signal.alarm(_MOST)
    found = dict[str, Json | str | None]()
    for one in asked:
        try:
            server = api.kept(kubeconfig)
            if time.monotonic() > latest:
                found[one.uid] = f"{one.title} was not read: {server.url} answers too slowly; kubelet tries again"
            else:
                found[one.uid] = server.claim(one.namespace, one.name)
        except CniError as e:
            found[one.uid] = e.msg
        except OSError as e:
            found[one.uid] = f"{one.title} was not read: {cause(e)}; kubelet tries again"
    return found


def _decide(
    asked: Sequence[Asked], documents: Documents, devices: Mapping[tuple[str, str], Found | None]
) -> tuple[Mapping[str, Claim | str], Mapping[bytes, str]]:
    """The decisions, and the configurations that are accepted by them."""
    signal.alarm(_MOST)
    found, known = dict[str, Claim | str](), prepare.accepted().keys()
    for one in asked:
        document = documents[one.uid]
        if isinstance(document, str):
            found[one.uid] = document
            continue
        try:
            found[one.uid] = prepare.decide(one, document, lambda *name: devices.get(name), kept.prepared(one.uid))
        except Refused as e:
            found[one.uid] = str(e)
        except CniError as e:
            found[one.uid] = e.msg
        except OSError as e:
            found[one.uid] = f"{one.title} was not read: {cause(e)}; kubelet tries again"
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            found[one.uid] = f"{one.title} is not as the API server makes it: {type(e).__name__}: {e}"
    return found, prepare.accepted(known)
