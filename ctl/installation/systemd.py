"""What systemd has running of ours, and telling it what to do (man 1 systemctl)."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from cni.protocol.errors import IoFailure
from ctl.installation.plan import Unit

_RUNS: Final = Path("/run/systemd/system")  # man 3 sd_booted
_ASKED: Final = ("Id", "ActiveState", "MainPID", "NeedDaemonReload")
_LOADER: Final = "ld-hpn.so.2"


def runs_here(root: str) -> bool:
    """Whether the root is the one that a running systemd has its units from."""
    return _RUNS.is_dir() and shutil.which("systemctl") is not None and Path(root).samefile("/")


def running(names: list[str]) -> dict[str, Unit]:
    """The units of these names.  Raises IoFailure."""
    found = dict[str, Unit]()
    for block in tell("show", f"--property={','.join(_ASKED)}", *names).split("\n\n"):
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


def tell(*words: str) -> str:
    """What systemctl prints.  Raises IoFailure."""
    command = ["systemctl", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as e:
        raise IoFailure(f"{' '.join(command)}: {e.strerror}") from e
    if done.returncode:
        raise IoFailure(f"{' '.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout
