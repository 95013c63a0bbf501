"""The files that ``hpn install`` writes.  All paths are below the root and have no leading slash."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from base.protocol.errors import InvalidConfig, IoFailure
from base.protocol.location import PLUGIN

HPN: Final = PLUGIN.lstrip("/")
IPAM: Final = f"{HPN}-ipam"
COMMAND: Final = "usr/local/sbin/hpn"
NAMES: Final = ("hpn", "hpn-ipam")
UNITS: Final = "etc/systemd/system"
# It exists during an install or uninstall.
LOCK: Final = f"{HPN.rpartition('/')[0]}/.hpn.lock"

AGENT_SOCKET: Final = "hpn-agent.socket"
AGENT: Final = "hpn-agent.service"
NODE: Final = "hpn-node.service"
# The unit that removes hpn once the DaemonSet has left the node.  It is only on nodes where the DaemonSet installed the
# units, and so it shows that they are the DaemonSet's.
LEAVE: Final = "hpn-daemonset.service"
# The launcher of every version contains this text near its beginning (packaging/launcher/place.c).
SIGN: Final = b"HPN_PROGRAM_DIR="
SIGN_WITHIN: Final = 1 << 18
# Programs that show the architecture of a root; a DaemonSet's pod sees only the node's plugins.
PROGRAMS: Final = ("usr/bin/env", "bin/busybox", "usr/bin/bash", "opt/cni/bin/loopback")
# The credential for claiming blocks of addresses, for nodes where kubelet's own does not work.
KUBECONFIG: Final = "etc/cni/net.d/hpn.kubeconfig"
# hpn node's files beside kubelet's sockets.
_OF_NODE: Final = ("node.lock", "node.json", "dra.json", "labels.json")
_REGISTRY: Final = tuple(f"plugins_registry/.hpn-{name}" for name in _OF_NODE)
# What the program writes while it runs: also an option of ib_core.
STATE: Final = (
    *("run/hpn", "var/lib/cni/hpn", "var/log/hpn", *(f"var/lib/kubelet/{name}" for name in _REGISTRY)),
    "etc/modprobe.d/hpn-node.conf",
)
# The networks that DeviceClasses name.  kubelet makes the directory for the DaemonSet's pod with claims.
NETWORKS: Final = "etc/cni/hpn.d"
# What administrators write.
CONFIGURATION: Final = ("etc/hpn", NETWORKS)
# The device file, which the DaemonSet installs where it installs the units.
DEVICES: Final = "etc/hpn/devices.yaml"
# dpkg's list of the files of the Debian package hpn-cni (packaging/deb/control), and the path of its program.
PACKAGE: Final = "var/lib/dpkg/info/hpn-cni.list"
PACKAGED: Final = "/usr/lib/cni/hpn"
# Unit -> target, as its [Install] section states.
WANTED_BY: Final = {AGENT_SOCKET: "sockets.target", NODE: "multi-user.target", LEAVE: "multi-user.target"}

# The first line of each unit, kubeconfig and device file that hpn install writes begins with this comment.
MARK: Final = "# hpn install wrote this file and replaces it."
_PLAIN: Final = re.compile(r"[\w./:=\[\]~+@-]+", re.ASCII)
_LEAVING: Final = f"""\
[Unit]
Description=hpn daemonset leave: removes hpn once the DaemonSet has left this node

[Service]
ExecStart=/{HPN} daemonset leave --kubelet-dir={{kubelet}} --cni-bin-dir={{plugins}}
# It ends as soon as it has found the DaemonSet's pod.
Restart=always
RestartSec=10min

