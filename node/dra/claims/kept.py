"""The prepared claims on this node: each has a file, a CDI file, and gates."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from base.protocol.errors import CniError, RecordUnreadable
from base.state import claims, durable, gates
from base.state.claims import Claim, ClaimedDevice
from node.dra.claims import cdi
from node.dra.claims.parameters import Refused
from node.dra.claims.status import Status
from node.log import cause


def prepared(uid: str) -> Claim | None:
    """The claim as this boot has it; None if it has none, or cannot read it."""
    with suppress(CniError):
        return claims.load(uid)
    return None


def new(claim: Claim) -> list[ClaimedDevice]:
    """The claim's devices that this boot has not prepared for it yet."""
    before = prepared(claim.uid)
    return [device for device in claim.devices if not (before and device in before.devices)]


def keep(claim: Claim, status: Status) -> None:
    """Put the claim on disk, then its CDI file, and settle its gates, which ``status`` watches.  Raises Refused."""
    is_new = not prepared(claim.uid)
    try:
        claims.save(claim)
        cdi.write(claim)
        status.watch(claim)
        _settle_gates(claim, is_new=is_new)
    except CniError as e:
        raise Refused(e.msg) from e
    except OSError as e:
        raise Refused(f"{cause(e)}; make room, or mount it for writing, on this node") from e


def _settle_gates(claim: Claim, *, is_new: bool) -> None:
    """Open the gates of requests that await no interface.  Of a new claim close the others: files of an earlier boot
    may be left."""
    for number, device in enumerate(claim.devices):
        if (is_new or not device.is_awaited) and claim.first_of_request(number) == number:
            gates.settle(claim, number)


def renew(granted: Callable[[ClaimedDevice], Mapping[str, Any]]) -> None:
    """Write the claims anew whose devices have other members ``granted`` now.  Raises CniError, OSError.

    An RDMA device that moves to a pod, or whose driver is loaded again, gets other numbers.  A runtime reads a
    claim's CDI file for each container that it makes.
    """
    for claim in claims.all_claims():
        now = tuple(replace(one, **granted(one)) for one in claim.devices)
        if now != claim.devices:
            claims.save(renewed := replace(claim, devices=now))
            cdi.write(renewed)


def give_up(uid: str) -> None:
    """Remove the claim, unless an attachment uses it: then only note that it has ended.  Raises CniError, OSError."""
    try:
        claim = claims.load(uid)
    except RecordUnreadable:
        claim = Claim(uid, "", "", (), ())  # enough to be marked, for sweep
    if any(gates.records(uid)):
        if claim and not claim.ended:
            claims.save(replace(claim, ended=True))
        return
    cdi.remove(uid)
    claims.forget(uid)


def sweep() -> None:
    """Remove what is left of ended claims whose attachments have ended too; what fails is tried again."""
    with suppress(CniError, OSError):
        for claim in claims.all_claims():
            if claim.ended:
                with suppress(CniError, OSError):
                    give_up(claim.uid)


def sweep_earlier_boots() -> None:
    """Remove the claims of earlier boots, which a /run on a disk keeps.  kubelet names only those that it needs."""
    for _, claim in claims.listed():
        if claim and claim.boot != durable.boot_id():
            with suppress(CniError, OSError):
                give_up(claim.uid)
