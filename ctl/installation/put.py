"""One step done: a file put in another's place at once, or removed."""

import errno
import io
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from cni.kernel import elf
from cni.protocol.errors import IoFailure
from cni.protocol.spec import VERSIONS
from cni.state import locks
from ctl.installation import folders, places
from ctl.installation.places import Content, HardLink, Link, Program, Text

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK: Final = 1 << 20
# Seconds for the new file's first answer: it may unpack what it carries.
_TIMEOUT: Final = 60.0
_LOCK_TIMEOUT: Final = 10.0
_SAID: Final = 200
# Of the environment, what says where the program is unpacked.
_KEPT: Final = ("HPN_PROGRAM_DIR", "HOME")


@contextmanager
def alone(root: str) -> Iterator[None]:
    """No other install or uninstall of this root runs meanwhile.  Raises TryAgain, InvalidConfig, OSError."""
    folder, _, name = places.LOCK.rpartition("/")
    with folders.open_folder(root, folder, make=True) as at:
        fd = _locked(at, name)
        try:
            yield
        finally:
            # Whoever waits for it looks whether it is still there.
            with suppress(OSError):
                os.unlink(name, dir_fd=at)
            os.close(fd)


def _locked(at: int, name: str) -> int:
    while True:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=at)
        try:
            locks.take(fd, f"/{places.LOCK}", _LOCK_TIMEOUT)  # guard: lock
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=at, follow_symlinks=False)):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def put(root: str, path: str, content: Content, program: Path) -> None:
    """Put the content in the place of what is at the path: beside it first, on disk, then by its name.

    A program is run before it gets its name.  Raises IoFailure and OSError; then the old file stands, and nothing is
    left beside it.
    """
    folder, _, name = path.rpartition("/")
    temporary = places.temporary(path).rpartition("/")[2]
    with folders.open_folder(root, folder, make=True) as at:
        _clear(at, temporary)
        try:
            _make(at, temporary, content, program)
            os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)
            os.fsync(at)
        except BaseException:
            with suppress(OSError):
                _clear(at, temporary)  # guard: cleared
            raise


def _make(at: int, temporary: str, content: Content, program: Path) -> None:
    match content:
        case Program():
            with program.open("rb") as source:
                _write(at, temporary, source, 0o755)
            _run(at, temporary)  # guard: run
        case Text(text):
            _write(at, temporary, io.BytesIO(text.encode()), 0o644)
        case Link(target):
            os.symlink(target, temporary, dir_fd=at)
        case HardLink(of):
            other = of.rpartition("/")[2]
            os.link(other, temporary, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)


def _write(at: int, name: str, source: BinaryIO, mode: int) -> None:
    with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=at), "wb") as file:
        shutil.copyfileobj(source, file, _CHUNK)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def _run(at: int, name: str) -> None:
    """See that the new file runs here and answers as a CNI plugin.  Raises IoFailure."""
    try:
        why = _asked(f"/proc/self/fd/{at}/{name}", at)
    except OSError as e:
        why = _unrunnable(e, at, name)
    except subprocess.TimeoutExpired:
        why = f"no answer for {_TIMEOUT:g} s"
    if why:
        raise IoFailure(f"the new file {name} does not run, so the old one stands: {why}")


def _unrunnable(e: OSError, at: int, name: str) -> str:
    if e.errno == errno.ENOEXEC and (machine := elf.machine(f"/proc/self/fd/{at}/{name}")):
        here = os.uname().machine
        return f"{e.strerror}; it is built for {machine}, and this machine is {here}: take the hpn for {here}"
    return f"{e.strerror}; is its file system mounted noexec"


def _asked(path: str, folder: int) -> str:
    """Why the program is none of ours, by its answer to VERSION; empty if it is one."""
    kept = {word: os.environ[word] for word in _KEPT if word in os.environ}
    env = kept | {"CNI_COMMAND": "VERSION", "HPN_AGENT": ""}
    done = subprocess.run(  # noqa: S603
        [path], env=env, input=b"{}", capture_output=True, timeout=_TIMEOUT, check=False, pass_fds=[folder]
    )
    try:
        if done.returncode == 0 and json.loads(done.stdout)["supportedVersions"] == list(VERSIONS):
            return ""
    except (ValueError, TypeError, KeyError):
        pass
    said = (done.stdout or done.stderr)[:_SAID].decode(errors="replace").strip()
    return f"exit status {done.returncode}, and it printed {said!r}"


def remove(root: str, path: str) -> None:
    """Remove what is at the path, and all that is in it; it is fine if there is nothing.

    Raises OSError, and InvalidConfig if others could change the way there.
    """
    folder, _, name = path.rpartition("/")
    with suppress(FileNotFoundError), folders.open_folder(root, folder) as at:
        _clear(at, name)
        os.fsync(at)


def _clear(at: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        shutil.rmtree(name, dir_fd=at)
