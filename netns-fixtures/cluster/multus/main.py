"""The commands, as a runtime calls them: environment and stdin to stdout and exit status.

The keys of the configuration are Multus's own: ``kubeconfig`` (JSON), ``clusterNetwork`` or ``delegates``, ``confDir``,
``cniDir``, ``binDir``, and ``runtimeConfig``, which the runtime sets.
"""

import ctypes
import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster.multus import device_info, libcni, podresources, routes, sources, status
from cluster.multus.api import ApiFailed, NotFound, Server
from cluster.multus.delegates import Delegate, args_of_add, cni_args, save, saved
from cluster.multus.libcni import Call, PluginFailed
from cluster.multus.selection import BadSelection

Json = dict[str, Any]
_VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
# The errors of a command, each with a sentence for the runtime.
_ERRORS = (sources.NoNetwork, BadSelection, ApiFailed, PluginFailed, routes.RoutesFailed,
           podresources.KubeletFailed, OSError, ValueError, KeyError)  # fmt: skip
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Request:
    """One command of the runtime."""

    environ: Mapping[str, str]
    conf: Json

    def pod(self) -> dict[str, str]:
        """The pod's values in CNI_ARGS."""
        return dict(cni_args(self.environ.get("CNI_ARGS", "")))

    @property
    def folder(self) -> Path:
        """The directory for networks and results from ADD to DEL."""
        return Path(self.conf.get("cniDir") or "/var/lib/cni/multus")

    @property
    def delegates_file(self) -> Path:
        return self.folder / self.environ["CNI_CONTAINERID"]

    def server(self) -> Server | None:
        return Server(Path(self.conf["kubeconfig"])) if self.conf.get("kubeconfig") else None

    def call(self, delegate: Delegate | None = None, index: int = 0) -> Call:
        """The call of a delegate's plugins; without a delegate, a call for no pod."""
        path = (self.conf.get("binDir") or "/opt/cni/bin", *self.environ.get("CNI_PATH", "").split(os.pathsep))
        if delegate is None:
            return Call(path, self.folder)
        container, ifname = self.environ["CNI_CONTAINERID"], delegate.ifname(self.environ["CNI_IFNAME"], index)
        given = delegate.capability_args(self.conf.get("runtimeConfig") or {}, container, ifname)
        args = cni_args(self.environ.get("CNI_ARGS", ""))
        return Call(path, self.folder, container, self.environ.get("CNI_NETNS", ""), ifname, args, given)


def main() -> int:
    """Answer the command of environment and stdin; return the exit status."""
    command = os.environ.get("CNI_COMMAND", "")
    if command == "VERSION":
        print(json.dumps({"cniVersion": _VERSIONS[-1], "supportedVersions": _VERSIONS}))
        return 0
    version = _VERSIONS[-1]
    try:
        conf = json.load(sys.stdin)
        version = conf.get("cniVersion", version)
        result = _COMMANDS[command](Request(os.environ, conf))
    except _ERRORS as e:
        text = str(e) if isinstance(e, PluginFailed) else f"Multus: {e or type(e).__name__}"
        print(json.dumps({"cniVersion": version, "code": getattr(e, "code", 999), "msg": text}))
        return 1
    if result is not None:
        print(json.dumps(result))
    return 0


def add(request: Request) -> Json:
    """Attach all networks of the pod; return the result of the cluster's network."""
    server = request.server()
    try:
        pod = _pod(request, server)
    except NotFound:
        return _nothing(request)
    delegates = sources.of_pod(request.conf, server, pod)
    save(request.delegates_file, delegates)
    has_routes = any(each.asked and each.asked.default_route is not None for each in delegates)
    results, entries = [], []
    for index, delegate in enumerate(delegates):
        call = request.call(delegate, index)
        try:
            result = _attach(delegate, call)
        except (PluginFailed, OSError, ValueError) as e:
            with suppress(PluginFailed):
                _detach(request, delegates[: index + 1])
            raise PluginFailed(_of_pod(request, delegate, e)) from e
        if has_routes and (result.get("interfaces") or result.get("ips")):
            gateways = (delegate.asked and delegate.asked.default_route) or ()
            routes.give(call.netns, call.ifname, gateways)
            libcni.change_result(libcni.network(delegate.conf), call, routes.moved(result, gateways))
        results.append(result)
        device = device_info.read(Path(call.capability_args.get("CNIDeviceInfoFile", "/dev/null")))
        entries += status.statuses(result, delegate.name, device, is_default=delegate.is_default)
    if server and pod:
        _tell(server, pod, entries)
    return results[0]


def delete(request: Request) -> None:
    """Detach all networks that ADD stored; without them, the pod's present networks, if the pod exists."""
    try:
        delegates = saved(request.delegates_file)
    except FileNotFoundError:
        delegates = _asked_for(request)
    except ValueError:
        # Multus ignores an unreadable file: an error would keep the runtime from ending the pod.
        return
    delegates[:1] = [replace(each, is_default=True) for each in delegates[:1]]
    try:
        _detach(request, delegates)
    finally:
        with suppress(FileNotFoundError):
            request.delegates_file.unlink()


