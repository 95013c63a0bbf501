"""The commands to systemd after an install (man 1 systemctl)."""

import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.protocol.errors import IoFailure
from ctl.command_line import build_of
from ctl.installation import layout

_RUNS: Final = Path("/run/systemd/system")  # man 3 sd_booted
_SHOWN: Final = ("ActiveState", "SubState", "MainPID", "NeedDaemonReload", "DropInPaths")
_STARTS: Final = ("start", "restart")
_LINES: Final = 5  # of a unit's log in an error


@dataclass(frozen=True)
class Unit:
    """A unit: whether it is active, its process's version of hpn, and whether it changed after systemd read it.

    ``is_waiting``: systemd will start it again; a start would take as long.
    ``arguments``: those of its hpn node; None if it runs none, or if an administrator's drop-in may have changed them.
    """

    is_active: bool = False
    version: str = ""
    is_stale: bool = False
    is_waiting: bool = False
    arguments: tuple[str, ...] | None = None


def commands(
    put: Collection[str],
    enabled: Collection[str],
    running: Mapping[str, Unit],
    version: str,
    node: tuple[str, ...] | None = None,
) -> Iterator[tuple[str, ...]]:
    """The arguments of each systemctl call after the paths ``put`` were written.

    Reload changed units, also those of an interrupted install; start ``enabled`` ones; restart other versions.  With
    ``node``, the arguments of hpn node in its unit, also restart it if it has others, or else make it read its file.
    """
    if any(path.startswith(layout.UNITS) for path in put) or any(unit.is_stale for unit in running.values()):
        yield ("daemon-reload",)
    for name in sorted(enabled):
        unit = running.get(name, Unit())
        if not (unit.is_active or unit.is_waiting):
            yield ("start", name)
    for name in (layout.AGENT, layout.NODE):
        unit = running.get(name, Unit())
        has_others = name == layout.NODE and None not in (node, unit.arguments) and unit.arguments != node
        if unit.is_active and (unit.version != version or has_others):
            yield ("restart", name)
        elif unit.is_active and name == layout.NODE and node is not None:
            yield ("reload", name)


def runs_here(root: Path) -> bool:
    """True if systemd runs and reads its units from this root."""
    return _RUNS.is_dir() and shutil.which("systemctl") is not None and root.samefile("/")


def running(names: Iterable[str]) -> dict[str, Unit]:
    """The units with these names.  Raises IoFailure."""
    return {
        name: Unit(
            about["ActiveState"] == "active",
            build_of(f"/proc/{about['MainPID']}"),
            about["NeedDaemonReload"] == "yes",
            about["SubState"].startswith("auto-restart"),
            None if about["DropInPaths"] else _arguments(about["MainPID"]),
        )
        for name, about in show(names, *_SHOWN).items()
    }


def show(names: Iterable[str], *properties: str) -> dict[str, dict[str, str]]:
    """Properties of units, by the unit's name; empty for those that it does not have.  Raises IoFailure."""
    found = dict[str, dict[str, str]]()
    for block in run("show", f"--property={','.join(('Id', *properties))}", *names).split("\n\n"):
        about = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in about:
            found[about["Id"]] = dict.fromkeys(properties, "") | about
    return found


def _arguments(process: str) -> tuple[str, ...] | None:
    """The arguments of the process if it is an hpn node, else None."""
    with suppress(OSError, ValueError):
        words = Path(f"/proc/{process}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
        return tuple(words[words.index("node") + 1 :])
    return None


def run(*words: str) -> str:
    """Run systemctl and return its output.  Raises IoFailure."""
    command = ["systemctl", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    except OSError as e:
        raise IoFailure(f"{' '.join(command)}: {e.strerror}") from e
    except subprocess.CalledProcessError as e:
        why = e.stderr.strip() or f"exit status {e.returncode}"
        raise IoFailure(f"{' '.join(command)}: {why}{_log(words[-1]) if words[0] in _STARTS else ''}") from e


def _log(unit: str) -> str:
    """The end of the unit's log, for an error; empty if it has none."""
    command = ["journalctl", f"--unit={unit}", f"--lines={_LINES}", "--output=cat", "--quiet"]
    with suppress(OSError):
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
        return f"  Its log ends: {found}" if found else ""
    return ""
