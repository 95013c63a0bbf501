"""Clients of kubelet and of the device plugins in its directory.

Kubelet lists each container's devices (pkg/apis/podresources/v1).  A plugin names the resource that it offers
(pkg/apis/pluginregistration/v1).
"""

from pathlib import Path
from typing import Final, NamedTuple

from base.grpc import Failed, call
from base.kubelet import pluginregistration_pb2 as registration
from base.kubelet import podresources_pb2 as pod_resources
from base.protocol.location import KUBELET
from base.state.gates import DRIVER

SOCKET: Final = Path(f"{KUBELET}/pod-resources/kubelet.sock")
TIMEOUT: Final = 1.0  # seconds; kubelet and plugins answer from memory
_TYPE: Final = "DevicePlugin"


class Held(NamedTuple):
    """A container's devices of one resource."""

    namespace: str
    pod: str
    container: str
    resource: str
    ids: tuple[str, ...]


def pods(path: Path = SOCKET, timeout: float = TIMEOUT) -> list[Held]:
    """Every container with devices, in order of namespace and pod.  Only root's kubelet counts.  The list is empty if
    there is no kubelet, or if it does not answer in time."""
    return listed(path, timeout) or []


def listed(path: Path, timeout: float) -> list[Held] | None:
    """As ``pods``, but None without an answer."""
    if not path.is_socket():
        return None
    try:
        request, kind = pod_resources.ListPodResourcesRequest(), pod_resources.ListPodResourcesResponse
        answer = call(path, "/v1.PodResourcesLister/List", request, kind, timeout=timeout)
    except Failed:
        return None
    return sorted(
        Held(pod.namespace, pod.name, container.name, devices.resource_name, tuple(sorted(devices.device_ids)))
        for pod in answer.pod_resources
        for container in pod.containers
        for devices in container.devices
    )


def resource(path: Path, timeout: float = TIMEOUT) -> str:
    """The resource that the device plugin at this socket offers, or hpn's driver name.  Only root's plugins count.  It
    is empty for another driver or kind of plugin, or if the plugin does not answer in time."""
    try:
        method = "/pluginregistration.Registration/GetInfo"
        info = call(path, method, registration.InfoRequest(), registration.PluginInfo, timeout=timeout)
    except Failed:
        return ""
    return str(info.name) if info.type == _TYPE or info.name == DRIVER else ""
