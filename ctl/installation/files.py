"""The installed files on disk: compare them with what must be there, replace each in one step, remove them."""

import errno
import filecmp
import io
import json
import os
import posixpath
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal

from base.kernel.files import machine
from base.protocol.errors import InvalidConfig, IoFailure
from base.protocol.spec import VERSIONS
from base.state import durable, locks
from ctl.installation import layout
from ctl.installation.layout import Entry

Kind = Literal["nothing", "file", "link", "directory", "something else"]
_KINDS: Final[Mapping[int, Kind]] = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "directory"}

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_SMALL: Final = 1 << 21  # a device file has up to 1 MiB
# Seconds for the new program's first answer, before which it may unpack itself.
_TIMEOUT: Final = 60.0
_LOCK_TIMEOUT: Final = 10.0
_SHOWN: Final = 200
# Variables that determine where the program unpacks itself.
_KEPT: Final = ("HPN_PROGRAM_DIR", "HOME")
# The target of a masked unit's link (man 1 systemctl, mask).
_MASK: Final = "/dev/null"


def kind(path: Path) -> Kind:
    """The kind of the file at a path; a link is not followed.  Raises OSError."""
    try:
        return _KINDS.get(stat.S_IFMT(path.lstat().st_mode), "something else")
    except (FileNotFoundError, NotADirectoryError):
        return "nothing"


def text(path: Path) -> str:
    """The text of a small file, or the target of a link; empty for anything else.  Raises OSError."""
    match kind(path):
        case "link":
            return os.readlink(path)
        case "file" if path.stat().st_size <= _SMALL:
            return path.read_text(errors="replace")
    return ""


def _is_hpn(path: Path) -> bool:
    """True for the program of any version.  Raises OSError."""
    if kind(path) != "file":
        return False
    with path.open("rb") as file:
        return layout.SIGN in file.read(layout.SIGN_WITHIN)


def _is_current(root: Path, entry: Entry, program: Path) -> bool:
    """True if the entry is installed as ``_put`` would install it.  Raises OSError."""
    path = root / entry.path
    if kind(path) != ("link" if entry.kind == "link" else "file"):
        return False
    match entry.kind:
        case "program":
            filecmp.clear_cache()  # its key is size and time only
            return stat.S_IMODE(path.stat().st_mode) == 0o755 and filecmp.cmp(path, program, shallow=False)
        case "name":
            return kind(root / entry.text) == "file" and path.samefile(root / entry.text)
        case _:
            return text(path) == entry.text


def whose(folder: Path) -> str:
    """A phrase for the owner of a directory that this process may not write; empty for root's, and its own."""
    with suppress(OSError):
        if (uid := folder.stat().st_uid) not in (0, os.geteuid()) and not os.access(folder, os.W_OK):
            return f"{folder} belongs to uid {uid}, and this process lacks CAP_DAC_OVERRIDE"
    return ""


@contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Exclude other installs and uninstalls of this root.  Raises TryAgain, InvalidConfig, OSError.

    The lock's file is in the plugin directory, which every way of installing can write to.
    """
    path = _below(root, layout.LOCK)
    _make_folder(path.parent)
    with locks.passing(f"{path}", _LOCK_TIMEOUT):
        yield


def _put(root: Path, entry: Entry, program: Path) -> None:
    """Replace the file at the entry's path: write the new one beside it, sync, rename.

    A program is run before the rename.  Raises IoFailure, InvalidConfig and OSError; then the old file is unchanged and
    the new one removed.
    """
    path, new = _below(root, entry.path), _below(root, layout.temporary(entry.path))
    _make_folder(path.parent)
    _clear(new)
    try:
        match entry.kind:
            case "program":
                with program.open("rb") as source:
                    _write(new, source, 0o755)
                _run(new)
            case "name":
                os.link(root / entry.text, new, follow_symlinks=False)
            case "link":
                new.symlink_to(entry.text)
            case "file":
                _write(new, io.BytesIO(entry.text.encode()), 0o644)
        new.rename(path)
        durable.sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            _clear(new)
        raise


def _below(root: Path, path: str) -> Path:
    """The path below the root, with the links in its directories resolved.  Raises InvalidConfig if they lead out."""
    folder, _, name = path.rpartition("/")
    real = Path(os.path.realpath(root / folder))
    if not real.is_relative_to(os.path.realpath(root)):
        raise InvalidConfig(f"{root}: a link on the way to {path} leads out of it, to {real}; make the link relative")
    return real / name


def _make_folder(folder: Path) -> None:
    """Make a directory and its missing parents, synced and with mode 755 under any umask."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        durable.sync_directory(folder.parent)


def _write(path: Path, source: BinaryIO, mode: int) -> None:
    with os.fdopen(os.open(path, _NEW, 0o600), "wb") as file:
        shutil.copyfileobj(source, file)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def _clear(path: Path) -> None:
    if kind(path) == "directory":
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _run(program: Path) -> None:
    """Run the new program as a CNI plugin and check its answer.  Raises IoFailure."""
    try:
        why = _refusal(program)
    except subprocess.TimeoutExpired:
        why = f"no answer for {_TIMEOUT:g} s"
    except OSError as e:
        why = f"{e.strerror}; check whether its file system is mounted noexec"
        if e.errno == errno.ENOEXEC and (theirs := machine(f"{program}")):
            here = os.uname().machine
            why = f"{e.strerror}; it is built for {theirs}, and this machine is {here}: use the hpn for {here}"
    if why:
        raise IoFailure(f"the new file {program.name} does not run, so the old one stays: {why}")


