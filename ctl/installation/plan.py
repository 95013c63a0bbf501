"""What is on disk, compared with what is to be there: the steps from one to the other."""

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.protocol.errors import InvalidConfig
from ctl.installation import files, layout
from ctl.installation.layout import Entry

# The link of a unit that must not be started (man 1 systemctl, mask).
_MASK: Final = "/dev/null"


@dataclass(frozen=True)
class Step:
    """An entry takes the place of what is at the path; without one, what is there goes, whatever is in it."""

    path: str
    entry: Entry | None = None
    why: str = ""

    def __str__(self) -> str:
        text = ""
        if self.entry and self.entry.kind in ("name", "link"):
            text = f", another name of /{self.entry.text}" if self.entry.kind == "name" else f" -> {self.entry.text}"
        why = f" ({self.why})" if self.why else ""
        return f"{'put' if self.entry else 'remove'} /{self.path}{text}{why}"


def do(root: Path, steps: Iterable[Step], program: Path) -> None:
    """Do the steps.  Raises CniError and OSError."""
    for step in steps:
        if step.entry:
            files.put(root, step.entry, program)
        else:
            files.remove(root, step.path)


def entries(root: Path, units: Mapping[str, str], more: Sequence[Entry], *, has_node_file: bool) -> list[Entry]:
    """What is to be there, in the order in which it is put.  Raises OSError.

    The program comes first: it is large and it is run, so a disk that is full or mounted noexec leaves the units as
    they are.  A unit is enabled when it comes: later its administrator may have disabled it.  The link is put before
    the unit, so that an install that was interrupted between the two enables it still.
    """
    there = {unit: root / layout.UNITS / unit for unit in units}
    wishes = [
        Entry(layout.wish(unit), "link", f"/{layout.UNITS}/{unit}")
        for unit in layout.WANTED_BY
        if unit in units
        and files.kind(there[unit]) == "nothing"  # guard: enabled-once
        and (unit != layout.NODE or has_node_file)
    ]
    return [
        Entry(layout.HPN, "program"),
        Entry(layout.IPAM, "name", layout.HPN),
        Entry(layout.COMMAND, "link", f"/{layout.HPN}"),
        *wishes,
        *(
            Entry(f"{layout.UNITS}/{unit}", "file", text)
            for unit, text in units.items()
            if files.text(there[unit]) != _MASK  # guard: masked
        ),
        *more,
    ]


def install(root: Path, wanted: Sequence[Entry], program: Path) -> list[Step]:
    """What has to be done.  Raises InvalidConfig for what is not ours to replace, and OSError."""
    left = (path for entry in wanted if is_there(root, path := layout.temporary(entry.path)))
    steps = [
        Step(path, why="left by an install that was interrupted") for path in left
    ]  # guard: left-over (left -> ())
    replaced = set[str]()
    for entry in wanted:
        is_new_name = entry.kind == "name" and entry.text in replaced
        if is_new_name or not files.is_current(root, entry, program):
            replaced.add(entry.path)
            steps.append(Step(entry.path, entry, _replaced(root, entry)))
    return steps


def uninstall(root: Path, units: Mapping[str, str]) -> tuple[list[Step], list[str]]:
    """What hpn install has put there, of whatever version, and the paths of its names that have something else.

    Raises OSError.
    """
    texts = {f"{layout.UNITS}/{unit}": text for unit, text in units.items()}
    names = (layout.KUBECONFIG, layout.COMMAND, layout.IPAM, layout.HPN)
    paths = [*texts, *map(layout.wish, layout.WANTED_BY), *names]
    there = [path for path in paths if is_there(root, path)]
    ours = [path for path in there if _is_ours(root, path, texts.get(path, ""))]
    left = [path for path in map(layout.temporary, paths) if is_there(root, path)]
    return [Step(path) for path in (*ours, *left)], [path for path in there if path not in ours]


def is_there(root: Path, path: str) -> bool:
    """Whether there is anything at the path.  Raises OSError."""
    return files.kind(root / path) != "nothing"


def _replaced(root: Path, entry: Entry) -> str:
    """In words, what the entry replaces.  Raises InvalidConfig if that is somebody else's."""
    text = files.text(root / entry.path)
    match files.kind(root / entry.path):
        case "nothing":
            return ""
        case kind if _is_ours(root, entry.path, entry.text):
            return f"instead of a link to {text}" if kind == "link" else "instead of another version"
        case "file":
            what = "not what hpn install has put there, or a part of it that a copy left when it was interrupted"
        case "link":
            what = f"a link to {text}, which is none of hpn's names"
        case kind:
            what = f"a {kind}" if kind == "directory" else "no file"
    raise InvalidConfig(
        f"/{entry.path} is {what}; nothing was replaced.  Move it away, or remove it, and run hpn install again"
    )


def _is_ours(root: Path, path: str, text: str) -> bool:
    """Whether hpn install, of whatever version, has put what is at the path.  A unit of this ``text`` may be a person's
    copy, and a link to the program a person's or the Debian package's."""
    kind, found = files.kind(root / path), files.text(root / path)
    if path in (layout.HPN, layout.IPAM, layout.COMMAND):
        if kind == "link":
            target = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), found))
            return target in (f"/{layout.HPN}", layout.PACKAGED)  # guard: another-link = True
        return path != layout.COMMAND and files.is_hpn(root / path)  # guard: another-program = True
    if path == layout.KUBECONFIG or path.startswith(f"{layout.UNITS}/hpn-"):
        is_copy = bool(text) and found == layout.unmarked(text)
        return kind == "file" and (layout.is_marked(path, found) or is_copy)  # guard: another-unit = True
    return kind == "link"
