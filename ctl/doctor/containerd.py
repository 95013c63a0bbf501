"""Facts about containerd's configuration, read as text: hpn has no other use for a parser of TOML."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
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
    # A file overrides the one that imports it.
    for path in (read.at(file), *_imported(read, file)):
        for found in _CDI.findall(read.line(path)):
            enables = (found == "true", path)
    return Containerd(read.at(file), *(enables or (None, "")))


def _imported(read: Reader, file: str) -> Iterator[str]:
    for listed in _IMPORTS.findall(read.line(read.at(file))):
        for _, pattern in re.findall(r"""(["'])(.*?)\1""", listed):
            path = Path(file).parent / pattern
            yield from sorted(map(str, Path(read.at(f"{path.parent}")).glob(path.name)))