def _refusal(program: Path) -> str:
    """Why the program's answer to VERSION is wrong; empty if it is right."""
    env = {word: os.environ[word] for word in _KEPT if word in os.environ} | {"CNI_COMMAND": "VERSION", "HPN_AGENT": ""}
    done = subprocess.run([program], env=env, input=b"{}", capture_output=True, timeout=_TIMEOUT, check=False)  # noqa: S603
    with suppress(ValueError, TypeError, KeyError):
        if done.returncode == 0 and json.loads(done.stdout)["supportedVersions"] == list(VERSIONS):
            return ""
    shown = (done.stdout or done.stderr)[:_SHOWN].decode(errors="replace").strip()
    return f"exit status {done.returncode}, and it printed {shown!r}"


@dataclass(frozen=True)
class Step:
    """Install the entry at the path, or remove the file or directory there if there is no entry."""

    path: str
    entry: Entry | None = None
    why: str = ""

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        if not self.entry:
            return f"remove /{self.path}{why}"
        targets = {"name": f", another name of /{self.entry.text}", "link": f" -> {self.entry.text}"}
        return f"put /{self.path}{targets.get(self.entry.kind, '')}{why}"


def do(root: Path, steps: Iterable[Step], program: Path) -> None:
    """Carry out the steps.  Raises CniError and OSError."""
    for step in steps:
        if step.entry:
            _put(root, step.entry, program)
        else:
            there = _below(root, step.path)
            with suppress(FileNotFoundError):
                _clear(there)
                durable.sync_directory(there.parent)


def entries(root: Path, units: Mapping[str, str], more: Sequence[Entry], *, has_node_file: bool) -> list[Entry]:
    """The entries to install, in this order.  Raises OSError.

    The program comes first: it is large and is run, so a full or noexec disk leaves the units unchanged.  A unit is
    enabled only when it is new, because an administrator may have disabled it later.  Its link precedes the unit, so
    that an install interrupted between the two still enables it.
    """
    there = {unit: root / layout.UNITS / unit for unit in units}
    links = [
        Entry(layout.wants_link(unit), "link", f"/{layout.UNITS}/{unit}")
        for unit in layout.WANTED_BY
        if unit in units and kind(there[unit]) == "nothing" and (unit != layout.NODE or has_node_file)
    ]
    return [
        Entry(layout.HPN, "program"),
        Entry(layout.IPAM, "name", layout.HPN),
        Entry(layout.COMMAND, "link", f"/{layout.HPN}"),
        *more,
        *links,
        *(
            Entry(f"{layout.UNITS}/{unit}", "file", content)
            for unit, content in units.items()
            if text(there[unit]) != _MASK
        ),
    ]


def steps_of_install(root: Path, wanted: Sequence[Entry], program: Path) -> list[Step]:
    """The steps that are still to do.  Raises OSError, and InvalidConfig for a file that hpn install did not write."""
    left = present(root, (layout.temporary(entry.path) for entry in wanted))
    steps = [Step(path, why="left by an interrupted install") for path in left]
    replaced = set[str]()
    for entry in wanted:
        is_new_name = entry.kind == "name" and entry.text in replaced
        if is_new_name or not _is_current(root, entry, program):
            replaced.add(entry.path)
            steps.append(Step(entry.path, entry, _replaced(root, entry)))
    return steps


def steps_of_uninstall(
    root: Path, units: Mapping[str, str], programs: Iterable[str] = ()
) -> tuple[list[Step], list[str]]:
    """The steps that remove an installation of any version, and these other programs of it.  Also the paths that hold
    other files.  Raises OSError."""
    contents = {f"{layout.UNITS}/{unit}": content for unit, content in units.items()}
    devices = (layout.DEVICES,) if text(root / layout.DEVICES).startswith(layout.MARK) else ()
    names = (*devices, layout.KUBECONFIG, layout.COMMAND, layout.IPAM, layout.HPN)
    paths = [*programs, *contents, *map(layout.wants_link, layout.WANTED_BY), *names]
    there = present(root, paths)
    ours = [path for path in there if _is_ours(root, path, contents.get(path, ""))]
    left = present(root, map(layout.temporary, paths))
    return [Step(path) for path in (*ours, *left)], [path for path in there if path not in ours]


def present(root: Path, paths: Iterable[str]) -> list[str]:
    """Those of the paths that exist; links are not followed.  Raises OSError."""
    return [path for path in paths if kind(root / path) != "nothing"]


def _replaced(root: Path, entry: Entry) -> str:
    """A phrase for the file that the entry replaces.  Raises InvalidConfig if hpn install did not write that file."""
    found, target = kind(root / entry.path), text(root / entry.path)
    match found:
        case "nothing":
            return ""
        case _ if _is_ours(root, entry.path, entry.text):
            return f"instead of a link to {target}" if found == "link" else "instead of another version"
        case "file":
            what = "not a file of hpn install, or only a part of one that an interrupted copy left"
        case "link":
            what = f"a link to {target}, which is not a path of hpn"
        case _:
            what = "a directory" if found == "directory" else "not a regular file"
    raise InvalidConfig(f"/{entry.path} is {what}; nothing was replaced.  Move it away, then run hpn install again")


def _is_ours(root: Path, path: str, content: str) -> bool:
    """True if hpn install, of any version, may replace or remove the file at the path.

    That includes a person's copy of the unit ``content``, and a person's or the package's link to the program.
    """
    what, found = kind(root / path), text(root / path)
    if posixpath.basename(path) in layout.NAMES:
        if what == "link":
            target = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), found))
            return target in (f"/{layout.HPN}", layout.PACKAGED)
        return path != layout.COMMAND and _is_hpn(root / path)
    if path in (layout.KUBECONFIG, layout.DEVICES) or path.startswith(f"{layout.UNITS}/hpn-"):
        is_copy = bool(content) and found == content.partition("\n")[2]
        return what == "file" and (found.startswith(layout.MARK) or is_copy)
    return what == "link"
