"""Syncs of several files at once: each file that a command wrote is on disk before the command's answer."""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import get_ident

import pytest
from support.threadless import without_threads

from base.protocol.errors import IoFailure
from base.state import syncs


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the synced files.  A file named "bad" cannot be synced."""
    seen, sync = list[str](), os.fdatasync

    def noting(fd: int) -> None:
        seen.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        if seen[-1] == "bad":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", noting)
    return seen


@pytest.fixture
def files(tmp_path: Path) -> Iterator[dict[str, int]]:
    before = len(os.listdir("/proc/self/fd"))
    opened = {name: os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY) for name in ("a", "b", "bad")}
    yield opened
    for fd in opened.values():
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left"


def test_at_once_by_default(files: dict[str, int], synced: list[str]) -> None:
    syncs.data(files["a"], "a")
    assert synced == ["a"]
    with pytest.raises(OSError, match="Input/output error"):
        syncs.data(files["bad"], "bad")


def test_all_of_a_step_together(files: dict[str, int], synced: list[str]) -> None:
    """A file that several attachments share is synced once for each step, after its last write there."""
    with syncs.collected() as late:
        for name in ("a", "b", "a"):
            syncs.data(files[name], name)
        assert synced == []
        late.begin()
        syncs.data(files["a"], "a")
        late.wait()
        assert sorted(synced) == ["a", "a", "b"]
    syncs.data(files["b"], "b")
    assert sorted(synced) == ["a", "a", "b", "b"]


def test_the_one_who_waits_syncs_too(files: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """For one file, as of a DEL, a thread would only be waited for."""
    by, sync = list[int](), os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (by.append(get_ident()), sync(fd))[1])
    with syncs.collected() as late:
        syncs.data(files["a"], "a")
        late.wait()
        assert by == [get_ident()]
        for name in ("a", "b"):
            syncs.data(files[name], name)
        late.wait()
    assert [one == get_ident() for one in sorted(by[1:], key=lambda one: one == get_ident())] == [False, True]


def test_a_failure_is_reported_by_the_wait(files: dict[str, int], synced: list[str]) -> None:
    with syncs.collected() as late:
        for name in ("bad", "a"):
            syncs.data(files[name], f"/leases/{name}")
        with pytest.raises(IoFailure, match="syncing /leases/bad: Input/output error; its directory must be"):
            late.wait()
    assert sorted(synced) == ["a", "bad"]


def test_after_another_failure_that_one_counts(files: dict[str, int], synced: list[str]) -> None:
    def fails() -> None:
        with syncs.collected():
            for name in ("bad", "a"):
                syncs.data(files[name], name)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert sorted(synced) == ["a", "bad"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_without_threads() -> None:
    """The files are synced all the same, and no descriptor is left."""

    def many() -> tuple[int, int]:
        fds = [os.memfd_create(f"{n}") for n in range(8)]
        before = len(opened())
        with syncs.collected() as late:
            for fd in fds:
                syncs.data(fd, "a")
            late.begin()
            late.wait()
        return before, len(opened())

    before, after = without_threads(many)  # type: ignore[misc]
    assert before == after


def opened() -> list[int]:
    """The open descriptors; another user's /proc is closed."""
    found = list[int]()
    for fd in range(1024):
        with suppress(OSError):
            os.fstat(fd)
            found.append(fd)
    return found
