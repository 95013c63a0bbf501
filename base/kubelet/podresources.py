"""Which pod has which device, as kubelet knows it (kubelet: pkg/apis/podresources/v1)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from base.grpc import Failed, call
from base.kubelet import podresources_pb2 as pod_resources

SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
TIMEOUT: Final = 1.0  # seconds; kubelet answers from memory


class Held(NamedTuple):
    """The devices of one resource that a container has."""

    namespace: str
    pod: str
    container: str
    resource: str
    ids: tuple[str, ...]


def pods(path: Path = SOCKET, timeout: float = TIMEOUT) -> list[Held]:
    """Every container that has devices, in order of namespace and pod; none where there is no kubelet, or where it does
    not answer in time.  Only root's kubelet is asked."""
    if not path.is_socket():
        return []
    try:
        request, kind = pod_resources.ListPodResourcesRequest(), pod_resources.ListPodResourcesResponse
        return sorted(_held(call(path, "/v1.PodResourcesLister/List", request, kind, timeout=timeout)))
    except Failed:
        return []


def _held(answer: pod_resources.ListPodResourcesResponse) -> Iterator[Held]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                ids = tuple(sorted(devices.device_ids))
                yield Held(pod.namespace, pod.name, container.name, devices.resource_name, ids)
