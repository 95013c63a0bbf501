"""The device plugin of one resource: what kubelet asks for at its socket, from its registration on."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from node.answers import Refused
from node.grpc.messages import framed
from node.grpc.server import REQUEST_MOST, Methods, Server, Watched, Watcher
from node.grpc.status import Code, Failed
from node.kubelet import deviceplugin_pb2 as device_plugin
from node.kubelet import pluginregistration_pb2 as registration
from node.kubelet import sockets
from node.loop import Alarm, Loop
from node.model import Grant

VERSION: Final = "v1beta1"
# kubelet does not come back to a socket whose stream has ended, unless it is a new one (its own restart aside).  This
# many seconds it has time for a restart.
_AWAY: Final = 10.0
_AROUND: Final = 3  # bytes: a field's number, and the length of a text below 16 KiB
_BESIDE: Final = 64  # the messages around the IDs, and the number of units


M = TypeVar("M", bound=Message)


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
        self, full_name: str, socket_path: Path, loop: Loop, source: Source, say: Callable[[str], None]
    ) -> None:
        self.full_name, self.socket_path = full_name, socket_path
        self._loop, self._source, self._say = loop, source, say
        self._request_most = REQUEST_MOST
        self._watchers = set[Watcher]()
        self._list = b""  # as all watchers are told it; empty if it is to be made
        self._server: Server | None = None
        self._made = 0
        self._renewal: Alarm | None = None
        self._said = ""

    def open(self) -> None:
        """Make the socket, by which kubelet finds the plugin, in the place of the one before.

        Raises Unusable, OSError; then the one before goes on.
        """
        listener = sockets.bind(self.socket_path)
        self._stop()
        self._made = sockets.inode(self.socket_path)
        self._server = Server(self._loop, listener, self._methods(), self._tell_log, lambda: self._request_most)

    def changed(self) -> None:
        """Tell kubelet what the source has now."""
        # It does not become less, because kubelet may still ask by the list of before.
        self._request_most = max(self._request_most, _longest(self._source.units()))
        self._list = b""
        for watcher in list(self._watchers):
            self._tell(watcher)

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

    def _methods(self) -> Methods:
        plugin, registry = "/v1beta1.DevicePlugin", "/pluginregistration.Registration"
        return {
            f"{registry}/GetInfo": self._get_info,
            f"{registry}/NotifyRegistrationStatus": self._note_registration,
            f"{plugin}/GetDevicePluginOptions": _get_options,
            f"{plugin}/ListAndWatch": Watched(self._begin_watch, self._end_watch),
            f"{plugin}/GetPreferredAllocation": self._prefer,
            f"{plugin}/Allocate": self._allocate,
            f"{plugin}/PreStartContainer": _prepare_start,
        }

    # Registration

    def _get_info(self, _: bytes) -> bytes:
        return registration.PluginInfo(
            type="DevicePlugin", name=self.full_name, endpoint=str(self.socket_path), supported_versions=[VERSION]
        ).SerializeToString()

    def _note_registration(self, message: bytes) -> bytes:
        status = _read(registration.RegistrationStatus, message)
        if not status.plugin_registered:
            self._say_once(
                f"kubelet refuses {self.full_name}: {' '.join(status.error.split())}; no pod gets it until that is "
                "mended, and kubelet tries again by itself"
            )
        elif self._said:
            self._say_once(f"kubelet has taken {self.full_name}")
        return registration.RegistrationStatusResponse().SerializeToString()

    # What there is

    def _begin_watch(self, watcher: Watcher, _: bytes) -> None:
        self._keep_socket()  # guard: not-if-one-comes
        self._watchers.add(watcher)
        self._tell(watcher)

    def _end_watch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        if not self._watchers:
            self._list = b""
        if self._server and not self._watchers:  # guard: not-while-one-listens (_watchers)
            self._keep_socket()
            self._renewal = self._loop.after(_AWAY, self._renew)

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
            self._renewal = self._loop.after(_AWAY, self._renew)

    def _tell(self, watcher: Watcher) -> None:
        if not self._list:
            devices = [_device(one, healthy, nodes) for one, healthy, nodes in self._source.units()]
            self._list = framed(device_plugin.ListAndWatchResponse(devices=devices).SerializeToString())
        watcher.tell(self._list)

    # What a container gets

    def _allocate(self, message: bytes) -> bytes:
        request = _read(device_plugin.AllocateRequest, message)
        try:
            grants = [self._source.grant(list(one.devices_ids)) for one in request.container_requests]
        except Refused as e:
            self._say(f"{e}")
            raise Failed(Code.FAILED_PRECONDITION, f"{e}") from e
        return device_plugin.AllocateResponse(container_responses=map(_given, grants)).SerializeToString()

    def _prefer(self, message: bytes) -> bytes:
        """Never fails: kubelet takes an empty answer for no advice, and an error for a reason not to start the pod."""
        answer = device_plugin.PreferredAllocationResponse()
        try:
            request = _read(device_plugin.PreferredAllocationRequest, message)
            for one in request.container_requests:
                available, must = list(one.available_deviceIDs), list(one.must_include_deviceIDs)
                ids = self._source.prefer(available, must, one.allocation_size)
                answer.container_responses.add(deviceIDs=ids)
        except Failed as e:
            self._say_once(f"{self.full_name}: no advice on devices: {e.message}")
            return device_plugin.PreferredAllocationResponse().SerializeToString()
        except Exception as e:  # noqa: BLE001  # see above
            self._say_once(f"{self.full_name}: no advice on devices: {type(e).__name__}: {e}; please report this")
            return device_plugin.PreferredAllocationResponse().SerializeToString()
        return answer.SerializeToString()

    # The log

    def _say_once(self, sentence: str) -> None:
        if self._said != sentence:  # guard: once = True
            self._said = sentence
            self._say(sentence)

    def _tell_log(self, sentence: str) -> None:
        self._say(f"{self.full_name}: {sentence}")


def _read(kind: type[M], message: bytes) -> M:
    """What the peer has sent.  Raises Failed with what Go's servers answer to a message that is none."""
    try:
        return kind.FromString(message)
    except DecodeError as e:
        raise Failed(Code.INTERNAL, f"what was sent is no {kind.DESCRIPTOR.full_name}") from e


def _longest(units: Sequence[tuple[str, bool, Collection[int]]]) -> int:
    """The bytes of kubelet's longest request: GetPreferredAllocation, with each ID as one that is free and as one that
    the container must have."""
    return 2 * sum(len(one.encode()) + _AROUND for one, _, _ in units) + _BESIDE


def _get_options(_: bytes) -> bytes:
    return device_plugin.DevicePluginOptions(get_preferred_allocation_available=True).SerializeToString()


def _prepare_start(_: bytes) -> bytes:
    """There is nothing to prepare, and we do not ask kubelet to call this."""
    return device_plugin.PreStartContainerResponse().SerializeToString()


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
