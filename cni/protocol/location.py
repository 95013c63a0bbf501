"""Where an attachment's state is and who hands out its addresses: the part of a configuration that DEL and GC need.

It is read from a configuration of any quality: a pod must be deletable after its network's was broken.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from cni.protocol import spec
from cni.protocol.errors import InvalidConfig
from cni.protocol.spec import Config

# What the journal names, devices and namespaces, ends with the boot; where that is a tmpfs, syncing it costs nothing.
STATE_DIR: Final = "/run/hpn"
# Addresses outlive it, for whoever asks after a reboot whose they were.
IPAM_DIR: Final = "/var/lib/cni/hpn/ipam"


@dataclass(frozen=True)
class Location:
    """``ipam`` is the plugin's name, empty for none."""

    network: str
    state_dir: Path
    ipam: str


def location(conf: Config) -> Location:
    """Raises InvalidConfig."""
    state_dir = conf.get("stateDir", STATE_DIR)
    if not isinstance(state_dir, str) or not is_absolute(state_dir):
        raise InvalidConfig(f"stateDir {state_dir!r} must be an absolute path")
    ipam = conf.get("ipam") or {}
    if not isinstance(ipam, dict):
        raise InvalidConfig(f"ipam {ipam!r} is not an object")
    plugin = ipam.get("type", "")
    if not isinstance(plugin, str) or (ipam and not plugin):
        raise InvalidConfig(f"ipam.type {plugin!r} names no plugin; set hpn-ipam, host-local, ... or remove ipam")
    # Not an IPAM: it would ask itself, without end.  Such a one holds nothing, so DEL and GC go on without it.
    return Location(spec.network_of(conf), path_of(state_dir), "" if names_itself(conf) else plugin)


def names_itself(conf: Config) -> bool:
    """Whether ``ipam.type`` is the main plugin's own name."""
    ipam = conf.get("ipam")
    return isinstance(ipam, dict) and bool(ipam.get("type")) and ipam["type"] == conf.get("type")


def is_stripped(conf: Config) -> bool:
    """Whether it says nothing but who is asked: to that Multus (4.3) strips a network that it has from a file, for DEL
    and STATUS."""
    ipam = conf.get("ipam")
    return conf.keys() <= {"cniVersion", "name", "type", "ipam"} and isinstance(ipam, dict) and ipam.keys() == {"type"}


# A node has one or two, and to make one takes longer than to open what is there.
path_of = lru_cache(maxsize=64)(Path)


def is_absolute(path: str) -> bool:
    """Whether it is an absolute path that the kernel could take."""
    try:
        return path.startswith("/") and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False
