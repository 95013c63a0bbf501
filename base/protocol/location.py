"""The node's directories, and what DEL and GC need of a configuration: the network and its IPAM plugin.

These two are read without the rest, because a pod must be deletable even if its network's configuration is broken.
"""

import os
from _thread import _local  # threading.local (base/kernel/budget.py)
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from base.protocol import spec
from base.protocol.errors import InvalidConfig
from base.protocol.spec import Config

# The journal's devices and namespaces end with the boot.  On a tmpfs, syncing costs nothing.
STATE_DIR: Final = "/run/hpn"
# The claims that hpn node has prepared (base/state/claims.py).
CLAIMS_DIR: Final = f"{STATE_DIR}/claims"
# Leases outlive the boot, for people who ask later who had an address.
IPAM_DIR: Final = "/var/lib/cni/hpn/ipam"
# kubelet's directory, unless its --root-dir names another; and those of MicroK8s and k0s.
KUBELET: Final = "/var/lib/kubelet"
KUBELETS: Final = (KUBELET, "/var/snap/microk8s/common/var/lib/kubelet", "/var/lib/k0s/kubelet")
# Where most runtimes find the plugin.
PLUGIN: Final = "/opt/cni/bin/hpn"
# The launcher unpacks the program here, one directory per version, unless HPN_PROGRAM_DIR is set.
PROGRAM_DIR: Final = "/var/lib/cni/hpn/program"
OF_TEST: Final = "HPN_STATE_DIR"
_OF_ANY_PLUGIN: Final = frozenset({"cniVersion", "name", "type", "ipam", "capabilities", "dns"})


# A node has few such paths, and making a Path takes longer than opening the file.
path_of = lru_cache(maxsize=64)(Path)


class _OfTest(_local):
    """What ``HPN_STATE_DIR`` is in the request that this thread of an agent serves."""

    directory = ""


of_test: Final = _OfTest()


def state_dir() -> Path:
    """The directory of the journal, its locks and numbers.  HPN_STATE_DIR gives a test its own; no configuration and no
    pod can set it."""
    return path_of(of_test.directory or os.environ.get(OF_TEST) or STATE_DIR)


def ipam_dir() -> str:
    """The directory of leases, unless ipam.dataDir names another."""
    directory = f"{state_dir()}"
    return IPAM_DIR if directory == STATE_DIR else f"{directory}/ipam"


@dataclass(frozen=True)
class Location:
    """The network's name, and the IPAM plugin's, empty for none."""

    network: str
    ipam: str

    @property
    def state_dir(self) -> Path:
        """``state_dir``."""
        return state_dir()


def location(conf: Config) -> Location:
    """The configuration's Location.  Raises InvalidConfig."""
    ipam = conf.get("ipam") or {}
    if not isinstance(ipam, dict):
        raise InvalidConfig(f"ipam {ipam!r} is not an object")
    plugin = ipam.get("type", "")
    if not isinstance(plugin, str) or (ipam and not plugin):
        raise InvalidConfig(f"ipam.type {plugin!r} names no plugin; set hpn-ipam, host-local, ... or remove ipam")
    # A plugin that names itself as its IPAM would call itself without end.  It holds nothing: DEL and GC need no IPAM.
    return Location(spec.network_of(conf), "" if names_itself(conf) else plugin)


def names_itself(conf: Config) -> bool:
    """Whether ``ipam.type`` is the main plugin's own name."""
    ipam = conf.get("ipam")
    return isinstance(ipam, dict) and bool(ipam.get("type")) and ipam["type"] == conf.get("type")


def is_stripped(conf: Config) -> bool:
    """Whether the configuration has only the keys that every plugin's may have.  Multus (4.3) strips a network from a
    file to these, for DEL and STATUS: to libcni's PluginConf."""
    ipam = conf.get("ipam")
    return conf.keys() <= _OF_ANY_PLUGIN and isinstance(ipam, dict) and ipam.keys() == {"type"}


def is_absolute(path: str) -> bool:
    """Whether the kernel accepts it as an absolute path."""
    try:
        return path.startswith("/") and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False
