"""What systemd runs of ours, and what it does after an install (man 1 systemctl)."""

import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.protocol.errors import IoFailure
from ctl.installation import layout

_RUNS: Final = Path("/run/systemd/system")  # man 3 sd_booted
_SHOWN: Final = ("Id", "ActiveState", "MainPID", "NeedDaemonReload")
_LOADER: Final = "ld-hpn.so.2"


@dataclass(frozen=True)
class Unit:
    """A unit as systemd has it: whether it is active, the version of hpn that its process runs, if any, and whether its
    files have changed since systemd read them."""

    is_active: bool = False
    version: str = ""
    is_stale: bool = False


def commands(
    put: Collection[str], enabled: Collection[str], running: Mapping[str, Unit], version: str
) -> Iterator[tuple[str, ...]]:
    """The words for systemctl, once the paths ``put`` are there: read its files again, also if an install before this
    one put them; have ``enabled`` units active; and replace each process that runs another version."""
    if any(path.startswith(layout.UNITS) for path in put) or any(unit.is_stale for unit in running.values()):
        yield ("daemon-reload",)
    for name in sorted(enabled):
        if not running.get(name, Unit()).is_active:
            yield ("start", name)
    for name in (layout.AGENT, layout.NODE):
        unit = running.get(name, Unit())
        if unit.is_active and unit.version != version:
            yield ("restart", name)


def runs_here(root: Path) -> bool:
    """Whether the root is the one that a running systemd has its units from."""
    return _RUNS.is_dir() and shutil.which("systemctl") is not None and root.samefile("/")


def running(names: Iterable[str]) -> dict[str, Unit]:
    """The units of these names.  Raises IoFailure."""
    found = dict[str, Unit]()
    for block in run("show", f"--property={','.join(_SHOWN)}", *names).split("\n\n"):
        about = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in about:
            version, is_stale = _version(about.get("MainPID", "0")), about["NeedDaemonReload"] == "yes"
            found[about["Id"]] = Unit(about["ActiveState"] == "active", version, is_stale)
    return found


def _version(pid: str) -> str:
    """The version that a process of hpn runs: the loader lies in a directory of that name; empty if it is not ours."""
    try:
        way = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)").split("/")
    except OSError:
        return ""
    return way[-2] if way[-1] == _LOADER else ""


def run(*words: str) -> str:
    """What systemctl prints.  Raises IoFailure."""
    command = ["systemctl", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    except OSError as e:
        raise IoFailure(f"{' '.join(command)}: {e.strerror}") from e
    except subprocess.CalledProcessError as e:
        raise IoFailure(f"{' '.join(command)}: {e.stderr.strip() or f'exit status {e.returncode}'}") from e
