"""An attachment's state directory, and the IPAM plugin of its addresses.  DEL and GC need only these.

They are read without the rest, because a pod must be deletable even if its network's configuration is broken.
"""

import os
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
# kubelet's directory, unless its --root-dir names another.
KUBELET: Final = "/var/lib/kubelet"
# The launcher unpacks the program here, one directory per version, unless HPN_PROGRAM_DIR is set.
PROGRAM_DIR: Final = "/var/lib/cni/hpn/program"
_OF_ANY_PLUGIN: Final = frozenset({"cniVersion", "name", "type", "ipam", "capabilities", "dns"})


@dataclass(frozen=True)
class Location:
    """The network's name, the state directory, and the IPAM plugin's name, empty for none."""

    network: str
    state_dir: Path
    ipam: str


def location(conf: Config) -> Location:
    """The configuration's Location.  Raises InvalidConfig."""
    state_dir = conf.get("stateDir", STATE_DIR)
    if not isinstance(state_dir, str) or not is_absolute(state_dir):
        raise InvalidConfig(f"stateDir {state_dir!r} must be an absolute path")
    ipam = conf.get("ipam") or {}
    if not isinstance(ipam, dict):
        raise InvalidConfig(f"ipam {ipam!r} is not an object")
    plugin = ipam.get("type", "")
    if not isinstance(plugin, str) or (ipam and not plugin):
        raise InvalidConfig(f"ipam.type {plugin!r} names no plugin; set hpn-ipam, host-local, ... or remove ipam")
    # A plugin that names itself as its IPAM would call itself without end.  It holds nothing: DEL and GC need no IPAM.
    return Location(spec.network_of(conf), path_of(state_dir), "" if names_itself(conf) else plugin)


def names_itself(conf: Config) -> bool:
    """Whether ``ipam.type`` is the main plugin's own name."""
    ipam = conf.get("ipam")
    return isinstance(ipam, dict) and bool(ipam.get("type")) and ipam["type"] == conf.get("type")


def is_stripped(conf: Config) -> bool:
    """Whether the configuration has only the keys that every plugin's may have.  Multus (4.3) strips a network from a
    file to these, for DEL and STATUS: to libcni's PluginConf."""
    ipam = conf.get("ipam")
    return conf.keys() <= _OF_ANY_PLUGIN and isinstance(ipam, dict) and ipam.keys() == {"type"}


# A node has one or two such paths, and making a Path takes longer than opening the file.
path_of = lru_cache(maxsize=64)(Path)


def is_absolute(path: str) -> bool:
    """Whether the kernel accepts it as an absolute path."""
    try:
        return path.startswith("/") and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False