def check(request: Request) -> None:
    """Check the networks of ``delegates``; Multus checks no others."""
    if not request.conf.get("delegates"):
        return
    for index, delegate in enumerate(sources.cluster(request.conf, None, sources.Devices(None))):
        libcni.check(libcni.network(delegate.conf), request.call(delegate, index))


def report(request: Request) -> None:
    """STATUS of the cluster's network only."""
    delegates = sources.cluster(request.conf, request.server(), sources.Devices(None))
    libcni.status(libcni.network(delegates[0].conf), request.call())


def collect(request: Request) -> None:
    """GC of the cluster's network only."""
    delegates = sources.cluster(request.conf, request.server(), sources.Devices(None))
    libcni.collect(libcni.network(delegates[0].conf), request.call())


_COMMANDS = {"ADD": add, "DEL": delete, "CHECK": check, "STATUS": report, "GC": collect}


def _pod(request: Request, server: Server | None) -> Json | None:
    """The pod from the API server, or None without a server.  Raises NotFound, ApiFailed."""
    if not server:
        return None
    args = request.pod()
    pod = server.get(f"/api/v1/namespaces/{args['K8S_POD_NAMESPACE']}/pods/{args['K8S_POD_NAME']}")
    meta = pod["metadata"]
    # The API server has a mirror of a static pod, with a different UID.
    is_static = (meta.get("annotations") or {}).get("kubernetes.io/config.source", "api") != "api"
    if args["K8S_POD_UID"] not in ("", meta["uid"]) and not is_static:
        raise ApiFailed(f"expected pod UID {args['K8S_POD_UID']!r} but got {meta['uid']!r} from Kube API")
    return pod


def _attach(delegate: Delegate, call: Call) -> Json:
    """ADD of one network.  Raises PluginFailed, OSError."""
    if _has_interface(call.netns, call.ifname):
        raise PluginFailed(f"interface name {call.ifname} already exists")
    if (file := call.capability_args.get("CNIDeviceInfoFile")) and delegate.resource:
        device_info.copy(delegate.resource, delegate.device, Path(file))
    conf = delegate.conf_of_add or delegate.conf
    return libcni.add(libcni.network(conf), replace(call, args=(*call.args, *args_of_add(delegate.asked))))


def _has_interface(netns: str, name: str) -> bool:
    """Whether a namespace has an interface of that name; this process enters it for the check."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as own, open(netns) as of_pod:
        if libc.setns(of_pod.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter the network namespace", netns)
        try:
            return name in (interface for _, interface in socket.if_nameindex())
        finally:
            libc.setns(own.fileno(), _CLONE_NEWNET)


def _detach(request: Request, delegates: list[Delegate]) -> None:
    """DEL of the networks in reverse order, each even if another failed.  Raises PluginFailed."""
    failed = []
    for index, delegate in reversed(list(enumerate(delegates))):
        call = request.call(delegate, index)
        try:
            libcni.delete(libcni.network(delegate.conf), call)
        except (PluginFailed, OSError) as e:
            failed.append(str(e))
        if file := call.capability_args.get("CNIDeviceInfoFile"):
            device_info.remove(Path(file))
    if failed:
        raise PluginFailed(" / ".join(failed))


def _asked_for(request: Request) -> list[Delegate]:
    """The networks of a pod for which ADD stored nothing; none if the pod no longer exists."""
    server = request.server()
    try:
        pod = _pod(request, server)
    except ApiFailed:
        return []
    if not pod:
        return []
    try:
        return sources.of_pod(request.conf, server, pod)
    except (sources.NoNetwork, BadSelection):
        return sources.cluster(request.conf, server, sources.Devices(pod))


def _tell(server: Server, pod: Json, entries: list[Json]) -> None:
    """Write the pod's network-status, unless the pod has gone meanwhile."""
    meta = pod["metadata"]
    text = f"[{','.join(json.dumps(entry, indent=4) for entry in entries)}]"
    change = {"metadata": {"uid": meta["uid"], "annotations": {status.ANNOTATION: text}}}
    with suppress(NotFound):
        server.patch(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status", change)


def _of_pod(request: Request, delegate: Delegate, error: Exception) -> str:
    """The error with the pod's and the network's name."""
    args, name = request.pod(), delegate.conf.get("name", "")
    pod = "/".join(args[f"K8S_POD_{part}"] for part in ("NAMESPACE", "NAME", "UID"))
    return f'[{pod}:{name}]: error adding container to network "{name}": {error}'


def _nothing(request: Request) -> Json:
    """The answer for a pod that disappeared before it was attached."""
    interface = {"name": request.environ["CNI_IFNAME"], "sandbox": request.environ["CNI_NETNS"]}
    return {
        "cniVersion": request.conf.get("cniVersion", ""),
        "interfaces": [interface],
        "ips": [{"address": "0.0.0.0/0", "gateway": "0.0.0.0"}],
    }
