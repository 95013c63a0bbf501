"""The daemon: offers the devices of a configuration to kubelet, and keeps it informed about their health."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from base.kernel import sysfs
from base.protocol.errors import CniError
from base.protocol.location import CLAIMS_DIR
from hardware import inventory, neighbors
from hardware.model import Device
from node.health.status import Facts, Health, HealthKey, Observation, due, observe, step
from node.health.watch import Watch
from node.kubelet.awaited import Awaited
from node.kubelet.directory import AGAIN, Directory, Taken
from node.kubelet.registry import Registry
from node.kubelet.served import Served
from node.log import Topics, cause, log, some
from node.model import ConfigRefused, Offer, Settings, Sharing, devices_of
from node.offer import answers, hook, needs, offers
from node.provision.provisioning import Provisioning

if TYPE_CHECKING:
    from node.dra.service import Service
    from node.labels.publisher import Publisher
    from node.lldp.listener import Listener

# After a scan the next one waits ten times the scan's duration, 0.5 s at most.  Pods come and go by the dozen, and each
# of their VFs is an event.
_REST: Final = 10
_LONGEST_REST: Final = 0.5
_GONE: Final = Observation("it is gone")
# The topics of metrics' hpn_problems: the first words of the log's topics.
PROBLEMS: Final = ("configuration", "devices", "dra", "files", "kubelet", "labels", "lldp", "provisioning", "socket")


class Daemon:
    """Serves the resources of a configuration from ``start`` until ``close``."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, registry: Path, read: Callable[[], Settings], kubeconfig: str = ""
    ) -> None:
        """``registry`` is kubelet's plugins_registry; ``read`` reads the configuration, now and at each ``reload``.
        ``kubeconfig`` names credentials for the API server; without it those of the policy file apply.

        Raises ConfigRefused for a refused configuration, Taken, OSError.
        """
        self._loop, self._read = loop, read
        self._registry, self._kubeconfig = registry, kubeconfig
        self._dra: Service | None = None
        self._listener: Listener | None = None
        self._labels: Publisher | None = None
        self._settings = Settings((), "")
        self._health = dict[HealthKey, Health]()
        self._inventory = inventory.Inventory(memory=inventory.MEMORY)
        self._devices = dict[str, Device]()
        self._topics = Topics()
        self._due: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._devices_changed = self._is_scheduled = False
        self._rests_until = 0.0
        self._began = time.monotonic()
        self._first = read()
        self._is_started = self._is_stale = False
        self._directory = Directory(loop, registry, self._appeared)
        self._resources = Registry(loop, self._directory, self._topics)
        # First, so that no file of another process of this program is overwritten.
        try:
            with suppress(OSError):
                self._directory.claim()
        except Taken:
            self._directory.close()
            raise
        # VFs that provisioning removed do not count as lost, so nothing of before is kept.
        self._provisioning = Provisioning(loop, self._topics, lambda: self._scan(before={}))

    async def start(self) -> None:
        """Make the node ready, which may take a minute, and begin to serve.  Raises OSError."""
        await self._provisioning.start(self._first)
        self._awaited = Awaited(self._loop, self._registry, self._began)
        self._watch = Watch(self._loop, self._changed)
        self._is_started = True
        self._configure(self._first)
        self._awaited.then(self._open)
        self._awaited.then(self._label)
        if self._is_stale:
            self.reload()

    def _appeared(self) -> None:
        if self._is_started:
            self._open()

    def when_shown(self, call: Callable[[], None]) -> None:
        """Call once kubelet can see the resources, which may be now."""
        self._awaited.then(call)

    def close(self) -> None:
        """Remove all sockets, so that kubelet notices at once.

        The files for container runtimes and Multus stay: a restarted container, or a pod not yet attached, needs them
        without another Allocate.
        """
        if self._unread:
            self._unread.cancel()
        self._resources.close()
        if self._dra:
            self._dra.close()
        self._provisioning.close()
        if self._listener:
            self._listener.close()
        if self._labels:
            self._labels.close()
        if self._is_started:
            self._watch.close()
        self._directory.close()

    @property
    def problems(self) -> Mapping[str, bool]:
        """Whether there is a problem, by topic of PROBLEMS."""
        return {topic: topic in self._topics.problems for topic in PROBLEMS}

    @property
    def health(self) -> Mapping[str, Sequence[tuple[Device, str]]]:
        """Each resource's devices, each with the reason why it is unhealthy; empty if it is healthy."""
        return {
            name: [(device, self._health.get(key, Health()).reason) for key, device in served.devices.items()]
            for name, served in self._served.items()
        }

    @property
    def _served(self) -> Mapping[str, Served]:
        """The offers of both ways, by resource."""
        return {**self._resources.served, **(self._dra.served if self._dra else {})}

    def reload(self) -> None:
        """Read the configuration again; if it is refused, the present one stays in force.  If it cannot be read now,
        it is read again every AGAIN seconds.  Before the end of ``start``, which may take a minute, it is read then."""
        if not self._is_started:
            self._is_stale = True
            return
        self._topics.forget("configuration")  # each SIGHUP gets an answer
        self._reload()

    def _reload(self) -> None:
        if self._unread:
            self._unread.cancel()
            self._unread = None
        try:
            settings = self._read()
        except (ConfigRefused, OSError) as e:
            what = f"{cause(e) if isinstance(e, OSError) else e}"
            self._topics.problem("configuration", f"{what}; the previous configuration stays in force")
            if isinstance(e, OSError):
                self._unread = self._loop.call_later(AGAIN, self._reload)
            return
        log(f"reloads its configuration: {settings.dialect}")
        self._topics.forget("configuration")
        self._provisioning.configure(settings)
        self._configure(settings)
        self._open()

    def _configure(self, settings: Settings) -> None:
        self._settings = settings
        resources = settings.resources
        faults = (*settings.left_out, *hook.conflicts(resources), *hook.LAUNCHER.without(resources))
        self._topics.report("configuration", *faults, *settings.notes, is_problem=bool(faults))
        self._watch.software = offers.software(resources)
        self._watch.takes = any(one.sharing is Sharing.EXCLUSIVE for one in resources)
        self._start_dra()
        self._start_lldp()
        self._start_labels()
        names = {resource.full_name for resource in settings.resources if not resource.by_dra}
        for name in self._resources.served.keys() - names:
            self._resources.remove(name)
        self._scan(before={})

    # Devices

    def _changed(self, devices: bool) -> None:  # noqa: FBT001  # Watch's callback
        self._devices_changed = self._devices_changed or devices
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_later(max(self._rests_until - time.monotonic(), 0), self._catch_up)

    def _catch_up(self) -> None:
        began = time.monotonic()
        self._is_scheduled = False
        if self._devices_changed:
            self._devices_changed = False
            self._scan({name: served.offer for name, served in self._served.items()})
        else:
            self._check_health()
        now = time.monotonic()
        self._rests_until = now + min((now - began) * _REST, _LONGEST_REST)

    def _scan(self, before: Mapping[str, Offer]) -> None:
        """Read all devices, and offer them.  Lost devices of the offers ``before`` are kept, as unhealthy."""
        try:
            found = self._inventory.devices()
        except OSError as e:
            self._topics.problem("devices", f"devices: {cause(e)}; the present offers stay until they can be read")
            self._loop.call_later(AGAIN, lambda: self._changed(devices=True))
            return
        self._topics.solved("devices")
        found = self._provisioning.update(found)
        self._devices = {device.id: device for device in found}
        if self._listener:
            self._listener.update(found)
        offered, sentences = offers.offers(self._settings.resources, found)
        self._topics.report("offers", *sentences)
        self._topics.report("obstacles", *needs.obstacles(offered))
        kept = offers.keep(before, offered, self._devices)
        by_dra = {name: offer for name, offer in kept.items() if offer.resource.by_dra}
        if self._dra:
            self._dra.offer(by_dra)
        for name, offer in by_dra.items():
            self._report_offer(offer, f"offers {name} in ResourceSlices")
        for offer in self._unclaimed(kept[name] for name in kept if name not in by_dra):
            self._resources.offer(offer.resource.full_name, offer)
            self._report_offer(offer, f"offers {offer.resource.full_name}")
        self._publish()
        self._check_health(anew=not before)

    def _report_offer(self, offer: Offer, what: str) -> None:
        number, ids = len(offer.units), {device.id for device in devices_of(offer.units)}
        title = f"offer {offer.resource.full_name}"
        self._topics.report(title, f"{what}: {number} unit{'s' * (number != 1)} of {some(ids)}")

    def _start_dra(self) -> None:
        """Start what DRA needs, if a resource is by DRA, or slices or claims of an earlier file may be left."""
        if not (any(one.by_dra for one in self._settings.resources) or _has_dra(self._registry)):
            return
        # Most nodes need none of it.
        from node.dra import DRIVER  # noqa: PLC0415
        from node.dra.service import Service  # noqa: PLC0415

        # kubelet's directory is above that of the sockets.
        self._dra = self._dra or Service(
            self._loop, self._topics, self._registry.parent, self._kubeconfig, self._resources.allocations,
            lambda: self._changed(devices=True),
        )  # fmt: skip
        if not self._resources.hosts(DRIVER):
            leave = partial(self._resources.dismiss, DRIVER)
            self._resources.host(DRIVER, self._dra.driver(self._directory.socket(DRIVER), leave))

    def _start_lldp(self) -> None:
        """Hear the neighbors of PFs, or stop that; the next scan names the PFs."""
        if self._settings.lldp and not self._listener:
            from node.lldp.listener import Listener  # noqa: PLC0415  # most nodes need none of it

            self._listener = Listener(self._loop, self._topics, self._check_health)
        if self._listener:
            self._listener.after = self._settings.up_after
        if not self._settings.lldp:
            if self._listener:
                self._listener.close()
                self._listener.forget()
                self._listener = None
            with suppress(CniError):
                neighbors.forget()

    def _start_labels(self) -> None:
        """Label the node, or remove the labels of an earlier file."""
        file = self._registry / ".hpn-labels.json"
        if self._labels or self._settings.labels or file.exists():
            from node.labels.publisher import Publisher  # noqa: PLC0415  # most nodes need none of it

            self._labels = self._labels or Publisher(
                self._loop, self._topics, self._kubeconfig, file, self._wanted_labels
            )  # fmt: skip

    def _wanted_labels(self) -> Mapping[str, str]:
        if not self._settings.labels:
            return {}
        from node.labels import content  # noqa: PLC0415  # most nodes need none of it

        offered = [served.offer for served in self._served.values()]
        heard = self._listener.settled if self._listener else None
        return content.labels(offered, self._devices, heard, hca=self._settings.hca_label)

    def _label(self) -> None:
        """Let the labels follow the offers and the neighbors, after the wait for the devices of a boot."""
        if self._labels and self._awaited.is_over:
            self._labels.changed()

    def _unclaimed(self, offers: Iterable[Offer]) -> Iterable[Offer]:
        """The plugin's offers without what claims or slices still have."""
        return self._dra.without_claimed(offers) if self._dra else offers

    def _usable(self, served: Served) -> Set[str]:
        """The devices that a pod could use, and that should exist again after a boot."""
        devices = [(key, device) for key, device in served.devices.items() if offers.is_lasting(device, served.offer)]
        return {key.id for key, _ in devices if not self._health[key].lost}

    def _publish(self) -> None:
        offered = [served.offer for served in self._served.values()]
        try:
            # Also by DRA: a container that got its device from the plugin may restart.
            answers.publish(offered)
            if self._dra:
                self._dra.publish(offered)
        except (CniError, OSError) as e:
            why = cause(e) if isinstance(e, OSError) else e.msg
            self._topics.problem("files", f"{why}; containers get no device by CDI until it can be written")
            self._try_again()
        else:
            self._topics.solved("files")

    def _try_again(self) -> None:
        """Schedule another write of what could not be written, because no event reports free space on a disk."""
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
            self._topics.report("boot", f"{e.msg}; until then a boot waits for the devices of an older offer, or none")
            self._try_again()
        else:
            self._topics.forget("boot")

    # Health

    def _check_health(self, *, anew: bool = False) -> None:
        """Check the health of all offered devices, notify kubelet of changes, and schedule the next check.

        ``anew`` is that of ``Awaited.update``: a device that recovers may be the last one awaited.
        """
        now, settings = time.monotonic(), self._settings
        # Each RDMA port is read once, when first needed.
        facts = Facts(self._watch.links, self._watch.failed, cache(_ports), cache(_rdma_of))
        keys = [key for served in self._served.values() for key in served.devices]
        self._watch.moved.intersection_update(key.id for key in keys)
        before, self._health = (
            self._health,
            {key: step(self._health.get(key), self._observe(key, facts), now, settings) for key in keys},
        )
        for name, served in self._served.items():
            self._report(name, served, before)
        self._resources.update(self._health)
        if self._dra:
            self._dra.update(self._health, self._listener.settled if self._listener else {})
        self._label()
        times = [at for health in self._health.values() if (at := due(health, settings)) is not None]
        if self._due:
            self._due.cancel()
        self._due = self._loop.call_later(max(min(times) - now, 0), self._check_health) if times else None
        self._awaited.update({name: self._usable(one) for name, one in self._resources.served.items()}, anew=anew)
        self._keep()

    def _observe(self, key: HealthKey, facts: Facts) -> Observation:
        if device := self._devices.get(key.id):
            return observe(device, facts, shared=key.shared)
        # A software interface in a pod's namespace is invisible, and not lost.
        return Observation() if key.id in self._watch.moved else _GONE

    def _report(self, name: str, served: Served, before: Mapping[HealthKey, Health]) -> None:
        """Log which devices became healthy or unhealthy, and why."""
        changes = dict[str, list[str]]()
        for key in served.devices:
            old, new = before.get(key, Health()).reason, self._health[key].reason
            if old != new:
                changes.setdefault(new, []).append(key.id)
        for reason, ids in changes.items():
            what = f"{some(ids)} of {name}"
            log(f"unhealthy: {what}: {reason}" if reason else f"healthy again: {what}")


def _has_dra(registry: Path) -> bool:
    """Whether this node may have slices or prepared claims: their files, which node.dra writes.

    The directory of claims stays after the last claim.
    """
    return (registry / ".hpn-dra.json").exists() or any(one.endswith(".json") for one in sysfs.names(CLAIMS_DIR))


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
