"""What the tests of hpn install share: a program to install, and what is there afterwards."""

import os
from pathlib import Path

from cni.protocol.spec import VERSIONS
from ctl.installation import places

ROOT = Path(__file__).parents[2]
UNITS = places.units(ROOT / "packaging" / "systemd")


def program(folder: Path, about: str = "one", code: str = "cat >/dev/null") -> Path:
    """A program that answers as hpn does: nothing of hpn is needed to put it somewhere."""
    path = folder / f"hpn-{about}"
    versions = str(list(VERSIONS)).replace("'", '"')
    path.write_text(f"#!/bin/sh\n# {about}  HPN_PROGRAM_DIR=\n{code}; echo '{{\"supportedVersions\": {versions}}}'\n")
    path.chmod(0o755)
    return path


def tree(root: Path) -> dict[str, str]:
    """Every file and link below the root, with what is in it."""
    paths = [Path(folder, name) for folder, some, names in os.walk(root) for name in (*some, *names)]
    return {
        str(path.relative_to(root)): f"-> {path.readlink()}" if path.is_symlink() else path.read_text()
        for path in paths
        if path.is_symlink() or path.is_file()
    }
