"""A substitute for kubelet as device plugins see it: grpcio connects to each new socket in plugins_registry.

The order is kubelet's (pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go): dial, GetInfo,
NotifyRegistrationStatus, GetDevicePluginOptions, ListAndWatch.  A plugin's devices vanish when its stream ends.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import grpc

from base.kubelet import deviceplugin_pb2 as plugins
from base.kubelet import pluginregistration_pb2 as registration

_LOOK = 0.005  # seconds; kubelet uses fsnotify instead


class Kubelet:
    """A kubelet with its state in ``root``; ``start`` makes plugins_registry, as kubelet does."""

    def __init__(self, root: Path) -> None:
        self.registry = root / "plugins_registry"
        self.refuses = ""  # the reason for refusing each plugin
        self._changed = threading.Condition()
        self._devices = dict[str, dict[str, plugins.Device]]()
        self._channels = dict[str, tuple[int, grpc.Channel]]()
        self._sockets = dict[str, Path]()
        self._ends = threading.Event()
        self._threads = list[threading.Thread]()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.registry.mkdir(parents=True, exist_ok=True)
        self._ends.clear()
        self._run(self._watch)

    def stop(self) -> None:
        """Close all connections, as a kubelet that ends."""
        self._ends.set()
        for _, channel in list(self._channels.values()):
            channel.close()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._channels.clear()
        self._devices.clear()

    def devices(self, resource: str) -> dict[str, bool]:
        """Return the IDs of a resource, and whether each is healthy."""
        return {one: device.health == "Healthy" for one, device in self._devices.get(resource, {}).items()}

    def numa(self, resource: str, one: str) -> list[int]:
        return [node.ID for node in self._devices[resource][one].topology.nodes]

    def until(self, resource: str, devices: dict[str, bool] | None, seconds: float = 60.0) -> None:
        """Wait until the resource has these devices; None waits until the resource is absent."""
        with self._changed:
            there = self._changed.wait_for(
                lambda: (
                    (resource in self._devices and self.devices(resource) == devices)
                    if devices is not None
                    else resource not in self._devices
                ),
                seconds,
            )
        assert there, f"{resource} has {self.devices(resource)}, and not {devices}, after {seconds} s"

    def allocate(self, resource: str, *ids: str) -> plugins.ContainerAllocateResponse:
        """Allocate these IDs.  Raises grpc.RpcError."""
        request = plugins.AllocateRequest(container_requests=[plugins.ContainerAllocateRequest(devices_ids=ids)])
        answer = self._call(resource, "Allocate", request, plugins.AllocateResponse)
        return answer.container_responses[0]

    def prefer(self, resource: str, available: Sequence[str], size: int) -> list[str]:
        one = plugins.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=size)
        request = plugins.PreferredAllocationRequest(container_requests=[one])
        answer = self._call(resource, "GetPreferredAllocation", request, plugins.PreferredAllocationResponse)
        return list(answer.container_responses[0].deviceIDs)

    def _call(self, resource: str, method: str, request: Any, answer: Any) -> Any:
        with grpc.insecure_channel(f"unix:{self._sockets[resource]}") as channel:
            return _ask(channel, f"v1beta1.DevicePlugin/{method}", request, answer)

    def _run(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        # time: the pace of looks
        while not self._ends.wait(_LOOK):
            for path in self.registry.glob("[!.]*.sock"):
                with suppress(FileNotFoundError):
                    made = path.stat().st_ctime_ns  # the kernel may reuse an inode number
                    if self._channels.get(path.name, (0, None))[0] != made:
                        channel = grpc.insecure_channel(f"unix:{path}")
                        self._channels[path.name] = made, channel
                        self._run(self._register, path, channel)

    def _register(self, path: Path, channel: grpc.Channel) -> None:
        resource = ""
        # A channel that closes meanwhile raises ValueError.
        with suppress(grpc.RpcError, ValueError):
            info = _ask(
                channel, "pluginregistration.Registration/GetInfo", registration.InfoRequest(), registration.PluginInfo
            )
            assert info.type == "DevicePlugin"
            assert "v1beta1" in info.supported_versions
            assert info.endpoint == str(path)
            status = registration.RegistrationStatus(plugin_registered=not self.refuses, error=self.refuses)
            kind = registration.RegistrationStatusResponse
            _ask(channel, "pluginregistration.Registration/NotifyRegistrationStatus", status, kind)
            if self.refuses:
                return
            resource = info.name
            self._sockets[resource] = path
            _ask(channel, "v1beta1.DevicePlugin/GetDevicePluginOptions", plugins.Empty(), plugins.DevicePluginOptions)
            stream = channel.unary_stream(
                "/v1beta1.DevicePlugin/ListAndWatch",
                plugins.Empty.SerializeToString,
                plugins.ListAndWatchResponse.FromString,
            )
            for answer in stream(plugins.Empty()):
                with self._changed:
                    self._devices[resource] = {device.ID: device for device in answer.devices}
                    self._changed.notify_all()
        with self._changed:
            if self._sockets.get(resource) == path:
                self._devices.pop(resource, None)
            self._changed.notify_all()


def _ask(channel: grpc.Channel, method: str, request: Any, answer: Any) -> Any:
    ask = channel.unary_unary(f"/{method}", type(request).SerializeToString, answer.FromString)
    return ask(request, timeout=60.0)
