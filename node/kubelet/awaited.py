"""The devices offered before a boot, for which hpn node waits after it.

As soon as kubelet has started, it admits the pods that it knows.  It refuses for good those with devices that are not
offered at that moment.  A driver may take seconds to find its devices.  So kubelet sees no resource until the devices
of the last boot are back.  They are listed in a file beside the sockets, on disk; kubelet ignores its name.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from base.protocol.errors import CniError
from base.state import durable, trust
from node.log import log, some

FILE: Final = ".hpn-node.json"
WAIT: Final = 60.0  # seconds after the start of hpn node; then missing devices are no longer awaited

# The ids of each resource's devices.
Devices = Mapping[str, Collection[str]]


class Awaited:
    """Delays the calls given to ``then`` until all awaited devices are there, or WAIT is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path, began: float) -> None:
        """``folder`` is kubelet's directory of sockets, ``began`` the start of hpn node by the monotonic clock."""
        self._file = folder / FILE
        self._began = began
        self._calls = list[Callable[[], None]]()
        self._offered: dict[str, set[str]] = {}
        self._there: Devices = {}
        self._is_logged = False
        self._alarm: asyncio.TimerHandle | None = None
        self._written = boot, self._expected = _read(self._file)
        # A device lost during this boot is not awaited, because its pod has lost it already.
        if self._expected and boot != durable.boot_id():
            self._alarm = loop.call_later(max(began + WAIT - time.monotonic(), 0), self._give_up)

    @property
    def is_over(self) -> bool:
        """Whether no device is awaited, or no longer."""
        return not self._alarm

    def then(self, call: Callable[[], None]) -> None:
        """Call once, when no device is awaited: now or later."""
        if self._alarm:
            self._calls.append(call)
        else:
            call()

    def update(self, there: Devices, *, anew: bool) -> None:
        """Note the usable devices.  ``anew`` drops those noted before: the file changed, or hpn node made VFs."""
        self._there = there
        # Lost devices stay in the list, because a shutdown may remove drivers before it stops hpn node.
        before = {} if anew else self._offered
        self._offered = {name: {*ids, *before.get(name, ())} for name, ids in there.items()}
        if not self._alarm:
            return
        if missing := self._missing():
            if not self._is_logged:
                self._is_logged = True
                log(f"waits up to {WAIT:g} s for devices offered before the boot: {_named(missing)}")
        else:
            if self._is_logged:
                waited = time.monotonic() - self._began
                log(f"all devices offered before the boot are there, {waited:.1f} s after the start")
            self._end()

    def keep(self) -> None:
        """Write the list for the next boot, if it changed.  The caller has claimed the directory.

        If the write fails, the next boot does not wait, and nothing else fails.  Raises CniError.
        """
        now = durable.boot_id(), self._offered
        if not self._alarm and (now != self._written or not self._file.exists()):
            body = {name: sorted(ids) for name, ids in self._offered.items()}
            # A directory of ours would block the one that its owner, who moved it away, puts there next.
            durable.write(self._file, {"boot": durable.boot_id(), "devices": body}, makes=False)
            self._written = now

    def _missing(self) -> dict[str, set[str]]:
        """The awaited devices that no resource has now, for the resources in the present configuration."""
        here = {one for ids in self._there.values() for one in ids}
        return {name: left for name in self._there if (left := {*self._expected.get(name, ())} - here)}

    def _give_up(self) -> None:
        if missing := self._missing():
            log(
                f"still missing {WAIT:g} s after the start, no longer awaited, though offered before the boot: "
                f"{_named(missing)}; kubelet refuses the pods that had them: see dmesg, and hpn devices"
            )
        self._end()

    def _end(self) -> None:
        if self._alarm:
            self._alarm.cancel()
        self._alarm = None
        calls, self._calls = self._calls, []
        for call in calls:
            call()


def _named(devices: Devices) -> str:
    return "; ".join(f"{some(ids)} of {name}" for name, ids in devices.items())


def _read(file: Path) -> tuple[str, dict[str, set[str]]]:
    """The boot id and the devices in the file; empty if it is missing, or others than root could have written it."""
    try:
        if not file.parent.is_dir() or trust.weak_spot(f"{file.parent}"):
            return "", {}
        body = durable.read(file) or {"boot": "", "devices": {}}
        return str(body["boot"]), {str(name): {*map(str, ids)} for name, ids in body["devices"].items()}
    except (CniError, OSError, AttributeError, LookupError, TypeError) as e:
        log(f"the devices offered before the boot are unknown, so hpn node waits for none: {e}")
        return "", {}
