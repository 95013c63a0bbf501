"""A kubelet on grpcio, as a device plugin sees it: its requests in its order (operation_generator.go)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from base.kubelet import deviceplugin_pb2 as dp
from base.kubelet import pluginregistration_pb2 as reg

LOCAL = [("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost")]


class Kubelet:
    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def ask(self, method: str, request: Any, answer: Any) -> Any:
        decode = answer.FromString
        return self._channel.unary_unary(method, type(request).SerializeToString, decode)(request, timeout=60)

    def info(self) -> Any:
        return self.ask("/pluginregistration.Registration/GetInfo", reg.InfoRequest(), reg.PluginInfo)

    def notify(self, error: str = "") -> None:
        status = reg.RegistrationStatus(plugin_registered=not error, error=error)
        method = "/pluginregistration.Registration/NotifyRegistrationStatus"
        self.ask(method, status, reg.RegistrationStatusResponse)

    def options(self) -> Any:
        return self.ask("/v1beta1.DevicePlugin/GetDevicePluginOptions", dp.Empty(), dp.DevicePluginOptions)

    def watch(self) -> Any:
        method = "/v1beta1.DevicePlugin/ListAndWatch"
        ask = self._channel.unary_stream(method, dp.Empty.SerializeToString, dp.ListAndWatchResponse.FromString)
        return ask(dp.Empty(), timeout=60)

    def allocate(self, *ids: str) -> Any:
        request = dp.AllocateRequest(container_requests=[dp.ContainerAllocateRequest(devices_ids=ids)])
        return self.ask("/v1beta1.DevicePlugin/Allocate", request, dp.AllocateResponse).container_responses[0]

    def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        one = dp.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        request = dp.PreferredAllocationRequest(container_requests=[one])
        method = "/v1beta1.DevicePlugin/GetPreferredAllocation"
        answer = self.ask(method, request, dp.PreferredAllocationResponse)
        return [one for response in answer.container_responses for one in response.deviceIDs]


@contextmanager
def kubelet(path: Path) -> Iterator[Kubelet]:
    with grpc.insecure_channel(f"unix:{path}", options=LOCAL) as channel:
        yield Kubelet(channel)
