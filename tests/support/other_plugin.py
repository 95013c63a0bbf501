"""Another program's plugin that only identifies itself: `python other_plugin.py SOCKET NAME`.

A name with a slash is a device plugin's resource, and another one a DRA driver's.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).parents[2]))
from base.kubelet import pluginregistration_pb2 as registration

PATH, NAME = sys.argv[1:]
KIND, VERSION = ("DevicePlugin", "v1beta1") if "/" in NAME else ("DRAPlugin", "v1.DRAPlugin")
INFO = registration.PluginInfo(type=KIND, name=NAME, endpoint=PATH, supported_versions=[VERSION])
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
