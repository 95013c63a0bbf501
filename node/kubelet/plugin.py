"""The device plugins, one for each resource: registration, the calls of kubelet, and the sockets in its directory."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from base.grpc import Stream, unary, watched
from base.kubelet import deviceplugin_pb2 as device_plugin
from base.kubelet import pluginregistration_pb2 as registration
from hardware.model import Device
from node.health.status import Health
from node.kubelet import sockets
from node.kubelet.allocations import Allocations
from node.kubelet.directory import AGAIN, Directory, Taken
from node.log import Topics, cause, log
from node.model import Grant, Offer, Sharing, Unit, devices_of
from node.offer import answers, preferred

VERSION: Final = "v1beta1"
# Seconds that kubelet has for a restart.  After it kubelet returns to a socket with a broken stream only if the socket
# is new.
_AWAY: Final = 10.0
_SILENT: Final = 60.0  # seconds without any call of kubelet, which connects to a new socket at once

# A unit as kubelet sees it: ID, whether it is healthy, NUMA nodes.
State = tuple[str, bool, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class HealthKey:
    """A device as a resource uses it: the link of a shared one must be up, that of another may be down in a pod."""

    id: str
    shared: bool


class Served:
    """The source of one plugin's answers: an offer, and its units' health."""

    def __init__(self, offer: Offer, allocations: Allocations | None = None) -> None:
        """``allocations`` notes the granted ones."""
        self.offer, self._allocations = offer, allocations
        self._states = tuple[State, ...]()

    def units(self) -> Sequence[State]:
        """The state of each unit, with NUMA nodes if kubelet should learn them."""
        return self._states

    def grant(self, ids: Sequence[str]) -> Grant:
        """What a container gets for the IDs.  Raises answers.Refused."""
        granted = answers.grant(self.offer, ids)
        if self._allocations:
            self._allocations.note(self.offer.resource.full_name, ids)
        return granted

    def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """The preferred IDs among the available ones; none for no advice."""
        return preferred.choose(self.offer, available, must, size)

    @property
    def devices(self) -> Mapping[HealthKey, Device]:
        """The offer's devices, each once."""
        return {self._key(device): device for device in devices_of(self.offer.units)}

    def update(self, health: Mapping[HealthKey, Health]) -> bool:
        """Set the units' states from the devices' health; return whether any changed."""
        before = self._states
        # One unit per tuple of devices, because very many units may share one.
        unlike = {id(unit.devices): unit for unit in self.offer.units}
        states = {key: self._state(unit, health) for key, unit in unlike.items()}
        self._states = tuple((unit.id, *states[id(unit.devices)]) for unit in self.offer.units)
        return self._states != before

    def _state(self, unit: Unit, health: Mapping[HealthKey, Health]) -> tuple[bool, tuple[int, ...]]:
        # One healthy device is enough for an ID that stands for all devices of the resource.
        is_healthy = any(not health[self._key(device)].reason for device in unit.devices)
        return is_healthy, tuple(sorted(unit.numa)) if self.offer.resource.topology else ()

    def _key(self, device: Device) -> HealthKey:
        return HealthKey(device.id, self.offer.resource.sharing is Sharing.SHARED)


