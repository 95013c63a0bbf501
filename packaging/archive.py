"""All Python modules of the frozen program in one file, as boot.py reads it: a table's size, the table, their code."""

import importlib.util
import marshal
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path


def code(name: str, path: Path) -> bytes:
    """A module's, without docstrings and assertions: as -OO, for which nothing in there asks."""
    return marshal.dumps(compile(path.read_bytes(), name, "exec", dont_inherit=True, optimize=2))


def compile_to(target: Path, name: str, source: Path) -> None:
    """As a file that Python runs, or imports where it looks for files."""
    target.write_bytes(importlib.util.MAGIC_NUMBER + bytes(12) + code(name, source))


def write(sources: Mapping[str, Path], target: Path) -> None:
    """By their full names."""
    table, body = {}, b""
    for name, path in sorted(sources.items()):
        data = code(name, path)
        table[name] = path.stem == "__init__", len(body), len(data)
        body += data
    head = marshal.dumps(table)
    target.write_bytes(len(head).to_bytes(8, "little") + head + body)


def sources_of(base: Path, library: Path) -> dict[str, Path]:
    """What PyInstaller would have put into base_library.zip, from where the standard library lies."""
    with zipfile.ZipFile(base) as archive:
        paths = [library / Path(name).with_suffix(".py") for name in archive.namelist()]
    return {dotted(path.relative_to(library)): path for path in paths}


def dotted(path: Path) -> str:
    """A module's name."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if path.stem == "__init__" else parts)


def record(names: Iterable[str], target: Path) -> None:
    """Write the module that precompiled.py looks things up in."""
    script = Path(__file__).with_name("record.py")
    command = [sys.executable, "-OO", "-s", "-P", "-S", str(script), ":".join(sys.path), *names]
    with target.open("wb") as output:
        subprocess.run(command, stdout=output, check=True)  # noqa: S603
