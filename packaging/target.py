"""What the program is built for: this machine, or another architecture, whose files packaging/foreign has got.

A module's code is the same on both (it is checked that Python is).  So this machine's Python looks for what the program
needs, and compiles it; but each file is taken from the other architecture's packages.  HPN_ROOT names their root;
without it everything is this machine's.
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
# Such as x86_64-linux-gnu, in paths and in names of extension modules.
_HERE = sys.implementation._multiarch  # noqa: SLF001
_SITE = Path(sys.prefix, "lib", PYTHON, "site-packages")
# Where distributions of PyPI lie, and which dpkg knows of packages.
SITES = [f"{ROOT / 'python'}"] if IS_OTHER else sys.path
DPKG = f"--admindir={ROOT / 'var/lib/dpkg'}"
_LDD = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_NEEDED = re.compile(r"^ +NEEDED +(\S+)$", re.MULTILINE)


@cache
def triplet() -> str:
    """What ``_HERE`` is there."""
    if not IS_OTHER:
        return _HERE
    (folder,) = (ROOT / "usr" / "lib").glob("*-linux-gnu")
    return folder.name


def renamed(name: str) -> str:
    """A file or a module, by its name there."""
    return name.replace(_HERE, triplet())


def counterpart(path: Path | str) -> Path:
    """The file that is there in place of this machine's.  One that is ours, or was made by the build, stays."""
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
    """A file's paths, of which Debian lists one: /lib is a link to /usr/lib on most machines."""
    real = source.resolve()
    other = Path("/", real.relative_to("/usr")) if real.is_relative_to("/usr") else Path("/usr", real.relative_to("/"))
    return str(source), str(real), str(other)


def inside(path: Path) -> Path:
    """A file's path in the root, as dpkg has it."""
    return Path("/", path.relative_to(ROOT)) if IS_OTHER and path.is_relative_to(ROOT) else path


def libraries(program: Path) -> Iterator[tuple[str, Path]]:
    """The libraries that a program or a library needs, each with the file that it is: of all levels for this machine,
    of the first for another.  The loader has no name."""
    if not IS_OTHER:
        for name, found in _LDD.findall(_said("ldd", program)):
            yield name, Path(found)
        return
    for name in _NEEDED.findall(_said("objdump", "-p", program)):
        folders = (ROOT / "lib" / triplet(), ROOT / "usr" / "lib" / triplet())
        found = next((folder / name for folder in folders if (folder / name).exists()), None)
        if not found:
            sys.exit(f"{program} needs {name} for {triplet()}; add its package to packaging/foreign")
        yield "" if name.startswith("ld-linux") else name, found


def _said(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603


def refuse_another_python() -> None:
    """End the build if the interpreter there would not take what this one compiles: Debian's have one version on all
    architectures."""
    if not IS_OTHER:
        return
    stanza = (ROOT / "var/lib/dpkg/status").read_text().partition(f"Package: {PYTHON}-minimal\n")[2]
    version = re.findall(r"^Version: (?:\d+:)?([\d.]+)", stanza, re.MULTILINE)[0]
    here = ".".join(map(str, sys.version_info[:3]))
    if version != here:
        sys.exit(f"Python is {version} for {triplet()}, and {here} here; upgrade this machine: apt-get upgrade")
