"""Records of attachments: locked, saved, found again, and set aside if unreadable."""

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from base.protocol.errors import IoFailure, RecordUnreadable
from base.protocol.spec import Key
from base.state import durable, journal
from base.state.pod import Identity
from base.state.record import LOST, Record

KEY = Key("c1", "hpn0")
RECORD = Record(
    network="rail0",
    key=KEY,
    netns="/run/netns/p",
    identity=Identity(inode=4026532008, cookie=4097, mounts=4026531841, processes=4026531836),
    kind="macvlan",
    link={"parent": 3, "mac": "02:00:00:00:00:01"},
    config={"name": "rail0", "ipam": {"type": "hpn-ipam"}},
    args="IP=10.0.0.5",
    pod="default/p",
    complete=True,
    result={"ips": [{"address": "10.56.0.2/24"}]},
)


def test_record_round_trip(tmp_path: Path) -> None:
    with journal.lock(tmp_path, "rail0", KEY) as entry:
        assert entry.load() is None
        incomplete = replace(RECORD, complete=False, result={})
        entry.save(incomplete)
        assert entry.load() == incomplete
        entry.save(RECORD)
        loaded = entry.load()
        assert loaded == RECORD
        assert vars(loaded.identity) == vars(RECORD.identity)
        entry.forget()
        assert entry.load() is None
        entry.forget()


def test_record_on_disk(tmp_path: Path) -> None:
    with journal.lock(tmp_path, "rail0", KEY) as entry:
        entry.save(replace(RECORD, boot="b", time="t"))
    body = json.loads((tmp_path / "attachments" / "rail0" / "c1:hpn0.json").read_text())["body"]
    assert body == {
        "network": "rail0",
        "key": {"container_id": "c1", "ifname": "hpn0"},
        "netns": "/run/netns/p",
        "identity": {"inode": 4026532008, "cookie": 4097, "mounts": 4026531841, "processes": 4026531836},
        "kind": "macvlan",
        "link": {"parent": 3, "mac": "02:00:00:00:00:01"},
        "config": {"name": "rail0", "ipam": {"type": "hpn-ipam"}},
        "args": "IP=10.0.0.5",
        "pod": "default/p",
        "rxe": "",
        "sysctl": {},
        "rules": [],
        "boot": "b",
        "time": "t",
        "complete": True,
        "result": {"ips": [{"address": "10.56.0.2/24"}]},
        "gids": [],
        "device_info": {},
    }


def test_of_this_boot() -> None:
    assert RECORD.of_this_boot
    assert not replace(RECORD, boot="00000000-0000-0000-0000-000000000000").of_this_boot


def without(name: str) -> dict[str, Any]:
    return {
        k: v
        for k, v in {
            "network": "rail0",
            "key": {"container_id": "c1", "ifname": "hpn0"},
            "netns": "/run/netns/p",
            "identity": {"inode": 1, "cookie": 2},
            "kind": "macvlan",
            "link": {},
            "config": {},
        }.items()
        if k != name
    }


@pytest.mark.parametrize(
    "body",
    [
        {},
        without("network"),
        without("key"),
        without("identity"),
        without("link"),
        without("") | {"key": "c1:hpn0"},
        without("") | {"key": ["c1", "hpn0"]},
        without("") | {"key": {"container_id": "c1"}},
        without("") | {"identity": {"inode": "x", "cookie": 1}},
        without("") | {"identity": 5},
        without("") | {"new_in_a_later_version": 1},
    ],
    ids=repr,
)
def test_whole_but_no_record_goes_to_quarantine(tmp_path: Path, body: dict[str, Any]) -> None:
    with journal.lock(tmp_path, "rail0", KEY) as entry:
        durable.write(durable.directory(entry.path.parent) / entry.path.name, body)
        with pytest.raises(RecordUnreadable, match="lacks members of a record"):
            entry.load()
        assert stands_in(entry)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"schema": 2, "sha256": "", "body": {}}', b"\0" * 512])
