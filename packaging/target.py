"""The architecture that the program is built for: this machine's, or another one, with files from packaging/foreign.

A module's code is the same on both, if Python's version is, which the build checks.  So this machine's Python analyses
and compiles the program, but each file comes from the other architecture's packages.  HPN_ROOT names their root;
without it all files are this machine's.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

OWN = Path(__file__).parents[1]
ROOT = Path(os.environ.get("HPN_ROOT") or "/")
IS_OTHER = Path("/") != ROOT
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
# Such as x86_64-linux-gnu; a part of paths and of extension modules' names.
_HERE = sys.implementation._multiarch  # noqa: SLF001
_SITE = Path(sys.prefix, "lib", PYTHON, "site-packages")
# The directories of PyPI's distributions, and dpkg's option for its database.
SITES = [f"{ROOT / 'python'}"] if IS_OTHER else sys.path
DPKG = f"--admindir={ROOT / 'var/lib/dpkg'}"
_LDD = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_NEEDED = re.compile(r"^ +NEEDED +(\S+)$", re.MULTILINE)


@cache
def triplet() -> str:
    """Return the target's ``_HERE``."""
    if not IS_OTHER:
        return _HERE
    (folder,) = (ROOT / "usr" / "lib").glob("*-linux-gnu")
    return folder.name


def renamed(name: str) -> str:
    """Return a file's or module's name on the target."""
    return name.replace(_HERE, triplet())


def counterpart(path: Path | str) -> Path:
    """Return the target's file in place of this machine's; a file of ours, or of the build, stays.  Ends the build if
    there is none."""
    path = Path(path)
    if not IS_OTHER or path.is_relative_to(OWN):
        return path
    if path.is_relative_to(_SITE):
        found = [ROOT / "python" / renamed(f"{path.relative_to(_SITE)}")]
    else:
        found = [ROOT / renamed(spelled).lstrip("/") for spelled in spellings(path)]
    for one in found:
        if one.exists():
            return one
    sys.exit(f"{path} has no counterpart for {triplet()}; add its package to packaging/foreign")


def spellings(source: Path) -> tuple[str, ...]:
    """Return a file's paths.  Debian lists one of them; /lib is a link to /usr/lib on most machines."""
    real = source.resolve()
    other = Path("/", real.relative_to("/usr")) if real.is_relative_to("/usr") else Path("/usr", real.relative_to("/"))
    return str(source), str(real), str(other)


def inside(path: Path) -> Path:
    """Return a file's path in the root, as in dpkg's database."""
    return Path("/", path.relative_to(ROOT)) if IS_OTHER and path.is_relative_to(ROOT) else path


def libraries(program: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and file of each library that a program or a library needs.  The loader's name is empty.

    For this machine, these include the libraries that other libraries need.  For another machine, only the first level.
    """
    if not IS_OTHER:
        for name, found in _LDD.findall(_output("ldd", program)):
            yield name, Path(found)
        return
    for name in _NEEDED.findall(_output("objdump", "-p", program)):
        folders = (ROOT / "lib" / triplet(), ROOT / "usr" / "lib" / triplet())
        found = next((folder / name for folder in folders if (folder / name).exists()), None)
        if not found:
            sys.exit(f"{program} needs {name} for {triplet()}; add its package to packaging/foreign")
        yield "" if name.startswith("ld-linux") else name, found


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603


def refuse_another_python() -> None:
    """End the build if the target's interpreter cannot run this one's code, which needs the same version."""
    if not IS_OTHER:
        return
    stanza = (ROOT / "var/lib/dpkg/status").read_text().partition(f"Package: {PYTHON}-minimal\n")[2]
    version = re.findall(r"^Version: (?:\d+:)?([\d.]+)", stanza, re.MULTILINE)[0]
    here = ".".join(map(str, sys.version_info[:3]))
    if version != here:
        sys.exit(f"Python is {version} for {triplet()}, and {here} here; upgrade this machine: apt-get upgrade")
