"""What was offered before the node was booted, and what is not there of it yet.

kubelet admits the pods that it knew as soon as it has started, and refuses for good those whose devices are not offered
then.  A driver may take seconds to find its devices, so kubelet is shown nothing until those of before are there.  They
are kept in a file beside the sockets, on disk.  kubelet passes over its name.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from base.protocol.errors import CniError
from base.state import durable, trust
from node.log import say, some

FILE: Final = ".hpn-node.json"
WAIT: Final = 60.0  # seconds since hpn node was started; what is not there then is awaited no more

# The ids of each resource's devices.
Devices = Mapping[str, Collection[str]]


class Awaited:
    """Makes the calls that are given to ``then`` when all is there, or WAIT is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path, began: float) -> None:
        """``folder``: kubelet's directory of sockets; ``began``: when hpn node was started, by the monotonic clock."""
        self._file = folder / FILE
        self._began = began
        self._calls = list[Callable[[], None]]()
        self._offered: dict[str, set[str]] = {}
        self._there: Devices = {}
        self._has_said = False
        self._alarm: asyncio.TimerHandle | None = None
        self._written = boot, self._expected = _read(self._file)
        # What is gone since the boot is awaited by nobody: whoever had it has lost it.
        if self._expected and boot != durable.boot_id():  # guard: of-another-boot (boot)
            self._alarm = loop.call_later(max(began + WAIT - time.monotonic(), 0), self._give_up)

    @property
    def is_over(self) -> bool:
        """Whether nothing is awaited, or any more."""
        return not self._alarm

    def then(self, call: Callable[[], None]) -> None:
        """Call when nothing is awaited: now, or later and once."""
        if self._alarm:
            self._calls.append(call)
        else:
            call()

    def look(self, there: Devices, *, anew: bool) -> None:
        """Take note of what can be given now; ``anew`` if that is by another file, or after hpn node has made VFs."""
        self._there = there
        # What is lost later is kept: drivers may go before hpn node when the node is shut down.
        before = {} if anew else self._offered  # guard: lost-before-the-boot (anew)
        self._offered = {name: {*ids, *before.get(name, ())} for name, ids in there.items()}
        if not self._alarm:
            return
        if missing := self._missing():
            if not self._has_said:
                self._has_said = True
                say(f"waits up to {WAIT:g} s for what was offered before the boot: {_named(missing)}")
        else:
            if self._has_said:
                waited = time.monotonic() - self._began
                say(f"all that was offered before the boot is there {waited:.1f} s after the start")
            self._end()

    def keep(self) -> None:
        """Write what the next boot is to wait for, if that has changed.  To be called while no other process serves in
        the directory.

        A file that cannot be written costs the next boot's wait, and so stops nobody.  Raises CniError.
        """
        now = durable.boot_id(), self._offered
        if not self._alarm and (now != self._written or not self._file.exists()):  # guard: not-meanwhile (_alarm)
            body = {name: sorted(ids) for name, ids in self._offered.items()}
            # A directory of ours would be in the way of kubelet's, which whoever moved it away puts there next.
            # guard below: in-nobodys-place (makes)
            durable.write(self._file, {"boot": durable.boot_id(), "devices": body}, makes=False)
            self._written = now

    def _missing(self) -> dict[str, set[str]]:
        """What was offered and is in no resource now, of the resources that are still asked for."""
        here = {one for ids in self._there.values() for one in ids}
        return {name: left for name in self._there if (left := {*self._expected.get(name, ())} - here)}

    def _give_up(self) -> None:
        if missing := self._missing():
            say(
                f"not there {WAIT:g} s after the start, and awaited no more, though offered before the boot: "
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
    """The boot of the file, and the devices in it; nothing where there is none, or it is not ours."""
    try:
        if not file.parent.is_dir() or trust.weak_spot(f"{file.parent}"):  # guard: of-others (f"{file.parent}")
            return "", {}
        body = durable.read(file) or {"boot": "", "devices": {}}
        return str(body["boot"]), {str(name): {*map(str, ids)} for name, ids in body["devices"].items()}
    except (CniError, OSError, AttributeError, LookupError, TypeError) as e:
        say(f"what was offered before the boot is not known, so nothing is awaited: {e}")
        return "", {}
