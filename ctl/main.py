"""The operator's commands, and the help text that lists them."""

import errno
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from base.protocol.spec import VERSIONS

VERSION = "0.1.0"

HELP = f"""\
hpn {VERSION}: a CNI plugin for high-performance pod interfaces, with its IPAM

A container runtime runs this program; these commands are for operators.

  hpn list        list the attachments and their states; --json
  hpn inspect     show the attachments: pod, device, addresses, GID indexes; --json, --state-dir DIR
  hpn check       compare attachments with what ADD created; --json
  hpn repair      undo or finish incomplete attachments, and undo those of dead pods; --dry-run, --json
  hpn hints       print the environment for a pod's NCCL, UCX, MPI or NVSHMEM; --for, --form, --json
  hpn ipam        show addresses and their owners, also in a cluster; release, verify and move them (hpn ipam --help)
  hpn devices     show the NICs: VFs and their users, RDMA devices, nearby GPUs; [DEVICE], -v, --json
  hpn plan        write this node's device file, networks and label; --as, --each, --output DIR, --check
  hpn gids        show the GIDs of RDMA devices, as show_gids does; --json
  hpn devinfo     show RDMA devices and their ports, as ibv_devinfo does; -v, -d DEVICE, --json
  hpn doctor      report this node's problems and their remedies; --json, --root DIR, --kubeconfig FILE
  hpn report      write doctor, inspect, devices, gids and ipam show as one HTML page, for a ticket; FILE.html
  hpn fabric      prove the fabric: serve and test run traffic on every rail, wiring compares the rails' leaves
  hpn gc          undo attachments of dead pods and release their addresses; --dry-run
  hpn top         show live RDMA traffic per device and pod; -l, --count N, --json
  hpn agent       answer CNI requests from a warm process (hpn agent help)
  hpn node        offer the node's devices to kubelet (hpn node --help)
  hpn install     install this program, its names and units; --root DIR, --no-units, --dry-run, --check
  hpn uninstall   remove them and the state, once no pod uses hpn; --root DIR, --force, --check
  hpn daemonset   install hpn on a node from the DaemonSet's pod, and run there (hpn daemonset --help)
  hpn version     print the version; --licenses: all licences of the program's contents
  hpn help        print this help, or that of a COMMAND

hpn install copies the program into the runtime's plugin directory (/opt/cni/bin), also as hpn-ipam, the IPAM plugin
alone.  Then name it in a network configuration:

  {{"cniVersion": "1.0.0", "name": "rail0", "plugins": [
    {{"type": "hpn", "master": "eth1",
     "ipam": {{"type": "hpn-ipam", "subnet": "10.56.0.0/24"}}}}]}}

This makes a macvlan; "kind" chooses macvlan, ipvlan, ipoib, sriov or host-device.  Try it without a cluster:

  NETCONFPATH=/etc/cni/net.d CNI_PATH=/opt/cni/bin cnitool -i hpn0 add rail0 /run/netns/pod

CNI protocol versions supported: {", ".join(VERSIONS)}
"""


# Command -> the function that takes its arguments, and returns the output and the exit status.
# Each module is imported on demand, because help and version must not wait for the journal.
COMMANDS: Final = {
    "list": "ctl.inspection.answer_list",
    "inspect": "ctl.inspection.answer_inspect",
    "check": "ctl.repair.answer_check",
    "repair": "ctl.repair.answer_repair",
    "hints": "ctl.hints.command.answer",
    "ipam": "ctl.ipam.command.answer",
    "report": "ctl.report.command.answer",
    "gc": "ctl.repair.answer_gc",
    "devices": "ctl.devices.command.answer",
    "plan": "ctl.plan.command.answer",
    "gids": "ctl.devices.gids.answer",
    "devinfo": "ctl.devices.devinfo.answer",
    "fabric": "ctl.fabric.command.answer",
    "top": "ctl.top.command.answer",
    "doctor": "ctl.doctor.command.answer",
    "install": "ctl.installation.command.answer_install",
    "uninstall": "ctl.installation.command.answer_uninstall",
    "daemonset": "ctl.daemonset.command.answer",
}


def main(argv: Sequence[str], file: str = "", build: str = "") -> int:
    """Run the command line; return its exit status.

    ``file`` is the launcher's, and ``build`` its version (docs/develop/agent.md); both are empty without a launcher.
    """
    match argv[1:]:
        case [] | ["help" | "--help" | "-h"] | ["help", "help" | "version"]:
            sys.stdout.write(HELP)
            return 0
        case ["help", command] if command in COMMANDS:
            return main([argv[0], command, "--help"], file, build)
        case ["version" | "--version"]:
            sys.stdout.write(f"hpn {VERSION}\n")
            return 0
        case ["version" | "--version", "--licenses"]:
            return _licenses()
        case [command, *words] if command in COMMANDS:
            # Only these need the running file and its build.
            more = (file, build) if command in ("daemonset", "doctor", "install", "report") else ()
            return _print(command, lambda: function(COMMANDS[command])(words, *more))
        case _:
            sys.stderr.write(f"hpn: {' '.join(argv[1:])!r} is not a command; see: hpn help\n")
            return 2


def function(path: str) -> Callable[..., tuple[str, int]]:
    """Import a function by its dotted path."""
    module, _, name = path.rpartition(".")
    found: Callable[..., tuple[str, int]] = getattr(import_module(module), name)
    return found


def _licenses() -> int:
    """Print the licences of all that the program contains; packaging/supply.py puts them beside it."""
    import zlib  # noqa: PLC0415

    try:
        packed = Path(sys.path[0], "licenses.z").read_bytes()
    except FileNotFoundError:
        sys.stderr.write("hpn version: this program runs from its sources; their licence is in the file LICENSE\n")
        return 1
    sys.stdout.write(zlib.decompress(packed).decode())
    return 0


def _print(command: str, work: Callable[[], tuple[str, int]]) -> int:
    """Print the command's output or its error; return the exit status."""
    from base.protocol.errors import CniError  # noqa: PLC0415

    try:
        text, status = work()
    except CniError as e:
        return _complain(command, f"{e.msg} ({e.details})" if e.details else e.msg)
    except OSError as e:
        where = f"{os.fsdecode(e.filename)}: " if isinstance(e.filename, str | bytes) else ""
        remedy = "; run it as root" if e.errno in (errno.EACCES, errno.EPERM) else ""
        return _complain(command, f"{where}{e.strerror or e}{remedy}")
    sys.stdout.write(text.encode(errors="backslashreplace").decode())  # a kernel name in it may not be UTF-8
    return status


def _complain(command: str, error: str) -> int:
    """Print an error on stderr, with control characters escaped: names may come from a pod.  Return the exit status."""
    from base.table import printable_lines  # noqa: PLC0415

    sys.stderr.write(printable_lines(f"hpn {command}: {error}\n"))
    return 1
