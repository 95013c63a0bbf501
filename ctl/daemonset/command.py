"""hpn daemonset install, which the init container runs, and hpn daemonset leave, which the unit of the node runs.

The chart runs hpn daemonset claims before its removal.
The containers agent and node run ``containers``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ctl.command_line import parser_for
from ctl.daemonset import claimed, installing, leaving
from ctl.installation import layout
from ctl.screen import text

_PLUGINS: Final = Path("/", layout.HPN).parent
_ABOUT: Final = """\
What the containers of the DaemonSet run (docs/user/kubernetes.md).

  install   install hpn on the node, and choose how it runs there
  agent     be the agent, or show the log of the node's units until one fails
  node      be hpn node, with its options, or wait while the node has its unit
  leave     remove hpn from the node once the DaemonSet has left it
  claims    fail while a pod of the cluster has a claim of hpn"""


def answer(words: Sequence[str], file: str = "", build: str = "") -> tuple[str, int]:
    """The command's output and exit status.  ``file`` is the running program, and ``build`` its version."""
    parser = parser_for(
        "daemonset", _ABOUT, "example: hpn daemonset install --mode=auto", fails="it is refused, or fails"
    )
    option = parser.add_argument
    option("role", choices=("install", "leave", "claims"), help="the others have the options of hpn agent and hpn node")
    modes = "systemd: as the node's units; container: in the pod; auto (default): systemd where that is possible"
    option("--mode", choices=installing.MODES, default="auto", help=f"for install: {modes}")
    option(
        "--root", type=Path, default=Path("/host"), help="for install: where the node's directories are; default /host"
    )
    option("--metrics", metavar="ADDRESS", default="", help="for install: as for hpn node, for its unit")
    kubelet = "kubelet's state directory; default /var/lib/kubelet"
    option("--kubelet-dir", metavar="DIR", type=Path, default=installing.KUBELET, help=kubelet)
    plugins = "for install: the runtime's directory for plugins on the node, to remove hpn there later; default "
    option("--cni-bin-dir", metavar="DIR", type=Path, default=_PLUGINS, help=f"{plugins}{_PLUGINS}")
    option("--api-server", metavar="HOST:PORT", help="for install: as for hpn install")
    option("--credential", metavar="DIRECTORY", help="for install: as for hpn install")
    provision = "for install: the container node can write to the node's /sys and /etc/modprobe.d"
    option("--provision", action="store_true", help=provision)
    absent = "for leave: how long the DaemonSet's pod must be away; default 600"
    option("--absent", metavar="SECONDS", type=float, default=leaving.ABSENT, help=absent)
    options = parser.parse_args(words)
    if bool(options.api_server) != bool(options.credential):
        parser.error("--api-server and --credential go together")
    if options.role == "claims":
        return text(claimed.refuse()), 0
    if options.role == "leave":
        lines = leaving.leave(options.kubelet_dir, options.absent)
        return text(lines) if lines else "", 0
    return text(installing.install(options, file, build)), 0