class Plugin:
    """Serves the resource ``full_name`` at ``socket_path`` while it is open.  ``log`` takes sentences.

    The two services, DevicePlugin and Registration, are those of Kubernetes (kubelet: pkg/apis).
    """

    def __init__(
        self,
        full_name: str,
        socket_path: Path,
        loop: asyncio.AbstractEventLoop,
        source: Served,
        log: Callable[[str], None],
    ) -> None:
        self.full_name, self.socket_path = full_name, socket_path
        self._endpoint = sockets.Endpoint(socket_path)
        self._loop, self._source, self._log = loop, source, log
        self._watchers = set[asyncio.Event]()  # each is set when the list has changed
        self._renewal: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._logged = ""

    def open(self) -> None:
        """Make the socket to which kubelet connects, and replace the previous one.

        Raises Unusable, OSError; then the previous one goes on.
        """
        self._endpoint.open(self._methods())
        self._forget_timers()
        self._silence = self._loop.call_later(_SILENT, self._note_silence)

    def changed(self) -> None:
        """Send kubelet the source's present units."""
        for watcher in self._watchers:
            watcher.set()

    def close(self) -> None:
        """Remove the socket, so that kubelet notices at once."""
        self._endpoint.close()
        self._forget_timers()

    def _forget_timers(self) -> None:
        self._keep_socket()
        self._hear()

    def _methods(self) -> Mapping[str, Handler]:
        plugin, registry, report = "/v1beta1.DevicePlugin", "/pluginregistration.Registration", self._log_named
        return {
            f"{registry}/GetInfo": unary(registration.InfoRequest, self._get_info, report),
            f"{registry}/NotifyRegistrationStatus": unary(registration.RegistrationStatus, self._note_status, report),
            f"{plugin}/GetDevicePluginOptions": unary(device_plugin.Empty, _get_options, report),
            f"{plugin}/ListAndWatch": watched(device_plugin.Empty, self._watch),
            f"{plugin}/GetPreferredAllocation": unary(device_plugin.PreferredAllocationRequest, self._prefer, report),
            f"{plugin}/Allocate": unary(device_plugin.AllocateRequest, self._allocate, report),
            f"{plugin}/PreStartContainer": unary(device_plugin.PreStartContainerRequest, _prepare_start, report),
        }

    # Registration

    def _hear(self) -> None:
        if self._silence:
            self._silence.cancel()
            self._silence = None

    def _note_silence(self) -> None:
        self._log_once(
            f"{self.full_name}: kubelet has not called {self.socket_path} for {_SILENT:g} s: it does not run, or has "
            "another directory; name that: --kubelet-dir (kubeletDir in the chart)"
        )

    def _get_info(self, _: registration.InfoRequest) -> registration.PluginInfo:
        self._hear()
        return registration.PluginInfo(
            type="DevicePlugin", name=self.full_name, endpoint=str(self.socket_path), supported_versions=[VERSION]
        )

    def _note_status(self, status: registration.RegistrationStatus) -> registration.RegistrationStatusResponse:
        if not status.plugin_registered:
            self._log_once(
                f"kubelet refuses {self.full_name}: {' '.join(status.error.split())}; no pod gets the resource until "
                "that is corrected, and kubelet tries again by itself"
            )
        elif self._logged:
            self._log_once(f"kubelet has accepted {self.full_name}")
        return registration.RegistrationStatusResponse()

    # Units

    async def _watch(self, stream: Stream) -> None:
        """Send the list of units now and after each change; a slow peer gets only the newest list."""
        self._keep_socket()
        server, watcher = self._endpoint.server, asyncio.Event()
        self._watchers.add(watcher)
        try:
            while True:
                watcher.clear()
                devices = map(_device, self._source.units())
                await stream.send_message(device_plugin.ListAndWatchResponse(devices=devices))
                await watcher.wait()
        finally:
            self._watchers.discard(watcher)
            if server and self._endpoint.server is server and not self._watchers:
                self._keep_socket()
                self._renewal = self._loop.call_later(_AWAY, self._renew)

    def _keep_socket(self) -> None:
        if self._renewal:
            self._renewal.cancel()
            self._renewal = None

    def _renew(self) -> None:
        """Make a new socket, because kubelet did not return to the old one."""
        try:
            self.open()
        except OSError as e:
            self._log_once(f"{self.full_name}: {self.socket_path}: {e.strerror or e}; it is tried again")
            self._renewal = self._loop.call_later(_AWAY, self._renew)

    # Allocation

    def _allocate(self, request: device_plugin.AllocateRequest) -> device_plugin.AllocateResponse:
        try:
            grants = [self._source.grant(list(one.devices_ids)) for one in request.container_requests]
        except answers.Refused as e:
            self._log(f"{e}")
            raise GRPCError(Status.FAILED_PRECONDITION, f"{e}") from e
        return device_plugin.AllocateResponse(container_responses=map(_response, grants))

    def _prefer(self, request: device_plugin.PreferredAllocationRequest) -> device_plugin.PreferredAllocationResponse:
        """Never fails: kubelet treats an empty answer as no advice, and starts no container after an error."""
        answer = device_plugin.PreferredAllocationResponse()
        try:
            for one in request.container_requests:
                available, must = list(one.available_deviceIDs), list(one.must_include_deviceIDs)
                ids = self._source.prefer(available, must, one.allocation_size)
                answer.container_responses.add(deviceIDs=ids)
        except Exception as e:  # noqa: BLE001  # see above
            self._log_once(f"{self.full_name}: no advice on devices: {type(e).__name__}: {e}; please report this")
            return device_plugin.PreferredAllocationResponse()
        return answer

    # Log

    def _log_once(self, sentence: str) -> None:
        if self._logged != sentence:
            self._logged = sentence
            self._log(sentence)

    def _log_named(self, sentence: str) -> None:
        self._log(f"{self.full_name}: {sentence}")


def _get_options(_: device_plugin.Empty) -> device_plugin.DevicePluginOptions:
    return device_plugin.DevicePluginOptions(get_preferred_allocation_available=True)


def _prepare_start(_: device_plugin.PreStartContainerRequest) -> device_plugin.PreStartContainerResponse:
    """Do nothing; the options do not request this call."""
    return device_plugin.PreStartContainerResponse()


