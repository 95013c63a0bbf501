"""Another program's device plugin that only identifies itself: `python other_plugin.py SOCKET RESOURCE`."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).parents[2]))
from base.kubelet import pluginregistration_pb2 as registration

PATH, RESOURCE = sys.argv[1:]
INFO = registration.PluginInfo(type="DevicePlugin", name=RESOURCE, endpoint=PATH, supported_versions=["v1beta1"])
HANDLER = grpc.unary_unary_rpc_method_handler(lambda _request, _context: INFO.SerializeToString())
server = grpc.server(ThreadPoolExecutor(1))
server.add_generic_rpc_handlers(
    (grpc.method_handlers_generic_handler("pluginregistration.Registration", {"GetInfo": HANDLER}),)
)
server.add_insecure_port(f"unix://{PATH}")
server.start()
sys.stdout.write("up\n")
sys.stdout.flush()
sys.stdin.read()
server.stop(0)
