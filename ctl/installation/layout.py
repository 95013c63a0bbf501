"""What hpn install puts where.  All paths are below the root, without a slash in front."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from base.protocol.errors import InvalidConfig, IoFailure

# Most runtimes look for plugins here.
PLUGINS: Final = "opt/cni/bin"
HPN: Final = f"{PLUGINS}/hpn"
IPAM: Final = f"{PLUGINS}/hpn-ipam"
COMMAND: Final = "usr/local/sbin/hpn"
UNITS: Final = "etc/systemd/system"
# Held by the install or uninstall that is under way, and gone with it.
LOCK: Final = f"{PLUGINS}/.hpn.lock"

AGENT_SOCKET: Final = "hpn-agent.socket"
AGENT: Final = "hpn-agent.service"
NODE: Final = "hpn-node.service"
# A text that the launcher of every version has in its data (packaging/launcher/place.c).
SIGN: Final = b"HPN_PROGRAM_DIR="
SIGN_WITHIN: Final = 1 << 18
# Programs that show which machine a root is for: of the node, or of what a DaemonSet's pod has of it.
PROGRAMS: Final = ("usr/bin/env", "bin/busybox", "usr/bin/bash", f"{PLUGINS}/loopback")
# How the program asks the API server for blocks of addresses, where kubelet's own way does not do.
KUBECONFIG: Final = "etc/cni/net.d/hpn.kubeconfig"
_REGISTRY: Final = "var/lib/kubelet/plugins_registry"
# What the program writes while it runs: state, hpn node's lock and what it has offered beside kubelet's sockets, and
# its option of ib_core.
STATE: Final = (
    *("run/hpn", "var/lib/cni/hpn", "var/log/hpn", f"{_REGISTRY}/.hpn-node.lock", f"{_REGISTRY}/.hpn-node.json"),
    "etc/modprobe.d/hpn-node.conf",
)
# What its users write.
CONFIGURATION: Final = ("etc/hpn", "etc/cni/hpn.json")
# Where dpkg lists the files of our Debian package, if that is installed.  Its name is in packaging/deb/control.
PACKAGE: Final = "var/lib/dpkg/info/hpn-cni.list"
# Where that package has the program, and where its links lead.
PACKAGED: Final = "/usr/lib/cni/hpn"
# Which unit is wanted by which target, as its [Install] section says.
WANTED_BY: Final = {AGENT_SOCKET: "sockets.target", NODE: "multi-user.target"}

# A comment to systemd; it marks a unit that hpn install wrote.
_MARK: Final = "# hpn install wrote this file and replaces it.  To change it: systemctl edit {name}\n"
_KUBECONFIG_MARK: Final = "# hpn install wrote this file and replaces it.\n"


@dataclass(frozen=True)
class Entry:
    """What is to be at a path: a copy of the program that runs, another name of the file at ``text``, a symbolic link
    to ``text``, or a file with that text, which everybody may read."""

    path: str
    kind: Literal["program", "name", "link", "file"]
    text: str = ""


def units(folder: Path) -> dict[str, str]:
    """The units in a folder: name -> text, with a line in front that says who wrote it.  Raises IoFailure."""
    try:
        return {one.name: _MARK.format(name=one.name) + one.read_text() for one in sorted(folder.iterdir())}
    except OSError as e:
        raise IoFailure(f"reading the units in {folder}: {e.strerror}; install hpn again") from e


def kubeconfig(server: str, folder: str) -> Entry:
    """A kubeconfig for the API server at HOST:PORT, with the ``token`` and the ``ca.crt`` in a folder of the node.

    Both are read when they are needed.  Raises InvalidConfig.
    """
    host, colon, port = server.rpartition(":")
    host = host.strip("[]")
    if not (host and colon and port.isdigit()):
        raise InvalidConfig(f"--api-server {server!r} is not HOST:PORT; write both")
    if not folder.startswith("/"):
        raise InvalidConfig(f"--credential {folder!r} is not an absolute path; write it as the node has it")
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "hpn",
        "contexts": [{"name": "hpn", "context": {"cluster": "hpn", "user": "hpn"}}],
        "clusters": [{"name": "hpn", "cluster": {"server": url, "certificate-authority": f"{folder}/ca.crt"}}],
        "users": [{"name": "hpn", "user": {"tokenFile": f"{folder}/token"}}],
    }
    return Entry(KUBECONFIG, "file", _KUBECONFIG_MARK + json.dumps(document, indent=2) + "\n")


def carried_units() -> dict[str, str]:
    """The units that the frozen program has; the source tree's, where it runs from its sources."""
    carried = Path(sys.path[0], "systemd")
    return units(carried if carried.is_dir() else Path(sys.path[0], "packaging", "systemd"))


def is_marked(path: str, text: str) -> bool:
    """Whether hpn install wrote this unit or kubeconfig, of whatever version."""
    name = path.rpartition("/")[2]
    return text.startswith(_KUBECONFIG_MARK if path == KUBECONFIG else _MARK.format(name=name))


def unmarked(text: str) -> str:
    """The unit without the line in front, as a person would have copied it."""
    return text.partition("\n")[2]


def wish(unit: str) -> str:
    """The path of the link that enables a unit (man 1 systemctl, enable)."""
    return f"{UNITS}/{WANTED_BY[unit]}.wants/{unit}"


def temporary(path: str) -> str:
    """Where a new file is made, before it takes the place of the old one.

    The name is always the same, so that the next install finds what an interrupted one has left.
    """
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.new"
