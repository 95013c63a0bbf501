"""Pure: what is there, and what shall be there -> the steps from one to the other."""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cni.protocol.errors import InvalidConfig
from ctl.installation import places
from ctl.installation.found import NOTHING, Found
from ctl.installation.places import Content, HardLink, Link, Program, Text

# What systemd takes for a unit that must not be started (man 1 systemctl, mask).
_MASK: Final = "/dev/null"
# The names by which people and runtimes call the program.
_NAMES: Final = (places.HPN, places.IPAM, places.COMMAND)


@dataclass(frozen=True)
class Put:
    """The content takes the place of what is at the path."""

    path: str
    content: Content
    instead: str = ""

    def __str__(self) -> str:
        match self.content:
            case HardLink(of):
                what = f", another name of /{of}"
            case Link(target):
                what = f" -> {target}"
            case _:
                what = ""
        return f"put /{self.path}{what}{f' ({self.instead})' if self.instead else ''}"


@dataclass(frozen=True)
class Remove:
    """What is at the path goes, whatever is in it."""

    path: str
    why: str = ""

    def __str__(self) -> str:
        return f"remove /{self.path}{f' ({self.why})' if self.why else ''}"


@dataclass(frozen=True)
class Tell:
    """systemctl is run with these words."""

    words: tuple[str, ...]
    why: str = ""

    def __str__(self) -> str:
        return f"systemctl {' '.join(self.words)}{f' ({self.why})' if self.why else ''}"


Step = Put | Remove | Tell


@dataclass(frozen=True)
class Unit:
    """A unit as systemd has it: whether it is active, the version of hpn that its process runs, if any, and whether its
    files have changed since systemd read them."""

    is_active: bool = False
    version: str = ""
    is_stale: bool = False


def wanted(units: Mapping[str, str], there: Mapping[str, Found], *, has_node_file: bool) -> dict[str, Content]:
    """What is to be at which path, in the order in which it is put.

    The program comes first: it is large and it is run, so a disk that is full or mounted noexec leaves the units as
    they are.  A unit is enabled when it comes: later its administrator may have disabled it.  The link is put before
    the unit, so that an install that was interrupted between the two is not taken for that.
    """
    wishes = [
        unit
        for unit in places.WANTED_BY
        if unit in units
        and there.get(f"{places.UNITS}/{unit}", NOTHING).kind == "nothing"  # guard: enabled-once
        and (unit != places.NODE or has_node_file)
    ]
    found: dict[str, Content] = {
        places.HPN: Program(),
        places.IPAM: HardLink(places.HPN),
        places.COMMAND: Link(f"/{places.HPN}"),
    }
    found |= {places.wish(unit): Link(f"/{places.UNITS}/{unit}") for unit in wishes}
    # guard below: masked (there)
    return found | {f"{places.UNITS}/{name}": Text(text) for name, text in units.items() if not is_masked(there, name)}


def is_masked(there: Mapping[str, Found], unit: str) -> bool:
    """Whether the administrator forbids systemd to start the unit."""
    found = there.get(f"{places.UNITS}/{unit}", NOTHING)
    return found.kind == "link" and found.text == _MASK


def install(there: Mapping[str, Found], wanted: Mapping[str, Content]) -> list[Step]:
    """What has to be done to the files.  Raises InvalidConfig for what is not ours to replace."""
    steps: list[Step] = [
        Remove(path, "left by an install that was interrupted")
        for path in map(places.temporary, wanted)
        if there.get(path, NOTHING).kind != "nothing"
    ]  # guard: left-over (there.get(path, NOTHING).kind != "nothing" -> False)
    replaced = set[str]()
    for path, content in wanted.items():
        found = there.get(path, NOTHING)
        if isinstance(content, HardLink) and content.of in replaced:
            is_there = False
        else:
            is_there = _is_there(found, content, there)
        if not is_there:
            replaced.add(path)
            steps.append(Put(path, content, _instead(path, content, found)))
    return steps


def _is_there(found: Found, content: Content, there: Mapping[str, Found]) -> bool:
    match content:
        case Program():
            return found.is_this
        case HardLink(of):
            return found.kind == "file" and found.inode == there.get(of, NOTHING).inode
        case Link(target):
            return found.kind == "link" and found.text == target
        case Text(text):
            return found.kind == "file" and found.text == text


