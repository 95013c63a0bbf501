"""What a plugin in kubelet's directory says that it is (kubelet: pkg/apis/pluginregistration/v1)."""

from pathlib import Path
from typing import Final

from base.grpc import Failed, call
from base.kubelet import pluginregistration_pb2 as registration

TIMEOUT: Final = 1.0  # seconds; a plugin answers from memory
_TYPE: Final = "DevicePlugin"


def resource(path: Path, timeout: float = TIMEOUT) -> str:
    """The resource that the device plugin at this socket offers; empty if it is another plugin, or does not answer in
    time.  Only root's plugins are asked."""
    try:
        method = "/pluginregistration.Registration/GetInfo"
        info = call(path, method, registration.InfoRequest(), registration.PluginInfo, timeout=timeout)
    except Failed:
        return ""
    return str(info.name) if info.type == _TYPE else ""
