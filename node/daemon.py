"""The node's program at work: what it offers, whether that is healthy, and who is told."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from base.kernel import sysfs
from base.protocol.errors import CniError
from hardware import inventory
from hardware.model import Device, Kind
from node.health.status import Facts, Health, Observation, Patience, due, observe, step
from node.health.watch import Watch
from node.kubelet.awaited import Awaited
from node.kubelet.directory import AGAIN, Directory
from node.kubelet.registry import Judged, Registry, Served
from node.log import Topics, cause, say, some
from node.model import Offer, Refused, Settings, devices_of
from node.offer import answers, needs, offers
from node.provision.provisioning import Provisioning

# After a look the next one waits this many times as long as it took, but no longer than this: pods come and go in
# dozens, and every VF of theirs is an event.
_REST: Final = 10
_LONGEST_REST: Final = 0.5
_GONE: Final = Observation("it is gone")
# What something can be wrong with, as metrics name it: the first words of topics.
PROBLEMS: Final = ("configuration", "devices", "files", "kubelet", "provisioning", "socket")


class Daemon:
    """Serves the resources of a configuration until ``close``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, registry: Path, read: Callable[[], Settings]) -> None:
        """``registry`` is kubelet's plugins_registry; ``read`` reads the configuration, now and for each ``reload``.

        Raises Refused for a configuration that is, Taken, OSError.
        """
        self._loop, self._read = loop, read
        self._settings = Settings((), "")
        self._health = dict[Judged, Health]()
        self._inventory = inventory.Inventory(memory=inventory.MEMORY)
        self._devices = dict[str, Device]()
        self._topics = Topics()
        self._due: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._devices_changed = self._is_awaited = False
        self._rests_until = 0.0
        began = time.monotonic()
        settings = read()
        self._directory = Directory(loop, registry, self._open)
        self._resources = Registry(loop, self._directory, self._topics)
        # Before anything is written that another process of this program may have written too.
        with suppress(OSError):
            self._directory.claim()  # guard: nothing-written-beside-another
        self._awaited = Awaited(loop, registry, began)
        self._watch = Watch(loop, self._changed)
        # VFs that are gone because the file asks for fewer are not to be missed.
        self._provisioning = Provisioning(loop, self._topics, lambda: self._look(before={}))
        self._provisioning.start(settings)
        self._configure(settings)
        self._awaited.then(self._open)

    def when_shown(self, call: Callable[[], None]) -> None:
        """Call when kubelet is shown what there is, which may be now."""
        self._awaited.then(call)

    def close(self) -> None:
        """Remove all sockets, so that kubelet knows at once.

        The files for runtimes and Multus stay: a container that is started once more, or a pod that is not attached
        yet, needs them, and nobody asks us again.
        """
        self._resources.close()
        self._provisioning.close()
        self._watch.close()
        self._directory.close()

    @property
    def problems(self) -> Mapping[str, bool]:
        """Of each topic that something can be wrong with, whether something is."""
        return {topic: topic in self._topics.problems for topic in PROBLEMS}

    @property
    def judged(self) -> Mapping[str, Sequence[tuple[Device, str]]]:
        """Each resource's devices, and why each is unhealthy; empty where it is not."""
        return {
            name: [(device, self._health.get(key, Health()).reason) for key, device in served.devices.items()]
            for name, served in self._resources.served.items()
        }

    def reload(self) -> None:
        """Read the configuration anew; the one of before stays if it is refused."""
        try:
            settings = self._read()
        except (Refused, OSError) as e:  # guard: the-one-of-before = FileExistsError
            what = f"{cause(e) if isinstance(e, OSError) else e}"
            self._topics.forget("configuration")  # each SIGHUP has an answer
            self._topics.problem("configuration", f"{what}; what was read before stays in force")
            return
        say(f"reads its configuration anew: {settings.dialect}")
        self._topics.forget("configuration")
        self._provisioning.configure(settings)
        self._configure(settings)
        self._open()

    def _configure(self, settings: Settings) -> None:
        self._settings = settings
        left_out = settings.left_out
        self._topics.say_new("configuration", *left_out, *settings.notes, is_problem=bool(left_out))
        selectors = [selector for resource in settings.resources for selector in resource.selectors]
        self._watch.software = any(not one.kinds or Kind.NETDEV in one.kinds for one in selectors)
        names = {resource.full_name for resource in settings.resources}
        for name in self._resources.served.keys() - names:
            self._resources.remove(name)
        self._look(before={})

    # What there is

    def _changed(self, devices: bool) -> None:  # noqa: FBT001  # Watch's callback
        self._devices_changed = self._devices_changed or devices
        if not self._is_awaited:
            self._is_awaited = True
            self._loop.call_later(max(self._rests_until - time.monotonic(), 0), self._catch_up)

    def _catch_up(self) -> None:
        began = time.monotonic()
        self._is_awaited = False
        if self._devices_changed:
            self._devices_changed = False
            self._look({name: served.offer for name, served in self._resources.served.items()})
        else:
            self._judge()
        now = time.monotonic()
        self._rests_until = now + min((now - began) * _REST, _LONGEST_REST)

    def _look(self, before: Mapping[str, Offer]) -> None:
        """Look at all devices, and offer them; ``before`` has what was offered, of which lost devices are kept."""
        try:
            found = self._inventory.devices()
        except OSError as e:
            self._topics.problem(
                "devices", f"the devices cannot be read: {cause(e)}; what was offered stays, until they can"
            )
            self._loop.call_later(AGAIN, lambda: self._changed(devices=True))
            return
        self._topics.solved("devices")
        found = self._provisioning.look(found)  # guard: held = self._provisioning.look(found) and found
        self._devices = {device.id: device for device in found}
        offered, sentences = offers.offers(self._settings.resources, found)
        self._topics.say_new("offers", *sentences)
        self._topics.say_new("obstacles", *needs.obstacles(offered))
        kept = offers.keep(before, offered, self._devices)
        for name, offer in kept.items():
            self._offer(name, offer)
        self._publish()
        self._judge(anew=not before)

    def _usable(self, served: Served) -> Set[str]:
        """The devices that a pod could use, and that should be there after a boot."""
        devices = [(key, device) for key, device in served.devices.items() if offers.is_lasting(device, served.offer)]
        return {key.id for key, _ in devices if not self._health[key].lost}

    def _offer(self, name: str, offer: Offer) -> None:
        self._resources.offer(name, offer)
        devices = {device.id for device in devices_of(offer.units)}
        self._topics.say_new(f"offer {name}", f"offers {name}: {_count(len(offer.units), 'unit')} of {some(devices)}")

    def _publish(self) -> None:
        try:
            answers.publish([served.offer for served in self._resources.served.values()])
        except OSError as e:
            self._topics.problem("files", f"{cause(e)}; containers get no device by CDI until it can be written")
            self._try_again()
        else:
            self._topics.solved("files")

    def _try_again(self) -> None:
        """Write anew what could not be written, because a disk that has room again is no event."""
        if not self._again:
            self._again = self._loop.call_later(AGAIN, self._write)

    def _write(self) -> None:
        self._again = None
        self._publish()
        self._open()

    def _open(self) -> None:
        if self._awaited.is_over and not self._resources.open():
            self._try_again()
        self._keep()

    def _keep(self) -> None:
        if not self._directory.is_claimed:
            return
        try:
            self._awaited.keep()
        except CniError as e:
            self._topics.say_new(
                "boot", f"{e.msg}; until then a boot waits for what was offered before, or for nothing"
            )
            self._try_again()
        else:
            self._topics.forget("boot")

    # Whether it is healthy

    def _judge(self, *, anew: bool = False) -> None:
        """Look at the health of what is offered, tell kubelet what is new, and look again when something is due.

        ``anew`` as in ``Awaited.look``: a device that can be used again may be the last that is awaited.
        """
        now, patience = time.monotonic(), Patience(self._settings.down_after, self._settings.up_after)
        facts = self._facts()
        judged = [key for served in self._resources.served.values() for key in served.judged]
        self._watch.moved.intersection_update(key.id for key in judged)
        before, self._health = (
            self._health,
            {key: step(self._health.get(key), self._observe(key, facts), now, patience) for key in judged},
        )
        for name, served in self._resources.served.items():
            self._report(name, served, before)
        self._resources.tell(self._health)
        times = [at for health in self._health.values() if (at := due(health, patience)) is not None]
        if self._due:
            self._due.cancel()
        self._due = self._loop.call_later(max(min(times) - now, 0), self._judge) if times else None
        self._awaited.look({name: self._usable(one) for name, one in self._resources.served.items()}, anew=anew)
        self._keep()

    def _observe(self, key: Judged, facts: Facts) -> Observation:
        if device := self._devices.get(key.id):
            return observe(device, facts, shared=key.shared)
        # An interface of software that a pod has is nowhere to be seen.
        return Observation() if key.id in self._watch.moved else _GONE

    def _facts(self) -> Facts:
        """What the kernel says now; RDMA ports are read once, and only those that are asked for."""
        return Facts(self._watch.links, self._watch.failed, cache(_ports), cache(_rdma_of))

    def _report(self, name: str, served: Served, before: Mapping[Judged, Health]) -> None:
        """Say which devices have become healthy or unhealthy, and why."""
        changes = dict[str, list[str]]()
        for key in served.judged:
            old, new = before.get(key, Health()).reason, self._health[key].reason
            if old != new:
                changes.setdefault(new, []).append(key.id)
        for reason, ids in changes.items():
            what = f"{some(ids)} of {name}"
            say(f"unhealthy: {what}: {reason}" if reason else f"healthy again: {what}")


def _ports(name: str, root: Path = sysfs.SYS) -> Sequence[str]:
    """The states of an RDMA device's ports, in their order; none if it is not in the host's namespace."""
    states = list[str]()
    with suppress(OSError):
        for port in sorted((root / "class/infiniband" / name / "ports").iterdir(), key=lambda path: int(path.name)):
            states.append((port / "state").read_text().rpartition(":")[2].strip())
    return states


def _rdma_of(address: str) -> Sequence[str]:
    function = sysfs.function(address)
    return function.rdma_devs if function else ()


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
