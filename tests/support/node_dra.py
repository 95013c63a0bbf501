"""A kubelet on grpcio, as a DRA driver sees it (kubelet: pkg/kubelet/cm/dra)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from support.node_kubelet import LOCAL, Kubelet

from base.kubelet import dra_pb2 as dra
from base.kubelet import drahealth_pb2 as health


class DraKubelet(Kubelet):
    version = "v1"
    health_version = "v1alpha1"

    def prepare(self, *claims: tuple[str, str, str]) -> dict[str, Any]:
        """Prepare claims by namespace, name and UID; the answers by UID."""
        request = dra.NodePrepareResourcesRequest(claims=_claims(claims))
        answer = self._ask_plugin("NodePrepareResources", request, dra.NodePrepareResourcesResponse)
        return dict(answer.claims)

    def begin(self, *claims: tuple[str, str, str]) -> Any:
        """Begin to prepare claims; ``cancel`` of the outcome hangs up."""
        method = f"/k8s.io.kubelet.pkg.apis.dra.{self.version}.DRAPlugin/NodePrepareResources"
        ask = self._channel.unary_unary(method, dra.NodePrepareResourcesRequest.SerializeToString)
        return ask.future(dra.NodePrepareResourcesRequest(claims=_claims(claims)), timeout=120)

    def unprepare(self, *claims: tuple[str, str, str]) -> dict[str, str]:
        """Give claims up; the errors by UID."""
        request = dra.NodeUnprepareResourcesRequest(claims=_claims(claims))
        answer = self._ask_plugin("NodeUnprepareResources", request, dra.NodeUnprepareResourcesResponse)
        return {uid: one.error for uid, one in answer.claims.items()}

    def health(self) -> Any:
        ask = self._channel.unary_stream(
            f"/{self.health_version}.DRAResourceHealth/NodeWatchResources",
            health.NodeWatchResourcesRequest.SerializeToString,
            health.NodeWatchResourcesResponse.FromString,
        )
        return ask(health.NodeWatchResourcesRequest(), timeout=120)

    def _ask_plugin(self, method: str, request: Any, answer: Any) -> Any:
        return self.ask(f"/k8s.io.kubelet.pkg.apis.dra.{self.version}.DRAPlugin/{method}", request, answer)


def _claims(claims: tuple[tuple[str, str, str], ...]) -> list[Any]:
    return [dra.Claim(namespace=namespace, name=name, uid=uid) for namespace, name, uid in claims]


@contextmanager
def dra_kubelet(path: Path) -> Iterator[DraKubelet]:
    with grpc.insecure_channel(f"unix:{path}", options=LOCAL) as channel:
        yield DraKubelet(channel)
