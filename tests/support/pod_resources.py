"""kubelet's list of pods' resources, and its checkpoint of them, on grpcio, with devices that a test sets."""

import json
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from base.kubelet import podresources_pb2 as pod_resources
from base.protocol import location

# kubelet makes all of them at its start.
FOLDERS = ("pod-resources", "device-plugins", "pods")
CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"
UID = "11111111-2222-3333-4444-555555555555"
CNI_ARGS = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a;K8S_POD_UID={UID}"


def kubelet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make kubelet's directory, which ADD reads."""
    (folder / "device-plugins").mkdir(parents=True)
    monkeypatch.setattr(location, "KUBELETS", (f"{folder}",))
    return folder


def entry(pod: str, resource: str, *ids: str) -> dict[str, Any]:
    """A container's units in kubelet's checkpoint, by NUMA node."""
    return {
        "PodUID": pod,
        "ContainerName": "c",
        "ResourceName": resource,
        "DeviceIDs": {"-1": list(ids[:1]), "0": list(ids[1:])},
        "AllocResp": "",
    }


def keep(folder: Path, *entries: dict[str, Any]) -> None:
    """Write kubelet's checkpoint."""
    data = {"PodDeviceEntries": entries, "RegisteredDevices": {}}
    (folder / CHECKPOINT).write_text(json.dumps({"Data": data, "Checksum": 1}))


class Lister:
    """kubelet's PodResources at a socket of a folder, with these devices of a container."""

    def __init__(self) -> None:
        self.devices = dict[str, list[str]]()

    def answer(self, _request: bytes, _context: Any) -> bytes:
        answer = pod_resources.ListPodResourcesResponse()
        container = answer.pod_resources.add(name="a", namespace="default").containers.add(name="c")
        for name, ids in self.devices.items():
            container.devices.add(resource_name=name, device_ids=ids)
        return answer.SerializeToString()


@contextmanager
def listing(folder: Path) -> Iterator[Lister]:
    for name in FOLDERS:
        (folder / name).mkdir(exist_ok=True)
    lister, server = Lister(), grpc.server(futures.ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(lister.answer)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})])
    server.add_insecure_port(f"unix:{folder}/pod-resources/kubelet.sock")
    server.start()
    yield lister
    server.stop(None).wait()
