"""A device plugin: kubelet's calls for one resource, at a socket in its directory."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from base.grpc import Stream, unary, watched
from base.kubelet import deviceplugin_pb2 as device_plugin
from base.kubelet import pluginregistration_pb2 as registration
from node.kubelet import sockets
from node.kubelet.served import Served, State
from node.kubelet.service import Shell
from node.model import Grant
from node.offer import answers

VERSION: Final = "v1beta1"
# Seconds that kubelet has for a restart.  After it kubelet returns to a socket with a broken stream only if the socket
# is new.
_AWAY: Final = 10.0
_SILENT: Final = 60.0  # seconds without any call of kubelet, which connects to a new socket at once


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
        self._shell = Shell(full_name, "the resource", log)
        self._renewal: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Make the socket to which kubelet connects, and replace the previous one.

        Raises Unusable, OSError; then the previous one goes on.
        """
        self._endpoint.open(self._methods())
        self._forget_timers()
        self._silence = self._loop.call_later(_SILENT, self._note_silence)

    def changed(self) -> None:
        """Send kubelet the source's present units."""
        self._shell.changed()

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
        self._shell.log_once(
            f"{self.full_name}: kubelet has not called {self.socket_path} for {_SILENT:g} s: it does not run, or has "
            "another directory; name that: --kubelet-dir (kubeletDir in the chart)"
        )

    def _get_info(self, _: registration.InfoRequest) -> registration.PluginInfo:
        self._hear()
        return registration.PluginInfo(
            type="DevicePlugin", name=self.full_name, endpoint=str(self.socket_path), supported_versions=[VERSION]
        )

    def _note_status(self, status: registration.RegistrationStatus) -> registration.RegistrationStatusResponse:
        return self._shell.note(status)

    # Units

    async def _watch(self, stream: Stream) -> None:
        """Send the list of units now and after each change; a slow peer gets only the newest list."""
        self._keep_socket()
        server = self._endpoint.server
        try:
            with self._shell.watcher() as watcher:
                while True:
                    watcher.clear()
                    devices = map(_device, self._source.units())
                    await stream.send_message(device_plugin.ListAndWatchResponse(devices=devices))
                    await watcher.wait()
        finally:
            if server and self._endpoint.server is server and not self._shell.is_watched:
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
            self._shell.log_once(f"{self.full_name}: {self.socket_path}: {e.strerror or e}; it is tried again")
            self._renewal = self._loop.call_later(_AWAY, self._renew)

    # Allocation

    def _allocate(self, request: device_plugin.AllocateRequest) -> device_plugin.AllocateResponse:
        try:
            grants = [self._source.grant(list(one.devices_ids)) for one in request.container_requests]
        except answers.AllocateRefused as e:
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
            self._shell.log_once(f"{self.full_name}: no advice on devices: {type(e).__name__}: {e}; please report this")
            return device_plugin.PreferredAllocationResponse()
        return answer

    # Log

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