def _device(unit: State) -> device_plugin.Device:
    one, is_healthy, nodes = unit
    device = device_plugin.Device(ID=one, health="Healthy" if is_healthy else "Unhealthy")
    for node in nodes:
        device.topology.nodes.add(ID=node)
    return device


def _response(grant: Grant) -> device_plugin.ContainerAllocateResponse:
    return device_plugin.ContainerAllocateResponse(
        envs=grant.env,
        devices=[device_plugin.DeviceSpec(container_path=p, host_path=p, permissions="rw") for p in grant.nodes],
        cdi_devices=[device_plugin.CDIDevice(name=name) for name in grant.cdi],
    )


class Hosted(Protocol):
    """A server at a socket of kubelet's directory."""

    def open(self) -> None: ...

    def close(self) -> None: ...


class Registry:
    """A plugin for each offered resource.  ``served`` holds their offers and health, ``allocations`` the latest
    ones."""

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Directory, topics: Topics) -> None:
        self._loop, self._directory, self._topics = loop, directory, topics
        self.served = dict[str, Served]()
        self.allocations = Allocations()
        self._plugins = dict[str, Plugin]()
        self._drivers = dict[str, Hosted]()
        self._open = set[str]()

    def offer(self, name: str, offer: Offer) -> None:
        """Offer the resource, or replace its offer; the next ``update`` notifies kubelet."""
        if name in self.served:
            self.served[name].offer = offer
            return
        self.served[name] = served = Served(offer, self.allocations)
        self._plugins[name] = Plugin(name, self._directory.socket(name), self._loop, served, log)

    def host(self, name: str, driver: Hosted) -> None:
        """Open and close the driver's socket, which is that of ``name``, with those of the plugins."""
        self._drivers[name] = driver

    def hosts(self, name: str) -> bool:
        """Whether a driver has that name."""
        return name in self._drivers

    def dismiss(self, name: str) -> None:
        """Close the driver; kubelet notices at once."""
        self._open.discard(name)
        self._topics.forget(f"socket {name}")
        self._drivers.pop(name).close()

    def remove(self, name: str) -> None:
        """Withdraw the resource; kubelet notices at once."""
        del self.served[name]
        self._open.discard(name)
        self._topics.forget(f"socket {name}")
        self._plugins.pop(name).close()

    def update(self, health: Mapping[HealthKey, Health]) -> None:
        """Notify kubelet of each resource with units that changed by this health."""
        for name, served in self.served.items():
            if served.update(health):
                self._plugins[name].changed()

    def open(self) -> bool:
        """Make the missing sockets, if kubelet's directory exists.

        Return False if the caller must try again after AGAIN seconds.
        """
        path = self._directory.path
        try:
            if not self._directory.claim():
                self._topics.problem(
                    "kubelet", f"{path} does not exist, so no kubelet has run here; hpn node waits for it"
                )
                return True
        except (Taken, OSError) as e:
            self._topics.problem("kubelet", f"{e}" if isinstance(e, Taken) else _cannot_write(path, e))
            return False
        self._topics.solved("kubelet")
        stands = {name for name in self._open if self._directory.socket(name).is_socket()}
        servers: dict[str, Hosted] = {**self._plugins, **self._drivers}
        missing = [name for name in servers if name not in stands]
        others = self._directory.others() if missing else {}
        failed = [name for name in missing if name in others or not self._open_one(name, servers[name])]
        for name in failed:
            if name in others:
                what, remedy = "device plugin that offers it", ", or the resource from a file"
                if name in self._drivers:
                    what, remedy = "driver with that name", ""
                self._topics.problem(
                    f"socket {name}",
                    f"{name}: {others[name]} is another {what}, so hpn node does not, until that one ends; remove the "
                    f"node from its DaemonSet{remedy}",
                )
        return not failed

    def close(self) -> None:
        """Remove all sockets, so that kubelet notices at once."""
        for server in (*self._plugins.values(), *self._drivers.values()):
            server.close()

    def _open_one(self, name: str, plugin: Hosted) -> bool:
        path = self._directory.socket(name)
        if name in self._open:
            plugin.close()
        try:
            plugin.open()
        except OSError as e:
            self._open.discard(name)
            self._topics.problem(f"socket {name}", f"{name}: {_cannot_write(path, e)}")
            return False
        self._open.add(name)
        self._topics.report(f"socket {name}", f"serves {name} at {path}")
        return True


def _cannot_write(path: Path, error: OSError) -> str:
    return (
        f"{path}: {cause(error)}; kubelet gets no resource until it can be written, which is tried every {AGAIN:g} s; "
        "make room, or mount it for writing (in a DaemonSet without readOnly)"
    )