[Install]
WantedBy={WANTED_BY[LEAVE]}
"""


@dataclass(frozen=True)
class Entry:
    """One file to install.

    A "program" is a copy of the running one, a "file" a world-readable file with the text.  A "name" is a hard link to
    the path ``text``, a "link" a symbolic link to it.
    """

    path: str
    kind: Literal["program", "name", "link", "file"]
    text: str = ""


def units(folder: Path | None = None) -> dict[str, str]:
    """The units in a folder, by default this program's own: name -> text, with the mark above it.  Raises IoFailure."""
    if folder is None:  # the frozen program's, or the source tree's if hpn runs from its sources
        carried = Path(sys.path[0], "systemd")
        folder = carried if carried.is_dir() else Path(sys.path[0], "packaging", "systemd")
    try:
        found = {one.name: one.read_text() for one in sorted(folder.iterdir())}
    except OSError as e:
        raise IoFailure(f"reading the units in {folder}: {e.strerror}; install hpn again") from e
    return {name: f"{MARK}  To change it: systemctl edit {name}\n{text}" for name, text in found.items()}


def daemonset_units(arguments: Sequence[str], kubelet: str, plugins: str) -> dict[str, str]:
    """The units that the DaemonSet installs, LEAVE first: name -> text.  ``arguments`` are those of hpn node, and the
    others are kubelet's directory and the runtime's for plugins.  Raises IoFailure, and InvalidConfig for an argument
    with other characters than those of paths and addresses, which systemd might expand (man 5 systemd.service)."""
    for one in (*arguments, kubelet, plugins):
        if not _PLAIN.fullmatch(one):
            raise InvalidConfig(f"{one!r} cannot be an argument in a unit; use letters, digits and ./:=[]_~+@- only")
    texts = units()
    command = f"ExecStart=/{HPN} node"
    texts[NODE] = texts[NODE].replace(command, " ".join((command, *arguments)))
    return {LEAVE: f"{MARK}\n{_LEAVING.format(kubelet=kubelet, plugins=plugins)}", **texts}


def elsewhere(leave: str) -> tuple[list[str], list[str]]:
    """The programs and the state in directories that the text of LEAVE names, except the usual ones."""
    named = re.findall(r" --kubelet-dir=/(\S+) --cni-bin-dir=/(\S+)", leave)
    programs = {f"{plugins}/{name}" for _, plugins in named for name in NAMES}
    state = {f"{kubelet}/{name}" for kubelet, _ in named for name in _REGISTRY}
    return sorted(programs - {HPN, IPAM}), sorted(state - {*STATE})


def node_arguments(units: Mapping[str, str]) -> tuple[str, ...] | None:
    """The arguments of hpn node in the units of the DaemonSet; None for other units."""
    if LEAVE not in units:
        return None
    return tuple(next(line for line in units[NODE].splitlines() if line.startswith("ExecStart=")).split()[2:])


def kubeconfig(server: str, folder: str) -> Entry:
    """A kubeconfig for the API server at HOST:PORT.  It refers to ``token`` and ``ca.crt`` in a folder of the node,
    which hpn reads at each use.  Raises InvalidConfig."""
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    if not (host and port.isascii() and port.isdecimal()):
        raise InvalidConfig(f"--api-server {server!r} is not HOST:PORT; give both, such as 10.96.0.1:443")
    if not folder.startswith("/"):
        raise InvalidConfig(f"--credential {folder!r} is not an absolute path; give the directory's path on the node")
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "hpn",
        "contexts": [{"name": "hpn", "context": {"cluster": "hpn", "user": "hpn"}}],
        "clusters": [{"name": "hpn", "cluster": {"server": url, "certificate-authority": f"{folder}/ca.crt"}}],
        "users": [{"name": "hpn", "user": {"tokenFile": f"{folder}/token"}}],
    }
    return Entry(KUBECONFIG, "file", f"{MARK}\n{json.dumps(document, indent=2)}\n")


def credential(text: str) -> str:
    """The folder that the text of a ``kubeconfig`` refers to; empty for any other text."""
    found = re.search(r'"tokenFile": "(.+)/token"', text) if text.startswith(MARK) else None
    return found[1] if found else ""


def wants_link(unit: str) -> str:
    """The path of the link that enables a unit (man 1 systemctl, enable)."""
    return f"{UNITS}/{WANTED_BY[unit]}.wants/{unit}"


def temporary(path: str) -> str:
    """The path of a new file before it replaces the old one; the next install finds what an interrupted one left."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.new"
