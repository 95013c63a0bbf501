"""A state file is whole or absent, whatever happens to it."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.disks import no_file_longer_than

from base.protocol.errors import InvalidConfig, IoFailure, RecordUnreadable
from base.state import durable

BODY: dict[str, Any] = {"key": {"container_id": "c1"}, "name": "é", "n": [1, 2.5, None, True], "empty": {}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "record.json"


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def test_write_read_remove(file: Path) -> None:
    assert durable.read(file) is None
    durable.write(file, BODY)
    assert durable.read(file) == BODY
    durable.write(file, {"other": 1})
    assert durable.read(file) == {"other": 1}
    assert names(file.parent) == {"record.json"}
    durable.remove(file)
    assert durable.read(file) is None
    durable.remove(file)
    assert names(file.parent) == set()


def test_format(file: Path) -> None:
    durable.write(file, {"b": 1, "a": "x"})
    document = json.loads(file.read_text())
    # printf '{"a":"x","b":1}' | sha256sum
    digest = "cdab067e9f3beb32d1252cfd63e492592fecbf591b0d08cadb24bb17f3864246"
    assert document == {"schema": 1, "sha256": digest, "body": {"b": 1, "a": "x"}}


def test_every_truncation_is_noticed(file: Path) -> None:
    durable.write(file, BODY)
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        if length == len(whole) - 1:  # except the last newline, which carries nothing
            assert durable.read(file) == BODY
        else:
            with pytest.raises(RecordUnreadable):
                durable.read(file)


def test_every_flipped_bit_is_noticed(file: Path) -> None:
    durable.write(file, {"name": "rail0", "n": [1, 25], "x": None})
    whole = file.read_bytes()
    for at in range(len(whole) - 1):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            file.write_bytes(flipped)
            with pytest.raises(RecordUnreadable):
                durable.read(file)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not a state file of hpn (0 bytes: JSONDecodeError)"),
        (b"\0" * 4096, "is not a state file of hpn (4096 bytes: "),  # as some file systems hold after a power cut
        (b"\xff\xfe", "is not a state file of hpn (2 bytes: "),
        (b"[]", "is not a state file of hpn"),
        (b"5", "is not a state file of hpn"),
        (b"null", "is not a state file of hpn"),
        (b"{}", "is not a state file of hpn"),
        (b'{"schema": 1, "body": {}}', "is not a state file of hpn"),
        (b'{"schema": 1, "sha256": "x", "body": {}}', "was altered: its checksum does not match"),
        pytest.param(b"[" * 100_000, "is not a state file of hpn"),
        # a body that is no object, under its right checksum (printf '[]' | sha256sum)
        (
            b'{"schema":1,"sha256":"4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945","body":[]}',
            "was altered",
        ),
        # another version's, with any checksum
        (b'{"schema": 2, "sha256": "x", "body": {}}', "has schema 2, this version reads 1; a newer version wrote it"),
        (b'{"schema": "1", "sha256": "x", "body": {}}', "has schema '1'"),
    ],
    ids=lambda case: repr(case)[:30],
)
def test_unreadable(file: Path, content: bytes, why: str) -> None:
    file.write_bytes(content)
    with pytest.raises(RecordUnreadable) as e:
        durable.read(file)
    assert e.value.msg.startswith(f"{file} {why}")
    assert file.read_bytes() == content  # for people


def test_the_checksum_is_over_content(file: Path) -> None:
    durable.write(file, BODY)
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document, indent=8, sort_keys=True, ensure_ascii=False))
    assert durable.read(file) == BODY


def test_a_directory_in_its_place(file: Path) -> None:
    file.mkdir()
    with pytest.raises(RecordUnreadable, match="is not a regular file"):
        durable.read(file)
    with pytest.raises(IoFailure, match=r"^writing .*: Is a directory; the state directory must be writable"):
        durable.write(file, {})
    with pytest.raises(IoFailure, match=r"^removing .*: Is a directory; "):
        durable.remove(file)
    assert names(file.parent) == {"record.json"}


def test_an_interrupted_write_is_no_file(file: Path) -> None:
    temporary = file.with_name("record.json.tmp")
    temporary.write_text('{"schema": 1, ')
    assert durable.read(file) is None
    durable.remove(file)
    assert not temporary.exists()

    temporary.write_text('{"schema": 1, ' * 1000)  # longer than the new content
    durable.write(file, BODY)
    assert durable.read(file) == BODY
    temporary.write_text("x")
    durable.remove(file)
    assert names(file.parent) == set()


@pytest.mark.parametrize("room", [0, 1, 100, 9000])
def test_a_failed_write_leaves_the_old_file(file: Path, room: int) -> None:
    durable.write(file, BODY)
    with (
        no_file_longer_than(room),
        pytest.raises(IoFailure, match=r"^writing .*/record\.json: File too large; the state directory must be writ"),
    ):
        durable.write(file, {"x": "y" * 20_000})
    assert durable.read(file) == BODY
    assert names(file.parent) == {"record.json"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        pytest.param("x" * 252, "File name too long; the state directory must be writable"),  # with ".tmp"
        pytest.param("file/record.json", "File exists; it must be a writable directory"),
        pytest.param("blocked", "Is a directory; the state directory must be writable"),  # its temporary name
    ],
)
def test_a_write_that_cannot_begin(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "blocked.tmp").mkdir()
    with pytest.raises(IoFailure, match=f": {why}"):
        durable.write(tmp_path / name, {})
    assert names(tmp_path) == {"file", "blocked.tmp"}


def test_the_directory_is_made(tmp_path: Path) -> None:
    durable.write(tmp_path / "a" / "b" / "record.json", BODY)
    assert durable.read(tmp_path / "a" / "b" / "record.json") == BODY
    assert [folder.stat().st_mode & 0o7777 for folder in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700, 0o700]


def test_a_link_at_the_temporary_name_is_not_followed(file: Path) -> None:
    victim = file.with_name("victim")
    victim.write_text("precious")
    file.with_name("record.json.tmp").symlink_to(victim)
    with pytest.raises(IoFailure, match="Too many levels of symbolic links"):
        durable.write(file, BODY)
    assert victim.read_text() == "precious"
    durable.write(file, BODY)  # the link was removed with the failure
    assert durable.read(file) == BODY
    assert victim.read_text() == "precious"


def test_permissions(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = durable.directory(tmp_path / "a")
        durable.write(folder / "f", BODY)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o7777 == 0o700
    assert (folder / "f").stat().st_mode & 0o7777 == 0o600


def test_directory(tmp_path: Path) -> None:
    assert durable.directory(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert durable.directory(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "b"):
        # The message names the obstacle, whichever path was given.
        with pytest.raises(
            IoFailure, match=f"^state directory {tmp_path}/file.*: .*; it must be a writable directory$"
        ):
            durable.directory(path)


def test_probe(tmp_path: Path) -> None:
    durable.probe(tmp_path / "s")
    assert names(tmp_path / "s") == set()
    with no_file_longer_than(10), pytest.raises(IoFailure, match="File too large"):
        durable.probe(tmp_path / "s")
    assert names(tmp_path / "s") == set()


def test_two_probes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two STATUS in threads of one process: neither removes the other's file."""
    replace, both = os.replace, threading.Barrier(2)

    def replaces_with_the_other(old: str, new: str) -> None:
        both.wait(60)
        replace(old, new)
        both.wait(60)

    monkeypatch.setattr(os, "replace", replaces_with_the_other)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(durable.probe, tmp_path) for _ in range(2)]:
            done.result()
    assert names(tmp_path) == set()


