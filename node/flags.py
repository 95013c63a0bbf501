"""The command line of hpn node: its own options, and those in manifests of other device plugins; pure.

As in Go's programs, an option has one dash or two, and its value follows "=" or is the next word.
"""

import argparse
import os
import re
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from node.kubelet.directory import KUBELET
from node.metrics import address
from node.metrics.address import Address

_USAGE: Final = """\
hpn node [--config FILE] [--kubelet-dir DIR] [--kubeconfig FILE]
       hpn node --check FILE [--json]
       hpn node --dry-run [--config FILE]
       hpn node --classes FILE

Offers the node's network devices to kubelet, until SIGTERM.  SIGHUP makes it reload its configuration."""
_OTHERS: Final = """\
Options of other device plugins work too: --config-file, and one dash in place of two.  Their options for logging
(--log-dir, --log-level and the like) have no effect."""
_LOGGING: Final = ("log-dir", "log-level", "log_dir", "stderrthreshold", "vmodule", "log_backtrace_at")
_LOGGING_SWITCHES: Final = ("logtostderr", "alsologtostderr")
_IGNORED: Final = "ignored"
_LONGEST: Final = 60  # bytes; "/plugins_registry/.hpn-", 16 letters for the resource's name and ".sock" follow
_TRUE, _FALSE = ("1", "t", "true", "T", "TRUE", "True"), ("0", "f", "false", "F", "FALSE", "False")


class Wrong(Exception):
    """The command line has an error; the message names the word and the remedy."""


@dataclass(frozen=True)
class Flags:
    """The options of a command line.  ``config`` None stands for the default file."""

    config: Path | None = None
    check: Path | None = None
    json: bool = False
    dry_run: bool = False
    classes: Path | None = None
    kubelet: Path = KUBELET
    plugins: Path | None = None
    kubeconfig: str = ""
    blocks: bool = True
    prefix: str = ""
    cdi: bool = False
    metrics: Address | None = None
    version: bool = False
    help: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Wrong(f"{message}; see: hpn node --help")


def parse(arguments: Sequence[str]) -> Flags:
    """Parse a command line.  Raises Wrong."""
    words = [f"--{word}" if word in ("help", "version") else re.sub(r"^-(?=\w{2})", "--", word) for word in arguments]
    found = vars(_parser().parse_args(words))
    found.pop(_IGNORED, None)
    return Flags(**found)


def usage() -> str:
    """The text of hpn node --help."""
    return _parser().format_help()


def _parser() -> _Parser:
    parser = _Parser(
        add_help=False, allow_abbrev=False, usage=_USAGE, epilog=_OTHERS, argument_default=SUPPRESS,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=23, width=118),
    )  # fmt: skip
    option = parser.add_argument
    option("--config", metavar="FILE", type=Path, help="the configuration: hpn's own file, or an unchanged file of "
           "another device plugin (docs/user/node.md); default: the first usual file that exists")  # fmt: skip
    option("--config-file", dest="config", type=Path, help=SUPPRESS)
    option("--check", metavar="FILE", type=Path, help="report what a configuration would offer here, and exit")
    option("--json", action="store_true", help="with --check: as JSON")
    option("--dry-run", action="store_true",
           help="report what the configuration (pfs) would change on this node, and exit")  # fmt: skip
    option("--classes", metavar="FILE", type=Path, help="print a DeviceClass for each resource of a configuration, for "
           "kubectl apply, and exit")  # fmt: skip
    option("--kubelet-dir", dest="kubelet", metavar="DIR", type=_directory,
           help=f"kubelet's state directory; default: {KUBELET}")  # fmt: skip
    option("--cni-bin-dir", dest="plugins", metavar="DIR", type=_plugins, help="the runtime's directory for plugins, "
           "with this program, which CDI files name; default: /opt/cni/bin, or this program's own")  # fmt: skip
    option("--kubeconfig", metavar="FILE", type=_absolute, help="credentials for the API server, for addresses that "
           "nodes share: a kubeconfig, or a directory with token and ca.crt of this pod's service account; default: "
           "those of the policy file")  # fmt: skip
    option("--no-blocks", dest="blocks", action="store_false", help="leave the node's blocks of addresses that nodes "
           "share to the agent")  # fmt: skip
    option("--resource-prefix", dest="prefix", metavar="P",
           help="prefix for the resources without one in sriov-network-device-plugin's file")  # fmt: skip
    option("--use-cdi", dest="cdi", nargs="?", const=True, type=_truth, metavar="true|false",
           help="give devices by CDI names")  # fmt: skip
    option("--metrics", metavar="ADDRESS", type=_address, help="serve metrics for Prometheus at "
           "unix:/run/hpn/metrics.sock or 127.0.0.1:9617 (docs/user/metrics.md)")  # fmt: skip
    option("--version", "-v", action="store_true", help="print the version")
    option("--help", "-h", action="store_true", help=SUPPRESS)
    for name in _LOGGING:
        option(f"--{name}", dest=_IGNORED, help=SUPPRESS)
    for name in _LOGGING_SWITCHES:
        option(f"--{name}", dest=_IGNORED, nargs="?", help=SUPPRESS)
    return parser


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise ArgumentTypeError(f"{value!r} is not an absolute path; write one")
    return value


def _plugins(value: str) -> Path:
    return Path(_absolute(value))


def _directory(value: str) -> Path:
    if not value.startswith("/"):
        raise ArgumentTypeError(
            f"{value!r} is not an absolute path; kubelet's is {KUBELET} unless its --root-dir names another"
        )
    if len(os.fsencode(value)) > _LONGEST:
        raise ArgumentTypeError(
            f"{value!r} is longer than {_LONGEST} bytes (a socket's path has at most 107); choose a shorter one"
        )
    return Path(value)


def _address(value: str) -> Address:
    try:
        return address.parse(value)
    except ValueError as e:
        raise ArgumentTypeError(str(e)) from e


def _truth(value: str) -> bool:
    if value not in (*_TRUE, *_FALSE):
        raise ArgumentTypeError(f"{value!r} is neither true nor false; write the option alone, or =false")
    return value in _TRUE
