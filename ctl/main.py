"""The operator's commands: which one a command line names."""

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

A container runtime runs this program; a person has little to run by hand.

  hpn list        list what is attached, and how each stands; --json
  hpn inspect     show what is attached: pod, device, addresses, GID indexes; --json, --state-dir DIR
  hpn check       compare attachments with what ADD left; --json
  hpn repair      undo or finish what is half-done, and what dead pods left; --dry-run, --json
  hpn hints       print the environment for a pod's NCCL, UCX, MPI or NVSHMEM; --for, --form, --json
  hpn ipam        show whose which address is, also in a cluster, release what is dead, verify files (hpn ipam --help)
  hpn devices     show the NICs: VFs and who has them, RDMA devices, GPUs near by; [DEVICE], -v, --json
  hpn gids        show the GIDs of RDMA devices, as show_gids does; --json
  hpn devinfo     show RDMA devices and their ports, as ibv_devinfo does; -v, -d DEVICE, --json
  hpn doctor      say what is wrong with this node, and what mends it; --json, --root DIR, --kubeconfig FILE
  hpn report      write all of that as one HTML page, for a ticket; FILE.html
  hpn gc          undo what dead pods left: attachments and addresses; --dry-run
  hpn top         show RDMA traffic as it goes: per device, per pod; -l, --count N, --json
  hpn agent       answer CNI requests from a warm process (hpn agent help)
  hpn node        offer the node's devices to kubelet (hpn node --help)
  hpn install     put this program, its names and units in their places; --root DIR, --no-units, --dry-run, --check
  hpn uninstall   remove all that, and the state, once no pod has an interface of it; --root DIR, --force, --check
  hpn version     print the version; --licenses: of all that is carried
  hpn help        print this; with a COMMAND that command's help

Install: hpn install puts it into the runtime's plugin directory (/opt/cni/bin), there also as hpn-ipam, which is
the IPAM plugin alone.  Then name it in a network configuration:

  {{"cniVersion": "1.0.0", "name": "rail0", "plugins": [
    {{"type": "hpn", "master": "eth1",
     "ipam": {{"type": "hpn-ipam", "subnet": "10.56.0.0/24"}}}}]}}

This makes a macvlan; "kind" chooses macvlan, ipvlan, ipoib, sriov or host-device.  Try it without a cluster:

  NETCONFPATH=/etc/cni/net.d CNI_PATH=/opt/cni/bin cnitool -i hpn0 add rail0 /run/netns/pod

CNI protocol versions supported: {", ".join(VERSIONS)}
"""


# Of each command: the function that takes the words behind it, and returns what is printed and the status.
# A module is imported when it is asked for, because help and version must not wait for the journal.
COMMANDS: Final = {
    "list": "ctl.inspection.answer_list",
    "inspect": "ctl.inspection.answer_inspect",
    "check": "ctl.repair.answer_check",
    "repair": "ctl.repair.answer_repair",
    "hints": "ctl.hints.command.answer",
    "ipam": "ctl.addresses.answer",
    "report": "ctl.report.command.answer",
    "gc": "ctl.repair.answer_gc",
    "devices": "ctl.devices.command.answer",
    "gids": "ctl.gids.answer",
    "devinfo": "ctl.devinfo.answer",
    "top": "ctl.traffic.top.answer",
    "doctor": "ctl.doctor.command.answer",
    "install": "ctl.installation.command.answer_install",
    "uninstall": "ctl.installation.command.answer_uninstall",
}


def main(argv: Sequence[str], file: str = "", build: str = "") -> int:
    """Answer the command line; the exit status.

    ``file`` is the launcher's, and ``build`` its version (docs/develop/protocol.md); both are empty without one.
    """
    match argv[1:]:
        case [] | ["help" | "--help" | "-h"] | ["help", "help" | "version"]:
            sys.stdout.write(HELP)
            return 0
        case ["help", command] if command in COMMANDS:
            return main([argv[0], command, "--help"], file, build)
        case ["version" | "--version", *words] if words in ([], ["--licenses"]):
            return _licenses() if words else _version()
        case [command, *words] if command in COMMANDS:
            # Only these have to know which file it is, and of which build.
            more = (file, build) if command in ("doctor", "install", "report") else ()
            return _print(command, lambda: function(COMMANDS[command])(words, *more))
        case _:
            sys.stderr.write(f"hpn: {' '.join(argv[1:])!r} is not a command; see: hpn help\n")
            return 2


def function(path: str) -> Callable[..., tuple[str, int]]:
    """The function of that module, which is imported."""
    module, _, name = path.rpartition(".")
    found: Callable[..., tuple[str, int]] = getattr(import_module(module), name)
    return found


def _version() -> int:
    sys.stdout.write(f"hpn {VERSION}\n")
    return 0


def _licenses() -> int:
    """Print the licences of everything that the program carries; packaging/supply.py puts them beside it."""
    import zlib  # noqa: PLC0415

    try:
        packed = Path(sys.path[0], "licenses.z").read_bytes()
    except FileNotFoundError:
        sys.stderr.write("hpn version: this one runs from its sources; their licence is in the file LICENSE\n")
        return 1
    sys.stdout.write(zlib.decompress(packed).decode())
    return 0


def _print(command: str, work: Callable[[], tuple[str, int]]) -> int:
    """Print what the command answers, or its error; the exit status."""
    from base.protocol.errors import CniError  # noqa: PLC0415

    try:
        text, status = work()
    except CniError as e:
        return _complain(command, f"{e.msg} ({e.details})" if e.details else e.msg)
    except OSError as e:
        return _complain(command, _words_of(e))
    sys.stdout.write(text.encode(errors="backslashreplace").decode())  # it may name an interface whose name is no text
    return status


def _complain(command: str, error: str) -> int:
    """Say on stderr what is wrong; the exit status.  A name in it may be a pod's, and a terminal would obey it."""
    from base.table import printable_lines  # noqa: PLC0415

    sys.stderr.write(printable_lines(f"hpn {command}: {error}\n"))
    return 1


def _words_of(e: OSError) -> str:
    """The kernel's error: of which file it is, and what helps."""
    where = f"{os.fsdecode(e.filename)}: " if isinstance(e.filename, str | bytes) else ""
    remedy = "; run it as root" if e.errno in (errno.EACCES, errno.EPERM) else ""
    return f"{where}{e.strerror or e}{remedy}"
