"""Who has the devices of a claim: Prepare's question is ADD's (base/state/owned.py), under the same locks.

An ADD may choose one of the devices while its claim is prepared, and an attachment may have had one before.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from socket import if_nametoindex
from typing import Final

from base.kernel import sysfs
from base.kernel.sysfs import Relatives
from base.protocol import location
from base.protocol.errors import CniError, TryAgain
from base.state import owned
from base.state import pod as pods
from base.state.claims import Claim, ClaimedDevice
from base.state.locks import Lock, Mode
from base.state.owned import Use
from base.state.record import Record
from node.dra.claims.parameters import Refused

# Seconds: kubelet waits 45, and tries again.  An ADD that waits for a driver may keep the lock for longer.
_LONGEST: Final = 10.0
_POLL: Final = 0.02
_SUCCESSOR: Final = "delete one of the two pods, and its successor gets another device"


@asynccontextmanager
async def alone(devices: Sequence[ClaimedDevice]) -> AsyncIterator[None]:
    """Hold the locks under which an ADD chooses one of the devices.  Meanwhile the caller serves others.  Raises
    Refused if one is held for too long."""
    names, latest = dict[str, bool](), time.monotonic() + _LONGEST
    for device in (one for one in devices if not one.admin):
        for name in _lockable(device):
            names[name] = names.get(name, True) and device.is_shared
    with ExitStack() as locks:
        for name in sorted(names):
            locks.enter_context(await _lock(name, latest, Mode.SHARED if names[name] else Mode.ALONE))
        yield


async def _lock(name: str, latest: float, mode: Mode) -> Lock:
    with ExitStack() as turn:
        while True:
            try:
                return owned.lock(name, 0, mode)
            except TryAgain as e:
                if time.monotonic() > latest:
                    raise Refused(
                        f"a pod's ADD has chosen among the devices of {name} for more than {_LONGEST:g} s; kubelet "
                        f"tries again ({e.msg})"
                    ) from e
            except CniError as e:
                raise Refused(e.msg) from e
            if mode is Mode.ALONE:
                with suppress(CniError):  # as from its second attempt on: it waits next itself
                    turn.enter_context(owned.lock(name, 0, Mode.NEXT))
            await asyncio.sleep(_POLL)


def _lockable(device: ClaimedDevice) -> Sequence[str]:
    """The names that an ADD for the device locks."""
    tops = [sysfs.top(one) for one in sysfs.devices_under(device.id)] if device.kind == "master" else []
    return tops or [sysfs.top(device.id)]


def refuse_taken(claim: Claim, devices: Sequence[ClaimedDevice]) -> None:
    """Raise Refused if another claim or an attachment, of a pod that may live, has one of the claim's devices, or a
    relative of it.  The caller holds the locks.  Raises CniError, OSError."""
    asked = [(device, _relatives(device)) for device in devices if not device.admin]
    names = {name for _, one in asked for name in one.all}
    use = owned.use(location.state_dir(), names, f"{claim.uid}/")
    use = replace(use, devices=_of_others(claim, use.devices))
    for device, relatives in asked:
        what = f"device {device.id} ({device.pool}/{device.device})"
        if by := owned.held(use, relatives, is_alone=not device.is_shared):
            ended = "if its pod has ended, run hpn gc on the node; else " if by.device else ""
            raise Refused(f"{what}: {by.fact}; {by.remedy or ended + _SUCCESSOR}")
        try:
            if not device.is_shared:
                use.refuse_unknown(device.id)
        except CniError as e:
            raise Refused(f"{what}: {e.msg}") from e
        if over := next(iter(_of_others(claim, _over(use, device, relatives))), None):
            raise Refused(f"{what}: {over}; {_SUCCESSOR}")


def _relatives(device: ClaimedDevice) -> Relatives:
    return sysfs.relatives_of(device.id, is_interface=device.kind == "master", has_parts=not device.is_shared)


def _over(use: Use, device: ClaimedDevice, relatives: Relatives) -> Mapping[str, Record]:
    """The attachments over the interfaces of a device for one pod, and of its parts, each by its name for people."""
    found = dict[str, Record]()
    if not device.is_shared:
        parts = filter(None, map(sysfs.device, relatives.below))
        for name in (*relatives.own, *(name for part in parts for name in part.netdevs)):
            with suppress(OSError):  # it is a bus address
                for record in use.attached_over(if_nametoindex(name)):
                    found[f"{name!r} is the master of {record.title}"] = record
    return found


def _of_others(claim: Claim, found: Mapping[str, Record]) -> dict[str, Record]:
    """Those of other claims, or of none, whose pods may live.  The claim's ADD undoes those of dead pods."""
    others = {name: record for name, record in found.items() if record.claim.partition("/")[0] != claim.uid}
    are_gone = pods.gone([(record.identity, record.netns) for record in others.values()]) if others else []
    return {name: record for (name, record), is_gone in zip(others.items(), are_gone, strict=True) if not is_gone}
