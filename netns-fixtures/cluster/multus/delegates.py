"""The networks of one pod, each with its plugins' configuration and arguments."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cluster.multus import device_info
from cluster.multus.selection import Selection

Json = dict[str, Any]
# The keys of a plugin's configuration that survive libcni's reading into its own type.
_COMMON = ("cniVersion", "name", "type", "capabilities", "dns")
# The pod's own CNI_ARGS, in the order in which they are passed on.
_OF_POD = ("K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_INFRA_CONTAINER_ID", "K8S_POD_UID")


@dataclass(frozen=True)
class Delegate:
    """One network of a pod.

    ``conf`` is its configuration, and ``conf_of_add`` the one for ADD if that has more.  ``device`` is the pod's device
    of ``resource`` from kubelet, or the one that the pod's annotation names.
    """

    name: str
    conf: Json
    conf_of_add: Json | None = None
    asked: Selection | None = None
    device: str = ""
    resource: str = ""
    is_default: bool = False

    def ifname(self, of_pod: str, index: int) -> str:
        """The interface: the requested one, the runtime's for the cluster's network, else net1, net2, ..."""
        if self.asked and self.asked.interface:
            return self.asked.interface
        return of_pod if self.is_default else f"net{index}"

    def capability_args(self, from_runtime: Json, container_id: str, ifname: str) -> Json:
        """The candidates for the plugins' runtimeConfig; a plugin gets those that its capabilities list."""
        given = dict(from_runtime)
        if self.asked and not self.is_default:
            given |= {
                "portMappings": list(self.asked.port_mappings) or given.get("portMappings"),
                "bandwidth": self.asked.bandwidth or given.get("bandwidth"),
                "ips": list(self.asked.ips) or given.get("ips"),
                "mac": self.asked.mac or given.get("mac"),
                "infinibandGUID": self.asked.guid or given.get("infinibandGUID"),
                "deviceID": self.device or given.get("deviceID"),
            }
        if given.get("deviceID"):
            given["CNIDeviceInfoFile"] = str(device_info.of_attachment(self.name, container_id, ifname))
        return {key: value for key, value in given.items() if value}


def delegate(conf: Json, asked: Selection | None = None, device: str = "", resource: str = "") -> Delegate:
    """A network by its configuration.  A device of a resource and cni-args go into each plugin's configuration."""
    name = f"{asked.namespace}/{asked.name}" if asked else conf.get("name", "")
    for plugin in conf.get("plugins", [conf]):
        if device:
            plugin |= {"deviceID": device, "pciBusID": device}
        if asked and asked.cni_args is not None:
            args = plugin.setdefault("args", {})
            args["cni"] = args.get("cni", {}) | asked.cni_args
    named = asked.device if asked else ""
    return Delegate(name, conf, asked=asked, device=device or named, resource=resource if device else "")


def stripped(conf: Json) -> Delegate:
    """A network by a conflist in its own file: ADD gets all of it, any other command the types only.

    Multus 4.3.0 does that, and later versions do not.
    """
    plugins = []
    for plugin in conf["plugins"]:
        ipam = {"type": plugin["ipam"]["type"]} if (plugin.get("ipam") or {}).get("type") else {}
        plugins.append({key: plugin[key] for key in _COMMON if plugin.get(key)} | {"ipam": ipam})
    keys = ("cniVersion", "name", "disableCheck", "disableGC")
    left = {key: conf[key] for key in keys if conf.get(key)} | {"plugins": plugins}
    return replace(delegate(left), conf_of_add=conf)


def cni_args(of_runtime: str) -> tuple[tuple[str, str], ...]:
    """CNI_ARGS for delegates: Multus's values for the pod, then the runtime's own, which therefore appear twice."""
    own = [(key, value) for key, is_, value in (arg.partition("=") for arg in of_runtime.split(";")) if is_]
    known = dict(own)
    return (("IgnoreUnknown", "true"), *((key, known.get(key, "")) for key in _OF_POD), *own)


def args_of_add(asked: Selection | None) -> tuple[tuple[str, str], ...]:
    """The MAC and the addresses that the pod requests, in ADD's form from before capabilities."""
    mac = (("MAC", asked.mac),) if asked and asked.mac else ()
    return (*mac, *((("IP", ",".join(asked.ips)),) if asked and asked.ips else ()))


def save(file: Path, delegates: Sequence[Delegate]) -> None:
    """Store a pod's networks for DEL, without what DEL does not get: all of a stripped one, ports and bandwidth."""
    kept = [asdict(replace(each, conf_of_add=None)) for each in delegates]
    for each in kept:
        for key in ("port_mappings", "bandwidth") if each["asked"] else ():
            del each["asked"][key]
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_text(json.dumps(kept))


def saved(file: Path) -> list[Delegate]:
    """The networks that ADD stored.  Raises OSError, ValueError."""
    return [_read(each) for each in json.loads(file.read_text())]


def _read(kept: Mapping[str, Any]) -> Delegate:
    asked = Selection(**kept["asked"]) if kept["asked"] else None
    return Delegate(**{**kept, "asked": asked})
