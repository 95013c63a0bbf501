"""Facts about containerd's configuration, read as text: hpn has no other use for a parser of TOML."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ctl.doctor.model import Containerd, Process
from ctl.doctor.reading import Reader

_FILE: Final = "/etc/containerd/config.toml"
_OPTION: Final = re.compile(r"\0(?:-c|--?config)[=\0]([^\0]+)")
_IMPORTS: Final = re.compile(r"^\s*imports\s*=\s*\[([^]]*)\]", re.MULTILINE)
_CDI: Final = re.compile(r"^[^#\n]*\benable_cdi\s*=\s*(true|false)\b", re.MULTILINE)


def containerd(read: Reader, processes: Iterable[Process]) -> Containerd | None:
    """The configuration of the running containerd; None if none runs."""
    for process in processes:
        if process.name == "containerd":
            return _configured(read, process.words)
    return None


def _configured(read: Reader, words: Sequence[str]) -> Containerd:
    option = _OPTION.search("\0".join(words))
    file, enables = option[1] if option else _FILE, None
    for path in map(read.at, _files(read, file)):
        for found in _CDI.findall(read.line(path)):
            enables = (found == "true", path)
    return Containerd(read.at(file), *(enables or (None, "")))


def _files(read: Reader, first: str) -> list[str]:
    """The file and all that it imports, each once.  A later one overrides: containerd reads a level's files before
    those that they import (LoadConfig in its config.go)."""
    found = [first]
    for file in found:
        found += [one for one in _imported(read, file) if one not in found]
    return found


def _imported(read: Reader, file: str) -> Iterator[str]:
    for listed in _IMPORTS.findall(read.line(read.at(file))):
        for _, pattern in re.findall(r"""(["'])(.*?)\1""", listed):
            path = os.path.normpath(os.path.join(os.path.dirname(file), pattern))
            if "*" in path:
                # Go's pattern has no "**".
                found = read.root.glob(re.sub(r"\*+", "*", path).lstrip("/"))
                yield from (f"/{one.relative_to(read.root)}" for one in sorted(found))
            else:
                yield path
