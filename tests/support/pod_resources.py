"""kubelet's list of pods' resources, on grpcio, with devices that a test sets."""

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from base.kubelet import podresources_pb2 as pod_resources


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
    (folder / "pod-resources").mkdir(exist_ok=True)
    lister, server = Lister(), grpc.server(futures.ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(lister.answer)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})])
    server.add_insecure_port(f"unix:{folder}/pod-resources/kubelet.sock")
    server.start()
    yield lister
    server.stop(None).wait()
