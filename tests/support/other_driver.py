"""Another DRA driver, as of GPUs: `python other_driver.py SOCKET NAME REFUSAL`.

It accepts every claim, with devices that need nothing in a container.  While the file REFUSAL exists, it answers each
Prepare and Unprepare with the file's text as an error.
"""

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

sys.path.insert(0, str(Path(__file__).parents[2]))
from base.kubelet import dra_pb2 as dra
from base.kubelet import pluginregistration_pb2 as registration

PATH, NAME, REFUSAL = sys.argv[1:]
INFO = registration.PluginInfo(type="DRAPlugin", name=NAME, endpoint=PATH, supported_versions=["v1.DRAPlugin"])


def answer(request: Any, kind: Any) -> Any:
    """The answer for all claims of a Prepare or an Unprepare."""
    refusal, answered = Path(REFUSAL), kind()
    for claim in request.claims:
        answered.claims[claim.uid].error = refusal.read_text() if refusal.exists() else ""
    return answered


def method(request: Any, respond: Any) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(
        lambda asked, _context: respond(asked), request.FromString, lambda answered: answered.SerializeToString()
    )


server = grpc.server(ThreadPoolExecutor(2))
for service, methods in {
    "pluginregistration.Registration": {
        "GetInfo": method(registration.InfoRequest, lambda _: INFO),
        "NotifyRegistrationStatus": method(
            registration.RegistrationStatus, lambda _: registration.RegistrationStatusResponse()
        ),
    },
    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": {
        "NodePrepareResources": method(
            dra.NodePrepareResourcesRequest, lambda asked: answer(asked, dra.NodePrepareResourcesResponse)
        ),
        "NodeUnprepareResources": method(
            dra.NodeUnprepareResourcesRequest, lambda asked: answer(asked, dra.NodeUnprepareResourcesResponse)
        ),
    },
}.items():
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
server.add_insecure_port(f"unix://{PATH}")
server.start()
signal.sigwait({signal.SIGTERM})
server.stop(0)
