"""What several attachments of one command allocate and release is one transaction of the store."""

import os
from collections.abc import Callable, Collection
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest

from base.protocol.errors import PoolExhausted, TryAgain
from base.protocol.result import Ip
from base.protocol.spec import Kept, Key
from ipam.ranges import Span
from ipam.stores import Book, Owner, Sandbox
from ipam.stores.files.store import FileStore


def key(n: int) -> Key:
    return Key("c", f"hpn{n}")


def given(*numbers: int) -> Callable[[Book], tuple[Ip, ...]]:
    return lambda _: tuple(Ip(ip_interface(f"10.0.0.{n}/24")) for n in numbers)


def first_free(book: Book) -> tuple[Ip, ...]:
    return (Ip(ip_interface(f"{book.first_free(Span.of(ip_address('10.0.0.2'), ip_address('10.0.0.9')))}/24")),)


def held(directory: Path) -> dict[str, tuple[str, ...]]:
    listed = FileStore(directory, []).contents().listed
    return {str(one.holding.owner.key): tuple(map(str, one.holding.ips)) for one in listed}


def is_busy(directory: Path) -> bool:
    try:
        FileStore(directory, [], timeout=0).look(lambda _: None)
    except TryAgain:
        return True
    return False


def test_the_files_stay_locked_and_are_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sync = list[int](), os.fdatasync
    FileStore(tmp_path, []).reserve(Owner(key(0)), given(2))
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), sync(fd))[1])
    with Kept() as kept:
        for n in (1, 2, 3):
            FileStore(tmp_path, [], kept=kept).reserve(Owner(key(n)), given(n + 2))
            assert is_busy(tmp_path)
    assert held(tmp_path) == {f"c:hpn{n}": (f"10.0.0.{n + 2}",) for n in range(4)}
    with Kept() as kept:
        for n in range(4):
            FileStore(tmp_path, [], kept=kept).release(key(n))
            assert is_busy(tmp_path)
    assert (held(tmp_path), FileStore(tmp_path, []).verify(), len(synced)) == ({}, [], 2)


def test_a_refusal_ends_it(tmp_path: Path) -> None:
    """Others may take what is free now, and what was allocated before stays."""

    def none(_: Book) -> tuple[Ip, ...]:
        raise PoolExhausted("all held")

    with Kept() as kept:
        FileStore(tmp_path, [], kept=kept).reserve(Owner(key(0)), given(2))
        with pytest.raises(PoolExhausted):
            FileStore(tmp_path, [], kept=kept).reserve(Owner(key(1)), none)
        assert not is_busy(tmp_path)
        FileStore(tmp_path, [], kept=kept).reserve(Owner(key(1)), given(3))
    assert held(tmp_path) == {"c:hpn0": ("10.0.0.2",), "c:hpn1": ("10.0.0.3",)}


def test_the_search_for_dead_leases_ends_it(tmp_path: Path) -> None:
    """It asks the kernel about all namespaces, and others need not wait meanwhile."""

    def gone(boxes: Collection[Sandbox]) -> Collection[Sandbox]:
        busy.append(is_busy(tmp_path))
        return boxes

    busy, box = list[bool](), Sandbox(7, 7, 0, 0)
    FileStore(tmp_path, []).reserve(Owner(key(0), sandbox=box), given(2))
    with Kept() as kept:
        FileStore(tmp_path, [], gone, kept=kept).reserve(Owner(key(1)), given(3))
        assert FileStore(tmp_path, [], gone, kept=kept).collect(None) == 1
        assert busy == [False]
        FileStore(tmp_path, [], gone, kept=kept).reserve(Owner(key(2)), given(2))
    assert held(tmp_path) == {"c:hpn1": ("10.0.0.3",), "c:hpn2": ("10.0.0.2",)}


def test_another_network_ends_it(tmp_path: Path) -> None:
    """So no two commands wait for each other's network."""
    with Kept() as kept:
        for name in ("n", "m"):
            FileStore(tmp_path / name, [], kept=kept).reserve(Owner(key(0)), given(2))
        assert (is_busy(tmp_path / "n"), is_busy(tmp_path / "m")) == (False, True)


@pytest.mark.parametrize("fails", ["pwrite", "pread"])
def test_an_index_that_is_spoilt_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """The next of them rebuilds it, with what the ones before allocated."""
    real, log = {name: getattr(os, name) for name in ("pwrite", "pread")}, list[str]()

    def failing(fd: int, what: bytes | int, at: int) -> bytes | int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/index") and at > 4096:
            monkeypatch.setattr(os, fails, real[fails])
            if fails == "pwrite":
                raise OSError(5, "Input/output error")
            return bytes(what)
        return real[fails](fd, what, at)

    FileStore(tmp_path, log).reserve(Owner(key(9)), given(9))
    with Kept() as kept:
        FileStore(tmp_path, log, kept=kept).reserve(Owner(key(0)), given(2))
        monkeypatch.setattr(os, fails, failing)
        FileStore(tmp_path, log, kept=kept).reserve(Owner(Key("d", "hpn1")), given(3))
        monkeypatch.setattr(os, fails, real[fails])
        FileStore(tmp_path, log, kept=kept).reserve(Owner(key(2)), first_free)
    assert held(tmp_path) == {f"c:hpn{n}": (f"10.0.0.{ip}",) for n, ip in ((0, 2), (2, 4), (9, 9))} | {
        "d:hpn1": ("10.0.0.3",)
    }
    assert (FileStore(tmp_path, log).verify(), "rebuilt" in "".join(log)) == ([], fails == "pread")