def test_unreadable_record_goes_to_quarantine(tmp_path: Path, content: bytes) -> None:
    with journal.lock(tmp_path, "rail0", KEY) as entry:
        for n in range(2):  # a second one does not overwrite the first
            durable.directory(entry.path.parent)
            entry.path.write_bytes(content + b" " * n)
            with pytest.raises(RecordUnreadable) as e:
                entry.load()
            aside = tmp_path / "quarantine" / "rail0" / f"c1:hpn0.json.{n}"
            assert aside.read_bytes() == content + b" " * n
            assert e.value.details == f"kept in {aside}; search by hand for anything else that it described"
            record = stands_in(entry)
            assert str(aside) in record.trouble
            assert (record.netns, record.identity) == ("", Identity(0, 0))


def stands_in(entry: journal.Entry) -> Record:
    """The record that replaces an unreadable one."""
    record = entry.load()
    assert record
    assert (record.kind, record.complete, record.network, record.key) == (LOST, False, "rail0", KEY)
    return record


def test_what_can_be_read_of_an_unreadable_record(tmp_path: Path) -> None:
    with journal.lock(tmp_path, "rail0", KEY) as entry:
        entry.save(RECORD)
        whole = entry.path.read_bytes()
        entry.path.write_bytes(whole.replace(b"macvlan", b"macvlam"))
        with pytest.raises(RecordUnreadable):
            entry.load()
        record = stands_in(entry)
        assert (record.netns, record.identity) == (RECORD.netns, RECORD.identity)


@pytest.mark.parametrize("what", ["directory", "fifo", "link", "socket"])
def test_something_else_in_its_place(tmp_path: Path, what: str) -> None:
    with journal.lock(tmp_path, "rail0", KEY) as entry, socket.socket(socket.AF_UNIX) as listener:
        durable.directory(entry.path.parent)
        match what:
            case "directory":
                (entry.path / "in it").mkdir(parents=True)
            case "fifo":
                os.mkfifo(entry.path)
            case "link":
                entry.path.symlink_to("/etc/hostname")
            case "socket":
                listener.bind(str(entry.path))
        with pytest.raises(RecordUnreadable):
            entry.load()
        assert stands_in(entry)
        assert [aside.name for aside in (tmp_path / "quarantine" / "rail0").iterdir()] == ["c1:hpn0.json.0"]
        entry.forget()
        assert entry.load() is None


def test_smallest_whole_record(tmp_path: Path) -> None:
    """The cases above fail for what they lack, not for a common reason."""
    with journal.lock(tmp_path, "rail0", KEY) as entry:
        durable.write(durable.directory(entry.path.parent) / entry.path.name, without(""))
        record = entry.load()
    assert record
    assert (record.key, record.identity, record.complete) == (KEY, Identity(1, 2), False)


KEYS = [Key("c1", "hpn0"), Key("c-1", "hpn-0"), Key("c.json", "a.json"), Key("c.tmp", "a.tmp"), Key("0", "eth0.100")]


def test_keys(tmp_path: Path) -> None:
    assert journal.keys(tmp_path, "rail0") == []
    for key in KEYS:
        with journal.lock(tmp_path, "rail0", key) as entry:
            entry.save(replace(RECORD, key=key))
    with journal.lock(tmp_path, "rail1", Key("other", "network")) as entry:
        entry.save(RECORD)
    assert set(journal.keys(tmp_path, "rail0")) == set(KEYS)
    assert len(journal.keys(tmp_path, "rail0")) == len(KEYS)


