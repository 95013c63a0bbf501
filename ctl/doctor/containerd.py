"""Facts about containerd's configuration, read as text: hpn has no other use for a parser of TOML."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ctl.doctor.model import Containerd, Process
from ctl.doctor.reading import Reader

_FILE: Final = "/etc/containerd/config.toml"
_OPTION: Final = re.compile(r"\0(?:-c|--?config)[=\0]([^\0]+)")
_LIST: Final = re.compile(r"^\s*(imports|disabled_plugins)\s*=\s*\[([^]]*)\]", re.MULTILINE)
# Also by the name of a configuration of version 1.
_SECTION: Final = re.compile(r"""^\s*\[plugins\.(?:cri|(["'])io\.containerd\.grpc\.v1\.cri\1)[].]""", re.MULTILINE)
_CDI: Final = re.compile(r"^[^#\n]*\benable_cdi\s*=\s*(true|false)\b", re.MULTILINE)


def containerd(read: Reader, processes: Iterable[Process]) -> Containerd | None:
    """The configuration of the running containerd that has CRI, as kubelet needs it; None if none runs.  Docker's own
    has no CRI."""
    found = (_configured(read, one.words) for one in processes if one.name == "containerd")
    return next(filter(None, found), None)


def _configured(read: Reader, words: Sequence[str]) -> Containerd | None:
    option = _OPTION.search("\0".join(words))
    file, cdi, cdi_path, replaced_by = option[1] if option else _FILE, None, "", ""
    for path in map(read.at, _files(read, file)):
        text = read.line(path)
        if any("cri" in name.split(".") for name in _listed("disabled_plugins", text)):
            return None
        if found := _CDI.findall(text):
            cdi, cdi_path, replaced_by = found[-1] == "true", path, ""
        elif cdi_path and _SECTION.search(text):
            replaced_by = path
    return Containerd(words[0], read.at(file), cdi, cdi_path, replaced_by)


def _listed(key: str, text: str) -> list[str]:
    """The names or paths in the list of that key."""
    lists = (listed for name, listed in _LIST.findall(text) if name == key)
    return [one for listed in lists for _, one in re.findall(r"""(["'])(.*?)\1""", listed)]


def _files(read: Reader, first: str) -> list[str]:
    """The file and all that it imports, each once.  A later one overrides: containerd reads a level's files before
    those that they import (LoadConfig in its config.go)."""
    found = [first]
    for file in found:
        found += [one for one in _imported(read, file) if one not in found]
    return found


def _imported(read: Reader, file: str) -> Iterator[str]:
    for pattern in _listed("imports", read.line(read.at(file))):
        path = os.path.normpath(os.path.join(os.path.dirname(file), pattern))
        if "*" in path:
            # Go's pattern has no "**".
            found = read.root.glob(re.sub(r"\*+", "*", path).lstrip("/"))
            yield from (f"/{one.relative_to(read.root)}" for one in sorted(found))
        else:
            yield path
