"""The commands to systemd after an install (man 1 systemctl)."""

import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.protocol.errors import IoFailure
from ctl.command_line import build_of
from ctl.installation import layout

_RUNS: Final = Path("/run/systemd/system")  # man 3 sd_booted
_SHOWN: Final = "Id,ActiveState,MainPID,NeedDaemonReload"


@dataclass(frozen=True)
class Unit:
    """A unit: whether it is active, its process's version of hpn, and whether it changed after systemd read it."""

    is_active: bool = False
    version: str = ""
    is_stale: bool = False


def commands(
    put: Collection[str], enabled: Collection[str], running: Mapping[str, Unit], version: str
) -> Iterator[tuple[str, ...]]:
    """The arguments of each systemctl call after the paths ``put`` were written.

    Reload changed units, also those of an interrupted install; start ``enabled`` ones; restart other versions.
    """
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
    """True if systemd runs and reads its units from this root."""
    return _RUNS.is_dir() and shutil.which("systemctl") is not None and root.samefile("/")


def running(names: Iterable[str]) -> dict[str, Unit]:
    """The units with these names.  Raises IoFailure."""
    found = dict[str, Unit]()
    for block in run("show", f"--property={_SHOWN}", *names).split("\n\n"):
        about = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in about:
            version, is_stale = build_of(f"/proc/{about.get('MainPID')}"), about["NeedDaemonReload"] == "yes"
            found[about["Id"]] = Unit(about["ActiveState"] == "active", version, is_stale)
    return found


def run(*words: str) -> str:
    """Run systemctl and return its output.  Raises IoFailure."""
    command = ["systemctl", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    except OSError as e:
        raise IoFailure(f"{' '.join(command)}: {e.strerror}") from e
    except subprocess.CalledProcessError as e:
        raise IoFailure(f"{' '.join(command)}: {e.stderr.strip() or f'exit status {e.returncode}'}") from e
