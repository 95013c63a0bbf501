"""What was seen of a device while it was on the host, for the time in which a pod has it and sysfs does not show it.

It is kept in a file besides, so that a device stays in its resource if we start again meanwhile.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cni.protocol.errors import CniError
from cni.state import durable


@dataclass(frozen=True)
class Seen:
    """The names of its interfaces, and its ports' partition keys."""

    names: tuple[str, ...] = ()
    pkeys: tuple[int, ...] = ()


class Memory:
    """What was seen of each device.

    It counts for one incarnation of the device (cni.kernel.sysfs.incarnation) under one driver: a device that is given
    to vfio-pci has no interface any more, while one that is given to a pod keeps its driver.
    """

    def __init__(self, file: Path | None, *, writes: bool) -> None:
        self._file, self._writes = file, writes
        self._before = _read(file) if file else {}
        self._now = dict[str, tuple[str, Seen]]()

    def complete(self, device: str, incarnation: int, driver: str, seen: Seen) -> Seen:
        """What is seen of it now; or what was seen last, if its interfaces are not there now."""
        life = f"{incarnation} {driver}"  # guard: of-that-driver = f"{incarnation}"
        if not seen.names:
            before, last = self._before.get(device, ("", Seen()))
            seen = last if before == life else seen  # guard: of-that-incarnation (before)
        if seen.names:
            self._now[device] = (life, seen)
        return seen

    def keep(self) -> None:
        """Forget all devices that were not asked for since the last call, for they are gone; write what has changed.

        A file that cannot be written costs only names, and only after the next start, so it stops nobody.
        """
        if self._file and self._writes and self._now != self._before:
            with suppress(CniError):
                durable.write(self._file, _body(self._now))
        self._before, self._now = self._now, {}


def _body(seen: dict[str, tuple[str, Seen]]) -> dict[str, object]:
    devices = {device: [life, s.names, s.pkeys] for device, (life, s) in seen.items()}
    return {"boot": durable.boot_id(), "devices": devices}


def _read(file: Path) -> dict[str, tuple[str, Seen]]:
    """What the file has of this boot; nothing where it is not ours, or older."""
    with suppress(CniError, LookupError, TypeError, ValueError):
        body = durable.read(file) or {}
        if body.get("boot") == durable.boot_id():  # guard: of-this-boot = True
            return {
                device: (life, Seen(tuple(names), tuple(pkeys)))
                for device, (life, names, pkeys) in body["devices"].items()
            }
    return {}
