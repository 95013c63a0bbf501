"""The source of a network's configuration: a NetworkAttachmentDefinition, a file, or Multus's own configuration."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.multus import claims, podresources, selection
from cluster.multus.api import ApiFailed, Server
from cluster.multus.delegates import Delegate, delegate, stripped
from cluster.multus.selection import Selection

Json = dict[str, Any]
RESOURCE = "k8s.v1.cni.cncf.io/resourceName"
# The namespace of the definition of a cluster network given by name.
_NAMESPACE = "kube-system"
_SUFFIXES = (".conf", ".json", ".conflist")


class NoNetwork(Exception):
    """A network's configuration is missing or unreadable."""


class Devices:
    """A pod's devices; each network takes the next one of its resource.  The first network with a resource queries
    kubelet, and reads the pod's claims from the server."""

    def __init__(self, pod: Json | None, server: Server | None = None) -> None:
        self.pod = (pod or {}).get("metadata", {})
        self._whole, self._server = pod, server
        self._all: dict[str, list[str]] | None = None
        self._taken = Counter[str]()

    def next_of(self, resource: str) -> str:
        """The next device; empty if the pod has none of it, or no more."""
        if not self.pod:
            return ""
        if self._all is None:
            self._all = podresources.devices(self.pod["namespace"], self.pod["name"])
            if self._whole and self._server:
                for name, ids in claims.devices(self._server, self._whole).items():
                    self._all[name] = sorted(self._all.get(name, []) + ids)
        left = self._all.get(resource, [])[self._taken[resource] :]
        self._taken[resource] += 1
        return next(iter(left), "")


def of_pod(conf: Json, server: Server | None, pod: Json | None) -> list[Delegate]:
    """All networks of a pod, the cluster's first."""
    devices = Devices(pod, server)
    own = cluster(conf, server, devices)
    if not server or not pod:
        return own
    annotations = pod["metadata"].get("annotations") or {}
    if instead := annotations.get(selection.DEFAULT_ANNOTATION):
        asked = selection.selections(instead, _NAMESPACE)
        own[0] = replace(definition(conf, server, asked[0], Devices(pod, server)), is_default=True)
    if networks := annotations.get(selection.ANNOTATION):
        asked = selection.selections(networks, pod["metadata"]["namespace"])
        own += [definition(conf, server, each, devices) for each in asked]
    return own


def cluster(conf: Json, server: Server | None, devices: Devices) -> list[Delegate]:
    """The cluster's networks: those of ``delegates``, or that of ``clusterNetwork``."""
    if not (name := conf.get("clusterNetwork", "")):
        found = [delegate(each) for each in conf.get("delegates", ())]
        if not found:
            raise NoNetwork("at least one delegate/clusterNetwork must be specified")
        return [replace(found[0], is_default=True), *found[1:]]
    if not server:
        raise NoNetwork("must have either Kubernetes config or delegates")
    return [replace(_by_path(Path(name)) if "/" in name else _by_name(conf, server, name, devices), is_default=True)]


def definition(conf: Json, server: Server, asked: Selection, devices: Devices) -> Delegate:
    """A network by its NetworkAttachmentDefinition."""
    path = f"/apis/k8s.cni.cncf.io/v1/namespaces/{asked.namespace}/network-attachment-definitions/{asked.name}"
    try:
        found = server.get(path)
    except ApiFailed as e:
        raise NoNetwork(
            f"cannot find a network-attachment-definition ({asked.name}) in namespace ({asked.namespace}): {e}"
        ) from e
    resource = (found["metadata"].get("annotations") or {}).get(RESOURCE, "")
    device = devices.next_of(resource) if resource else ""
    text = (found.get("spec") or {}).get("config")
    if not text:
        return delegate(_in_folder(asked.name, _folder(conf)), asked, device, resource)
    read = json.loads(text)
    return delegate(read | {"name": read.get("name") or asked.name}, asked, device, resource)


def _by_name(conf: Json, server: Server, name: str, devices: Devices) -> Delegate:
    """The network's definition, or else its file.

    Without a pod, in STATUS and GC, Multus 4.3.0 crashes if there is no definition, because it tries to notify the pod.
    """
    try:
        return definition(conf, server, Selection(name, _NAMESPACE), devices)
    except NoNetwork:
        if not devices.pod:
            raise
    return delegate(_in_folder(name, _folder(conf)))


def _by_path(path: Path) -> Delegate:
    """The first file in a folder, or a file."""
    if path.is_dir():
        return delegate(_in_folder("", path))
    return stripped(_read(path)) if path.suffix == ".conflist" else delegate(_read(path))


def _folder(conf: Json) -> Path:
    return Path(conf.get("confDir") or "/etc/cni/multus/net.d")


def _in_folder(name: str, folder: Path) -> Json:
    """The configuration of the network of that name, or the first one."""
    files = sorted(file for file in folder.glob("*") if file.suffix in _SUFFIXES)
    for conf in map(_read, files):
        if name in ("", conf.get("name")):
            return conf
    raise NoNetwork(f"no network available in the name {name} in cni dir {folder}")


def _read(file: Path) -> Json:
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError) as e:
        raise NoNetwork(f"cannot read {file}: {e}") from e