def test_a_file_without_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "_MOST", 1 << 17)
    with file.open("wb") as f:
        f.truncate(1 << 18)
    with pytest.raises(RecordUnreadable, match="is longer than 131072 bytes"):
        durable.read(file)


def test_probe_where_others_may_look(tmp_path: Path) -> None:
    """A probe refuses a directory that the next ADD would refuse."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s").chmod(0o755)
    with pytest.raises(InvalidConfig, match="has mode 755"):
        durable.probe(tmp_path / "s")
    assert names(tmp_path / "s") == set()


def test_set_aside_never_overwrites(file: Path) -> None:
    quarantine = file.parent / "quarantine" / "rail0"
    moved = []
    for content in ("first", "second", "third"):
        file.write_text(content)
        moved.append(durable.set_aside(file, quarantine))
    assert not file.exists()
    assert moved == [quarantine / "record.json.0", quarantine / "record.json.1", quarantine / "record.json.2"]
    assert [p.read_text() for p in moved] == ["first", "second", "third"]


def test_set_aside_what_is_not_there(file: Path) -> None:
    with pytest.raises(IoFailure, match=r"^moving unreadable .*: No such file or directory$"):
        durable.set_aside(file, file.parent / "q")


def test_boot_id() -> None:
    assert len(durable.boot_id()) == 36
    assert durable.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