def _instead(path: str, content: Content, found: Found) -> str:
    """In words, what is replaced.  Raises InvalidConfig if that is somebody else's."""
    match found.kind:
        case "nothing":
            return ""
        case "link" if not isinstance(content, Text):
            if path in _NAMES and not _leads_to_hpn(path, found):  # guard: replaced-link
                raise InvalidConfig(
                    f"/{path} is a link to {found.text}, which is none of hpn's names; nothing was replaced.  Move it "
                    "away, or remove it, and run hpn install again"
                )
            return f"instead of a link to {found.text}"
        case "file" if isinstance(content, Program | HardLink):
            if found.is_hpn:  # guard: replaced-program = True
                return "instead of another version"
            raise InvalidConfig(
                f"/{path} is another program, or a part of one that a copy left when it was interrupted; nothing was "
                f"replaced.  Move it away, or remove it (rm /{path}), and run hpn install again"
            )
        case "file" if isinstance(content, Text):
            name = path.rpartition("/")[2]
            if places.is_marked(name, found.text) or found.text == places.unmarked(content.text):  # guard: unit = True
                return "instead of another version's"
            remedy = (
                "move it away, or leave out --api-server and --credential"
                if path == places.KUBECONFIG
                else f"move it away, and put what is different in it into a drop-in: systemctl edit {name}"
            )
            raise InvalidConfig(
                f"/{path} was not written by hpn install, and is not what this version writes; {remedy}"
            )
        case kind:
            what = f"a {kind}" if kind != "something else" else "no file"
            raise InvalidConfig(f"/{path} is {what}, which hpn install does not replace; move it away")


def uninstall(there: Mapping[str, Found], units: Mapping[str, str]) -> tuple[list[Remove], list[str]]:
    """What hpn install has put there, of whatever version, and the paths of its names that have something else."""
    ours, others = list[Remove](), list[str]()
    wishes = map(places.wish, places.WANTED_BY)
    units_there = (f"{places.UNITS}/{unit}" for unit in units)
    paths = [*units_there, *wishes, places.KUBECONFIG, places.COMMAND, places.IPAM, places.HPN]
    for path in paths:
        found = there.get(path, NOTHING)
        if _is_ours(path, found, units):
            ours.append(Remove(path))
        elif found.kind != "nothing":
            others.append(path)
    ours += [Remove(path) for path in map(places.temporary, paths) if there.get(path, NOTHING).kind != "nothing"]
    return ours, others


def _is_ours(path: str, found: Found, units: Mapping[str, str]) -> bool:
    folder, _, name = path.rpartition("/")
    if path in (places.HPN, places.IPAM):
        return found.is_hpn or _leads_to_hpn(path, found)  # guard: another-program = found.kind != "nothing"
    if path == places.COMMAND:
        return _leads_to_hpn(path, found)
    if path == places.KUBECONFIG:
        return places.is_marked(name, found.text)
    if folder == places.UNITS:
        return places.is_marked(name, found.text) or found.text == places.unmarked(units[name])
    return found.kind == "link"


def _leads_to_hpn(path: str, found: Found) -> bool:
    """Whether it is a link to the program, as hpn install, a person or the Debian package makes it."""
    target = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), found.text))
    return found.kind == "link" and target in (f"/{places.HPN}", places.PACKAGED)


def tell(steps: list[Step], enabled: set[str], running: Mapping[str, Unit], version: str) -> Iterator[Step]:
    """What systemd has to be told after the steps: ``enabled`` units are to be active, and a process that runs another
    version is to be replaced.  What systemd has not read is read again, also if an install before this one put it."""
    is_new = any(
        isinstance(one, Put) and isinstance(one.content, Text | Link) and places.UNITS in one.path for one in steps
    )
    if is_new or any(unit.is_stale for unit in running.values()):
        yield Tell(("daemon-reload",))
    for name in sorted(enabled):
        if not running.get(name, Unit()).is_active:
            yield Tell(("start", name))
    for name in (places.AGENT, places.NODE):
        unit = running.get(name, Unit())
        if unit.is_active and unit.version != version:
            yield Tell(("restart", name), "it runs another version")
