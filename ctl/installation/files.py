"""The files of an installation on disk: each is put in the place of another at once, or removed."""

import errno
import filecmp
import io
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal

from base.kernel.files import machine
from base.protocol.errors import InvalidConfig, IoFailure
from base.protocol.spec import VERSIONS
from base.state import durable, locks
from ctl.installation import layout
from ctl.installation.layout import Entry

Kind = Literal["nothing", "file", "link", "directory", "something else"]

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SMALL: Final = 1 << 16
_CHUNK: Final = 1 << 20
# Seconds for the new program's first answer: it may unpack what it carries.
_TIMEOUT: Final = 60.0
_LOCK_TIMEOUT: Final = 10.0
_SHOWN: Final = 200
# Variables that name where the program is unpacked.
_KEPT: Final = ("HPN_PROGRAM_DIR", "HOME")


def kind(path: Path) -> Kind:
    """What is at the path; a link is not followed.  Raises OSError."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "nothing"
    if stat.S_ISLNK(mode):
        return "link"
    if stat.S_ISDIR(mode):
        return "directory"
    return "file" if stat.S_ISREG(mode) else "something else"


def text(path: Path) -> str:
    """The text of a small file, or the target of a link; empty for anything else.  Raises OSError."""
    match kind(path):
        case "link":
            return os.readlink(path)
        case "file" if path.stat().st_size <= _SMALL:
            return path.read_text(errors="replace")
    return ""


def is_hpn(path: Path) -> bool:
    """Whether it is the program, of any version.  Raises OSError."""
    if kind(path) != "file":
        return False
    with path.open("rb") as file:
        return layout.SIGN in file.read(layout.SIGN_WITHIN)


def is_current(root: Path, entry: Entry, program: Path) -> bool:
    """Whether the entry is there as the program that runs would put it.  Raises OSError."""
    path = root / entry.path
    if kind(path) != ("link" if entry.kind == "link" else "file"):
        return False
    match entry.kind:
        case "program":
            filecmp.clear_cache()  # it knows files by size and time
            return stat.S_IMODE(path.stat().st_mode) == 0o755 and filecmp.cmp(path, program, shallow=False)
        case "name":
            return kind(root / entry.text) == "file" and path.samefile(root / entry.text)
        case _:
            return text(path) == entry.text


@contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """No other install or uninstall of this root runs meanwhile.  Raises TryAgain, InvalidConfig, OSError."""
    path = _below(root, layout.LOCK)
    _make_folder(path.parent)
    fd = _locked(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(fd)


def _locked(path: Path) -> int:
    while True:
        fd = os.open(path, _LOCK, 0o600)
        try:
            locks.take(fd, f"/{layout.LOCK}", _LOCK_TIMEOUT)  # guard: lock
            with suppress(FileNotFoundError):
                # The holder before may have removed the file.
                if os.path.samestat(os.fstat(fd), path.lstat()):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def put(root: Path, entry: Entry, program: Path) -> None:
    """Put the entry in the place of what is at its path: beside it first, on disk, then by its name.

    A program is run before it gets its name.  Raises IoFailure, InvalidConfig and OSError; then the old file stands,
    and nothing is left beside it.
    """
    path, new = _below(root, entry.path), _below(root, layout.temporary(entry.path))
    _make_folder(path.parent)
    _clear(new)
    try:
        match entry.kind:
            case "program":
                with program.open("rb") as source:
                    _write(new, source, 0o755)
                _run(new)  # guard: run
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
            _clear(new)  # guard: cleared
        raise


def remove(root: Path, path: str) -> None:
    """Remove what is at the path, and all that is in it; it is fine if there is nothing.

    Raises OSError, InvalidConfig.
    """
    there = _below(root, path)
    with suppress(FileNotFoundError):
        _clear(there)
        durable.sync_directory(there.parent)


def _below(root: Path, path: str) -> Path:
    """The path below the root, without a link on the way.  Raises InvalidConfig if that is outside of the root."""
    folder, _, name = path.rpartition("/")
    real = Path(os.path.realpath(root / folder))
    if not real.is_relative_to(os.path.realpath(root)):  # guard: below-the-root
        raise InvalidConfig(f"{root}: a link on the way to {path} leads out of it, to {real}; make the link relative")
    return real / name


def _make_folder(folder: Path) -> None:
    """Make the directory and its missing parents, each on disk and with mode 755, whatever the umask is."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        durable.sync_directory(folder.parent)


def _write(path: Path, source: BinaryIO, mode: int) -> None:
    with os.fdopen(os.open(path, _NEW, 0o600), "wb") as file:
        shutil.copyfileobj(source, file, _CHUNK)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def _clear(path: Path) -> None:
    if kind(path) == "directory":
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _run(program: Path) -> None:
    """Run the new program: it is to answer as a CNI plugin.  Raises IoFailure."""
    try:
        why = _refusal(program)
    except subprocess.TimeoutExpired:
        why = f"no answer for {_TIMEOUT:g} s"
    except OSError as e:
        why = f"{e.strerror}; is its file system mounted noexec"
        if e.errno == errno.ENOEXEC and (theirs := machine(f"{program}")):
            here = os.uname().machine
            why = f"{e.strerror}; it is built for {theirs}, and this machine is {here}: take the hpn for {here}"
    if why:
        raise IoFailure(f"the new file {program.name} does not run, so the old one stands: {why}")


def _refusal(program: Path) -> str:
    """Why the program's answer to VERSION is not ours; empty if it is."""
    env = {word: os.environ[word] for word in _KEPT if word in os.environ} | {"CNI_COMMAND": "VERSION", "HPN_AGENT": ""}
    done = subprocess.run([program], env=env, input=b"{}", capture_output=True, timeout=_TIMEOUT, check=False)  # noqa: S603
    with suppress(ValueError, TypeError, KeyError):
        if done.returncode == 0 and json.loads(done.stdout)["supportedVersions"] == list(VERSIONS):
            return ""
    shown = (done.stdout or done.stderr)[:_SHOWN].decode(errors="replace").strip()
    return f"exit status {done.returncode}, and it printed {shown!r}"
