"""The last error of an attachment: kept beside its record, shown by hpn inspect, and removed with it."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.base.state.test_locks import held, the_lock
from unit.ctl.test_inspect import VF, save, shown

from base.protocol.dispatch import failed
from base.protocol.errors import CheckFailed, CniError
from base.protocol.spec import DELEGATED, NEWEST, Request
from base.state import durable, journal, last_error

PAGE = (Path(__file__).parents[4] / "docs/user/commands.md").read_text()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}")


def fails(command: str = "CHECK", error: CniError | None = None, **environ: str) -> None:
    """A command of the attachment that ends with this error."""
    variables = {"CNI_COMMAND": command, "CNI_CONTAINERID": VF.key.container_id, "CNI_IFNAME": VF.key.ifname}
    conf = json.dumps({"name": VF.network}).encode()
    last_error.note(Request(variables | environ, conf), failed(NEWEST, error or CheckFailed("hpn0 is down")))


def kept(state: Path) -> list[str]:
    return sorted(path.name for path in (state / "attachments").rglob("*.error*"))


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK"])
def test_it_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    save(tmp_path, replace(VF, complete=command != "ADD"))
    assert "lastError" not in shown(tmp_path, capsys, "--json")
    fails(command, CheckFailed("of before"))
    error = CheckFailed("hpn0 is down")
    error.add_note("and more")
    fails(command, error)
    (attachment,) = json.loads(shown(tmp_path, capsys, "--json"))["attachments"]
    last = attachment["lastError"]
    time = last.pop("time")
    assert last == {"command": command, "code": 107, "msg": "hpn0 is down", "details": "and more"}
    assert all(f'"{member}"' in PAGE for member in last)
    line = f"0123456789ab of rail0: {command} failed, {time[:10]} {time[11:19]}Z, code 107: hpn0 is down (and more)"
    assert shown(tmp_path, capsys).splitlines()[-1] == line
    (same,) = json.loads(shown(tmp_path, capsys, "0123456789abcdef", "--json"))["attachments"]
    assert same["lastError"] == {**last, "time": time}
    assert f"  last error {line.partition(': ')[2]}" in shown(tmp_path, capsys, "0123456789abcdef").splitlines()


def test_it_goes_with_the_record(tmp_path: Path) -> None:
    for end in (journal.Entry.forget, lambda entry: entry.keep_for_people(VF)):
        save(tmp_path, VF)
        fails()
        assert kept(tmp_path) == ["0123456789abcdef:hpn0.error"]
        (tmp_path / "attachments/rail0/0123456789abcdef:hpn0.error.tmp").write_text("of one that was killed")
        with journal.lock(tmp_path, VF.network, VF.key) as entry:
            end(entry)
        assert kept(tmp_path) == []


def test_nobody_takes_it_for_a_record(tmp_path: Path) -> None:
    save(tmp_path, VF)
    fails()
    assert journal.keys(tmp_path, VF.network) == [VF.key]
    assert len(list(journal.files(tmp_path))) == 1


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        *((command, {}) for command in ("STATUS", "GC", "VERSION", "ADD")),
        ("CHECK", {DELEGATED: "1"}),
        ("DEL", {"CNI_CONTAINERID": "other"}),
    ],
)
def test_nothing_is_kept(tmp_path: Path, command: str, environ: dict[str, str]) -> None:
    """There is no attachment, or the error is another command's, such as an ADD's of what is attached."""
    save(tmp_path, VF)
    fails(command, **environ)
    assert kept(tmp_path) == []


def test_another_command_is_at_it(tmp_path: Path) -> None:
    """The caller has gone, and both commands would write the same temporary file."""
    save(tmp_path, VF)
    with journal.lock(tmp_path, VF.network, VF.key):
        pass
    with held(the_lock(tmp_path)):
        fails()
        assert kept(tmp_path) == []
    fails()
    assert kept(tmp_path) == ["0123456789abcdef:hpn0.error"]


def test_nobody_waits_any_more(tmp_path: Path) -> None:
    save(tmp_path, VF)
    variables = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": VF.key.container_id, "CNI_IFNAME": VF.key.ifname}
    conf = json.dumps({"name": VF.network}).encode()
    for is_gone in (True, False):
        request = Request(variables, conf, abandoned=lambda is_gone=is_gone: is_gone)
        last_error.note(request, failed(NEWEST, CheckFailed("hpn0 is down")))
        assert bool(kept(tmp_path)) is not is_gone


def test_it_is_small_and_for_root(tmp_path: Path) -> None:
    save(tmp_path, VF)
    fails(error=CheckFailed("x" * 1_000_000))
    (file,) = (tmp_path / "attachments").rglob("*.error")
    assert (file.stat().st_size < 10_000, file.stat().st_mode & 0o777) == (True, 0o600)


@pytest.mark.parametrize("stdin", [b"", b"[]", b'{"name": 7}', b'{"name": "rail0", "ipam": 7}', b"\xff", b"[" * 9999])
def test_a_broken_configuration(stdin: bytes) -> None:
    request = Request({"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "hpn0"}, stdin)
    last_error.note(request, failed(NEWEST, CheckFailed("no")))


def test_a_directory_that_others_can_write(tmp_path: Path) -> None:
    """They could have redirected the path."""
    save(tmp_path, VF)
    (tmp_path / "attachments").chmod(0o777)
    fails()
    assert kept(tmp_path) == []


@pytest.mark.parametrize("what", ["link", "directory", "fifo", "garbage", "another body"])
def test_something_else_in_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    save(tmp_path, VF)
    file, victim = tmp_path / "attachments/rail0/0123456789abcdef:hpn0.error", tmp_path / "victim"
    victim.write_text("precious")
    match what:
        case "link":
            file.symlink_to(victim)
        case "directory":
            file.mkdir()
        case "fifo":
            os.mkfifo(file)
        case "garbage":
            file.write_text("{")
        case _:
            durable.write(file, {"time": 7})
    assert "lastError" not in shown(tmp_path, capsys, "--json")
    fails()
    assert ("lastError" in shown(tmp_path, capsys, "--json")) == (what != "directory")
    assert victim.read_text() == "precious"


def test_what_is_shown_obeys_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, replace(VF, pod="a\x1b[2J\nb"))
    fails(error=CheckFailed("\x1b[2J\nline"))
    lines: Any = shown(tmp_path, capsys).splitlines()
    assert all(line.isprintable() for line in lines)
