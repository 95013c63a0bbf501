"""Shared by the tests of hpn install: a program to install, the resulting tree, and units."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from support.killing import at_step

from base.protocol.spec import VERSIONS
from ctl.installation import layout

ENDED = 77
ROOT = Path(__file__).parents[2]
UNITS = layout.units(ROOT / "packaging" / "systemd")
# A drop-in of layout.LEAVE: the unit without its long pauses.
SHORT = """
[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=
ExecStart=/opt/cni/bin/hpn daemonset leave --absent=0.1
RestartSec=1s
"""


def program(folder: Path, about: str = "one", code: str = "cat >/dev/null") -> Path:
    """A program that answers like hpn; installation needs no more of it."""
    path = folder / f"hpn-{about}"
    versions = str(list(VERSIONS)).replace("'", '"')
    path.write_text(f"#!/bin/sh\n# {about}  HPN_PROGRAM_DIR=\n{code}; echo '{{\"supportedVersions\": {versions}}}'\n")
    path.chmod(0o755)
    return path


def killed_at(step: int, act: Callable[[], object]) -> bool:
    """Run the work in a child that dies before its n-th step; return False if it ended before that."""
    child = os.fork()
    if not child:
        try:
            at_step(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
            act()
            os._exit(ENDED)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.waitstatus_to_exitcode(status) == ENDED
    return False


def tree(root: Path) -> dict[str, str]:
    """Return every file and link below the root, with its content."""
    paths = [Path(folder, name) for folder, some, names in os.walk(root) for name in (*some, *names)]
    return {
        str(path.relative_to(root)): f"-> {path.readlink()}" if path.is_symlink() else path.read_text()
        for path in paths
        if path.is_symlink() or path.is_file()
    }