def test_keys_of_unreadable_and_interrupted_records(tmp_path: Path) -> None:
    folder = durable.directory(tmp_path / "attachments" / "rail0")
    (folder / "broken:hpn0.json").write_text("")
    (folder / "first:hpn0.json.tmp").write_text('{"sch')  # the first write died
    (folder / "again:hpn0.json").write_text("")
    (folder / "again:hpn0.json.tmp").write_text('{"sch')  # a later one did
    (folder / "README").touch()
    (folder / "no-key.json").touch()
    assert journal.keys(tmp_path, "rail0") == [Key("again", "hpn0"), Key("broken", "hpn0"), Key("first", "hpn0")]


def test_forget_removes_an_interrupted_first_write(tmp_path: Path) -> None:
    with journal.lock(tmp_path, "rail0", KEY) as entry:
        durable.directory(entry.path.parent)
        entry.path.with_name("c1:hpn0.json.tmp").write_text('{"sch')
        assert entry.load() is None
        entry.forget()
    assert journal.keys(tmp_path, "rail0") == []


def test_keys_where_no_directory_can_be(tmp_path: Path) -> None:
    (tmp_path / "attachments").mkdir()
    (tmp_path / "attachments" / "rail0").touch()
    with pytest.raises(IoFailure, match=r"^listing .*: Not a directory$"):
        journal.keys(tmp_path, "rail0")


@pytest.mark.parametrize(
    ("change", "is_beside"),
    [
        pytest.param({}, True, id="another network of the pod"),
        pytest.param({"identity": replace(RECORD.identity, mounts=1, processes=2)}, True, id="seen from elsewhere"),
        # cnitool, and a runtime that recreates a pod, reuse the container id with another namespace.
        pytest.param({"identity": replace(RECORD.identity, cookie=5)}, False, id="another namespace, same number"),
        pytest.param({"identity": replace(RECORD.identity, inode=5)}, False, id="another namespace"),
        pytest.param({"boot": "00000000-0000-0000-0000-000000000000"}, False, id="an older boot's"),
        pytest.param({"key": Key("c2", "hpn1")}, False, id="another container's"),
    ],
)
def test_beside(tmp_path: Path, change: dict[str, Any], is_beside: bool) -> None:
    """Only attachments in the pod's namespace count for its sysctls and tables."""
    ours, other = replace(RECORD), replace(RECORD, **{"network": "rail1", "key": Key("c1", "hpn1"), **change})
    for record in (ours, other):
        with journal.lock(tmp_path, record.network, record.key) as entry:
            entry.save(record)
    assert journal.beside(tmp_path, ours) == ([other] if is_beside else [])


@pytest.mark.parametrize("other", [("rail0", Key("c1", "hpn1")), ("rail1", Key("c1", "hpn0"))], ids=str)
def test_beside_is_every_other_one(tmp_path: Path, other: tuple[str, Key]) -> None:
    """Also one of the same network, or with the same interface name."""
    network, key = other
    beside = replace(RECORD, network=network, key=key)
    for record in (RECORD, beside):
        with journal.lock(tmp_path, record.network, record.key) as entry:
            entry.save(record)
    assert journal.beside(tmp_path, RECORD) == [beside]


@pytest.mark.parametrize("other", [("rail0", Key("c2", "hpn0")), ("rail1", KEY)], ids=str)
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_record_of_another_attachment(tmp_path: Path, other: tuple[str, Key], is_damaged: bool) -> None:
    """It is not listed as this attachment's, and the record that replaces it does not name its namespace."""
    network, key = other
    with journal.lock(tmp_path, "rail0", KEY) as entry:
        entry.save(replace(RECORD, network=network, key=key))
        if is_damaged:
            entry.path.write_bytes(entry.path.read_bytes().replace(b'"complete":true', b'"complete":null'))
        assert list(journal.files(tmp_path)) == [(entry.path, None)]
        with pytest.raises(RecordUnreadable):
            entry.load()
        lost = entry.load()
    assert lost
    assert (lost.kind, lost.network, lost.key) == (LOST, "rail0", KEY)
    if key != KEY:
        assert (lost.netns, lost.identity) == ("", Identity(0, 0))
