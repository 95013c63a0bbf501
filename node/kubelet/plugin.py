"""The device plugin of one resource: what kubelet asks for at its socket, from its registration on."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from base.grpc import Server, Stream, unary, watched
from base.kubelet import deviceplugin_pb2 as device_plugin
from base.kubelet import pluginregistration_pb2 as registration
from node.kubelet import sockets
from node.model import Grant
from node.offer.answers import Refused

VERSION: Final = "v1beta1"
# kubelet does not come back to a socket whose stream has ended, unless it is a new one (its own restart aside).  This
# many seconds it has time for a restart.
_AWAY: Final = 10.0


class Source(Protocol):
    """Where a plugin has its answers from."""

    def units(self) -> Sequence[tuple[str, bool, Collection[int]]]:
        """Each unit's ID, whether it is healthy, and its NUMA nodes where kubelet is to know them."""

    def grant(self, ids: Sequence[str]) -> Grant:
        """What a container gets for the IDs.  Raises Refused."""

    def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """Which of the available IDs to give; none for no advice."""


class Plugin:
    """Serves the resource ``full_name`` at ``socket_path`` while it is open.  ``say`` takes a sentence for the log.

    The two services, DevicePlugin and Registration, are Kubernetes' (kubelet: pkg/apis).
    """

    def __init__(
        self,
        full_name: str,
        socket_path: Path,
        loop: asyncio.AbstractEventLoop,
        source: Source,
        say: Callable[[str], None],
    ) -> None:
        self.full_name, self.socket_path = full_name, socket_path
        self._loop, self._source, self._say = loop, source, say
        self._watchers = set[asyncio.Event]()  # each is set when there is something new to tell
        self._server: Server | None = None
        self._made = 0
        self._renewal: asyncio.TimerHandle | None = None
        self._said = ""

    def open(self) -> None:
        """Make the socket, by which kubelet finds the plugin, in the place of the one before.

        Raises Unusable, OSError; then the one before goes on.
        """
        listener = sockets.bind(self.socket_path)
        self._stop()
        self._made = sockets.inode(self.socket_path)
        self._server = Server(listener, self._methods())

    def changed(self) -> None:
        """Tell kubelet what the source has now."""
        for watcher in self._watchers:
            watcher.set()

    def close(self) -> None:
        """Remove the socket, so that kubelet knows at once."""
        if self._server:
            sockets.remove(self.socket_path, self._made)
        self._stop()

    def _stop(self) -> None:
        if self._server:
            self._server.close()
        self._server = None
        self._keep_socket()

    def _methods(self) -> Mapping[str, Handler]:
        plugin, registry = "/v1beta1.DevicePlugin", "/pluginregistration.Registration"
        return {
            f"{registry}/GetInfo": unary(registration.InfoRequest, self._get_info, self._tell_log),
            f"{registry}/NotifyRegistrationStatus": unary(
                registration.RegistrationStatus, self._note_registration, self._tell_log
            ),
            f"{plugin}/GetDevicePluginOptions": unary(device_plugin.Empty, _get_options, self._tell_log),
            f"{plugin}/ListAndWatch": watched(device_plugin.Empty, self._watch),
            f"{plugin}/GetPreferredAllocation": unary(
                device_plugin.PreferredAllocationRequest, self._prefer, self._tell_log
            ),
            f"{plugin}/Allocate": unary(device_plugin.AllocateRequest, self._allocate, self._tell_log),
            f"{plugin}/PreStartContainer": unary(
                device_plugin.PreStartContainerRequest, _prepare_start, self._tell_log
            ),
        }

    # Registration

    def _get_info(self, _: registration.InfoRequest) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="DevicePlugin", name=self.full_name, endpoint=str(self.socket_path), supported_versions=[VERSION]
        )

    def _note_registration(self, status: registration.RegistrationStatus) -> registration.RegistrationStatusResponse:
        if not status.plugin_registered:
            self._say_once(
                f"kubelet refuses {self.full_name}: {' '.join(status.error.split())}; no pod gets it until that is "
                "mended, and kubelet tries again by itself"
            )
        elif self._said:
            self._say_once(f"kubelet has taken {self.full_name}")
        return registration.RegistrationStatusResponse()

    # What there is

    async def _watch(self, stream: Stream) -> None:
        """Tell what there is, now and whenever that changes; a peer that takes nothing gets the newest later."""
        self._keep_socket()  # guard: not-if-one-comes
        server, watcher = self._server, asyncio.Event()
        self._watchers.add(watcher)
        try:
            while True:
                watcher.clear()
                await stream.send_message(self._listed())
                await watcher.wait()
        finally:
            self._watchers.discard(watcher)
            # guard below: not-while-one-listens (and not self._watchers)
            if self._server and self._server is server and not self._watchers:
                self._keep_socket()
                self._renewal = self._loop.call_later(_AWAY, self._renew)

    def _listed(self) -> device_plugin.ListAndWatchResponse:
        return device_plugin.ListAndWatchResponse(devices=(_device(*unit) for unit in self._source.units()))

    def _keep_socket(self) -> None:
        if self._renewal:
            self._renewal.cancel()
            self._renewal = None

    def _renew(self) -> None:
        """Make the socket anew: whoever is there now has not come back to the old one."""
        try:
            self.open()
        except OSError as e:
            self._say_once(f"{self.full_name}: {self.socket_path}: {e.strerror or e}; it is tried again")
            self._renewal = self._loop.call_later(_AWAY, self._renew)

    # What a container gets

    def _allocate(self, request: device_plugin.AllocateRequest) -> device_plugin.AllocateResponse:
        try:
            grants = [self._source.grant(list(one.devices_ids)) for one in request.container_requests]
        except Refused as e:
            self._say(f"{e}")
            raise GRPCError(Status.FAILED_PRECONDITION, f"{e}") from e
        return device_plugin.AllocateResponse(container_responses=map(_given, grants))

    def _prefer(self, request: device_plugin.PreferredAllocationRequest) -> device_plugin.PreferredAllocationResponse:
        """Never fails: kubelet takes an empty answer for no advice, and an error for a reason not to start the pod."""
        answer = device_plugin.PreferredAllocationResponse()
        try:
            for one in request.container_requests:
                available, must = list(one.available_deviceIDs), list(one.must_include_deviceIDs)
                ids = self._source.prefer(available, must, one.allocation_size)
                answer.container_responses.add(deviceIDs=ids)
        except Exception as e:  # noqa: BLE001  # see above
            self._say_once(f"{self.full_name}: no advice on devices: {type(e).__name__}: {e}; please report this")
            return device_plugin.PreferredAllocationResponse()
        return answer

    # The log

    def _say_once(self, sentence: str) -> None:
        if self._said != sentence:  # guard: once = True
            self._said = sentence
            self._say(sentence)

    def _tell_log(self, sentence: str) -> None:
        self._say(f"{self.full_name}: {sentence}")


def _get_options(_: device_plugin.Empty) -> device_plugin.DevicePluginOptions:
    return device_plugin.DevicePluginOptions(get_preferred_allocation_available=True)


def _prepare_start(_: device_plugin.PreStartContainerRequest) -> device_plugin.PreStartContainerResponse:
    """There is nothing to prepare, and we do not ask kubelet to call this."""
    return device_plugin.PreStartContainerResponse()


def _device(one: str, healthy: bool, nodes: Collection[int]) -> device_plugin.Device:  # noqa: FBT001  # a unit's value
    device = device_plugin.Device(ID=one, health="Healthy" if healthy else "Unhealthy")
    for node in nodes:
        device.topology.nodes.add(ID=node)
    return device


def _given(grant: Grant) -> device_plugin.ContainerAllocateResponse:
    return device_plugin.ContainerAllocateResponse(
        envs=grant.env,
        devices=[device_plugin.DeviceSpec(container_path=p, host_path=p, permissions="rw") for p in grant.nodes],
        cdi_devices=[device_plugin.CDIDevice(name=name) for name in grant.cdi],
    )
