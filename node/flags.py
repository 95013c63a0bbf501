"""The command line of hpn node: our flags, and those that manifests of other device plugins have; pure.

Go's programs take one dash or two, and a value after "=" or as the next word.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from node.directory import KUBELET
from node.metrics.address import Address
from node.metrics.address import parse as parse_address

HELP: Final = f"""\
usage: hpn node [--config FILE] [--kubelet-dir DIR] [--kubeconfig FILE]
       hpn node --check FILE [--json]
       hpn node --dry-run [--config FILE]

Offers the node's network devices to kubelet, until SIGTERM.  SIGHUP has it read its configuration anew.

  --config FILE        the configuration: our own, or that of another device plugin as it is (docs/node.md); by default
                       the first that is there of where each of them looks
  --check FILE         say what a configuration would offer here, and end
  --dry-run            say what of this node would be changed to be as the configuration asks (pfs), and end
  --kubelet-dir DIR    where kubelet keeps its state, by default {KUBELET}
  --kubeconfig FILE    as whom the API server is asked for blocks of addresses that nodes share, or a directory with
                       token and ca.crt of this pod's service account; by default as the node's file says
  --resource-prefix P  the prefix of resources that have none in sriov-network-device-plugin's file
  --use-cdi            give devices by CDI names
  --metrics ADDRESS    serve metrics for Prometheus at unix:/run/hpn/metrics.sock or 127.0.0.1:9617 (docs/metrics.md)
  --version            print the version

Flags of other device plugins work too: --config-file, and one dash in place of two.  What they log is not chosen by
flags here, so --log-dir, --log-level and the like are passed over.
"""
_LOGGING: Final[frozenset[str]] = frozenset(
    {
        "log-dir",
        "log-level",
        "log_dir",
        "logtostderr",
        "alsologtostderr",
        "stderrthreshold",
        "vmodule",
        "log_backtrace_at",
    }
)
_SWITCHES: Final = frozenset(
    {"json", "dry-run", "use-cdi", "version", "v", "help", "h", "logtostderr", "alsologtostderr"}
)
_LONGEST: Final = 60  # and "/plugins_registry/.hpn-", sixteen letters for the resource's name, ".sock"
_TRUE, _FALSE = ("1", "t", "true", "T", "TRUE", "True"), ("0", "f", "false", "F", "FALSE", "False")


class Wrong(Exception):
    """The command line cannot be understood; the message says which word, and what to write."""


@dataclass(frozen=True)
class Flags:
    """What a command line asks for.  ``config`` is None for the default, ``check`` and ``metrics`` None
    for none."""

    config: Path | None = None
    check: Path | None = None
    json: bool = False
    dry_run: bool = False
    kubelet: Path = KUBELET
    kubeconfig: str = ""
    prefix: str = ""
    cdi: bool = False
    metrics: Address | None = None
    version: bool = False
    help: bool = False


def parse(arguments: Sequence[str]) -> Flags:
    """Raises Wrong."""
    flags = Flags()
    for name, value in _pairs(arguments):
        if name in _FLAGS:
            field, read = _FLAGS[name]
            flags = replace(flags, **{field: read(name, value)})
        elif name not in _LOGGING:
            raise Wrong(f"--{name} is no flag of hpn node; see: hpn node --help")
    return flags


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each flag's name, without dashes, and its value."""
    words = iter(arguments)
    for word in words:
        name, has_value, value = word.lstrip("-").partition("=")
        if word in ("help", "version"):
            yield word, "true"
        elif not word.startswith("-") or not name:
            raise Wrong(f"{word!r} is no flag; see: hpn node --help")
        elif has_value:
            yield name, value
        elif name in _SWITCHES:
            yield name, "true"
        else:
            try:
                yield name, next(words)
            except StopIteration:
                raise Wrong(f"--{name} needs a value: --{name}=...") from None


def _text(_: str, value: str) -> str:
    return value


def _absolute(name: str, value: str) -> str:
    if not value.startswith("/"):
        raise Wrong(f"--{name} {value!r} is not an absolute path; write one")
    return value


def _path(_: str, value: str) -> Path:
    return Path(value)


def _directory(name: str, value: str) -> Path:
    if not value.startswith("/"):
        raise Wrong(
            f"--{name} {value!r} is not an absolute path; kubelet's is {KUBELET} unless --root-dir says another"
        )
    if len(os.fsencode(value)) > _LONGEST:
        raise Wrong(
            f"--{name} {value!r}: a socket's path has 107 bytes, so this may have {_LONGEST}; choose a shorter one"
        )
    return Path(value)


def _address(name: str, value: str) -> Address:
    try:
        return parse_address(value)
    except ValueError as e:
        raise Wrong(f"--{name} {e}") from e


def _truth(name: str, value: str) -> bool:
    if value not in (*_TRUE, *_FALSE):
        raise Wrong(f"--{name}={value}: write --{name}, or --{name}=false")
    return value in _TRUE


# By each flag's name: the field of Flags that it is for, and how its value is read.
_FLAGS: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "config": ("config", _path),
    "config-file": ("config", _path),
    "check": ("check", _path),
    "json": ("json", _truth),
    "dry-run": ("dry_run", _truth),
    "kubelet-dir": ("kubelet", _directory),
    "kubeconfig": ("kubeconfig", _absolute),
    "resource-prefix": ("prefix", _text),
    "use-cdi": ("cdi", _truth),
    "metrics": ("metrics", _address),
    "v": ("version", _truth),
    "version": ("version", _truth),
    "h": ("help", _truth),
    "help": ("help", _truth),
}
