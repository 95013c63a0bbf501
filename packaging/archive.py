"""The Python modules of the frozen program: in one file for startup/importer.py, or each in its own file."""

import importlib.util
import marshal
import py_compile
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = ("base", "hardware", "cni", "ipam", "agent", "node", "ctl")


def inside(name: str, source: Path) -> str:
    """Return the path of a module's source below sys.path."""
    return name.replace(".", "/") + ("/__init__.py" if source.stem == "__init__" else ".py")


def code(name: str, source: Path, level: int) -> bytes:
    """Return a module's marshalled code; at level 2 without docstrings and assertions.  Tracebacks have its path in the
    source tree."""
    startup = source.is_relative_to(ROOT / "packaging")
    path = str(source.relative_to(ROOT)) if startup else inside(name, source)
    return marshal.dumps(compile(source.read_bytes(), path, "exec", dont_inherit=True, optimize=level))


def compile_to(target: Path, name: str, source: Path, level: int) -> None:
    """Write a module's code as a .pyc file."""
    target.write_bytes(importlib.util.MAGIC_NUMBER + bytes(12) + code(name, source, level))


def write(sources: Mapping[str, Path], target: Path, level: int) -> None:
    """Write all modules into one file: the table's size, the table by module name, the code."""
    table, body = {}, b""
    for name, path in sorted(sources.items()):
        data = code(name, path, level)
        table[name] = path.stem == "__init__", len(body), len(data)
        body += data
    head = marshal.dumps(table)
    target.write_bytes(len(head).to_bytes(8, "little") + head + body)


def write_texts(sources: Mapping[str, Path], target: Path) -> None:
    """Write the source of each module of ours, for the lines of a traceback."""
    texts = {name: path.read_text() for name, path in sorted(sources.items()) if name.split(".")[0] in OURS}
    target.write_bytes(zlib.compress(marshal.dumps(texts), 9))


def lay_out(sources: Mapping[str, Path], directory: Path, level: int) -> dict[str, Path]:
    """Lay the modules out for Python's own importer: sources, and code in __pycache__ valid for any source time.

    Returns each file's origin.
    """
    taken = {}
    for name, source in sorted(sources.items()):
        text = directory / inside(name, source)
        text.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, text)
        cache = Path(importlib.util.cache_from_source(str(text), optimization=""))
        current = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(
            str(text), str(cache), inside(name, source), doraise=True, optimize=level, invalidation_mode=current
        )
        taken |= {str(path.relative_to(directory)): source for path in (text, cache)}
    return taken


def sources_of(base: Path, library: Path) -> dict[str, Path]:
    """Return the modules of PyInstaller's base_library.zip with their sources in the standard library."""
    with zipfile.ZipFile(base) as archive:
        paths = [library / Path(name).with_suffix(".py") for name in archive.namelist()]
    return {dotted(path.relative_to(library)): path for path in paths}


def dotted(path: Path) -> str:
    """Return the module name of a path below sys.path."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if path.stem == "__init__" else parts)


def record(names: Iterable[str], directory: Path) -> None:
    """Write the tables of startup/precompiled_*.py, as modules."""
    script = Path(__file__).with_name("record.py")
    command = [sys.executable, "-OO", "-s", "-P", "-S", str(script), str(directory), ":".join(sys.path), *names]
    subprocess.run(command, check=True)  # noqa: S603
