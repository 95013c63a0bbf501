"""hpn list and the states of attachments, on records that need a NIC."""

import io
import json
import os
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path

import pytest
from attack.user import nobody
from unit.base.state.test_claims import CLAIM
from unit.ctl.test_inspect import VF, save

from base.protocol.spec import Key
from base.state import claims, durable, journal
from base.state.record import LOST, Record
from ctl.main import main

HALF = replace(VF, key=Key("half", "hpn0"), complete=False, result={}, gids=[])


def listed(state: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    assert main(["hpn", "list", "--json", "--state-dir", str(state)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["stateDirs"] == [str(state)]
    return list(document["attachments"])


def state_of(record: Record, state: Path, capsys: pytest.CaptureFixture[str]) -> str:
    save(state, record)
    (only,) = listed(state, capsys)
    return str(only["state"])


def test_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, replace(VF, pod="default/worker-0"))
    assert main(["hpn", "list", "--state-dir", str(tmp_path)]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["POD", "IFNAME", "NETWORK", "DEVICE", "ADDRESS", "RDMA", "STATE"]
    assert [cell for cell in line.split("  ") if cell] == [
        "default/worker-0", "hpn0", "rail0", "0000:3b:10.1 VF 1 of rail0", "10.56.0.2/24, fd00:56::2/64",
        "mlx5_4, mlx5_5", "attached",
    ]  # fmt: skip


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, VF)
    assert listed(tmp_path, capsys) == [
        {
            "pod": "",
            "network": "rail0",
            "containerID": "0123456789abcdef",
            "ifname": "hpn0",
            "kind": "sriov",
            "device": "0000:3b:10.1",
            "addresses": ["10.56.0.2/24", "fd00:56::2/64"],
            "rdma": ["mlx5_4", "mlx5_5"],
            "state": "attached",
            "why": "ADD has ended, and nothing says that the pod is dead",
        }
    ]


def test_the_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An attachment of a claim has its name, or its UID when the claim is given up; another one has neither."""
    monkeypatch.setattr(claims, "FOLDER", f"{tmp_path}/claims")
    claims.save(CLAIM)
    given_up = CLAIM.uid.replace("0d", "9d")
    save(tmp_path, VF)
    for container, uid in (("a" * 16, CLAIM.uid), ("b" * 16, given_up)):
        save(tmp_path, replace(VF, key=Key(container, "net1"), claim=f"{uid}/1"))
    assert main(["hpn", "list", "--state-dir", str(tmp_path)]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[2:5] == ["NETWORK", "CLAIM", "DEVICE"]
    assert [line.split()[3] for line in lines] == ["-", "default/rails", given_up]
    whole = {"uid": CLAIM.uid, "name": "default/rails", "request": "rails/first", "device": "0000-3b-00-2"}
    assert [one.get("claim") for one in listed(tmp_path, capsys)] == [None, whole, {"uid": given_up}]
    for word in ("rails", "default/rails", CLAIM.uid):
        assert main(["hpn", "inspect", "--state-dir", str(tmp_path), word]) == 0
        assert "net1 of container aaaaaaaaaaaa, network rail0" in capsys.readouterr().out


def test_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hpn", "list", "--state-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"nothing is attached (searched {tmp_path})\n"


def test_dead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert state_of(replace(VF, boot="older"), tmp_path, capsys) == "dead"


def test_an_add_that_runs_and_one_that_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lock distinguishes a running ADD from an interrupted one."""
    save(tmp_path, HALF)
    with journal.lock(tmp_path, HALF.network, HALF.key):
        (running,) = listed(tmp_path, capsys)
    (ended,) = listed(tmp_path, capsys)
    assert running["state"] == "attaching"
    assert f"process {os.getpid()} " in str(running["why"])
    assert (ended["state"], ended["why"]) == ("half-attached", "its ADD did not end, and nothing works on it")


def test_an_undo_that_did_not_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert state_of(replace(VF, refusals=3, trouble="no such pool"), tmp_path, capsys) == "half-detached"
    assert "no such pool" in str(listed(tmp_path, capsys)[0]["why"])
    save(tmp_path, VF)
    with journal.lock(tmp_path, VF.network, VF.key) as entry:
        entry.note_found()
        assert listed(tmp_path, capsys)[0]["state"] == "detaching"
    assert listed(tmp_path, capsys)[0]["state"] == "half-detached"


def test_an_add_that_ends_between_two_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ADD ends after the record is read and before the lock is checked: its state is attached."""
    save(tmp_path, HALF)
    looked = journal.at_work

    def ends(state_dir: Path, network: str, key: Key) -> str:
        save(tmp_path, replace(HALF, complete=True))
        return looked(state_dir, network, key)

    monkeypatch.setattr(journal, "at_work", ends)
    assert listed(tmp_path, capsys)[0]["state"] == "attached"


def test_a_record_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A partial record, as from a full disk, is listed; its file name identifies the attachment."""
    save(tmp_path, VF, replace(HALF, kind=LOST, trouble="kept in quarantine"))
    file = tmp_path / "attachments/rail0/0123456789abcdef:hpn0.json"
    file.write_bytes(file.read_bytes()[:100])
    first, second = listed(tmp_path, capsys)
    assert (first["containerID"], first["ifname"], first["state"]) == ("0123456789abcdef", "hpn0", "unreadable")
    assert str(file) in str(first["why"])
    assert (second["state"], second["why"]) == (
        "unreadable",
        "kept in quarantine; delete the pod: its DEL undoes what it finds",
    )
    assert main(["hpn", "list", "--state-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("unreadable") == 2


def test_what_its_ipam_would_not_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with journal.lock(tmp_path, VF.network, VF.key) as entry:
        entry.save(VF)
        entry.keep_for_people(replace(VF, refusals=10, trouble="no such pool"))
    (only,) = listed(tmp_path, capsys)
    assert (only["state"], "no such pool" in str(only["why"])) == ("refused", True)


def test_below_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Below the table are an attachment's fault and last error; one in order has only the error."""
    save(tmp_path, VF, HALF)
    error = {"time": "2026-01-02T03:04:05.678+00:00", "command": "CHECK", "code": 107, "msg": "a route is lost"}
    durable.write(journal.Entry(tmp_path, "rail0", VF.key).error_file, error)
    assert main(["hpn", "list", "--state-dir", str(tmp_path)]) == 0
    *table, first, second = capsys.readouterr().out.splitlines()
    assert len(table) == 3
    assert {first, second} == {
        "hpn0 of container half, network rail0: its ADD did not end, and nothing works on it",
        "hpn0 of container 0123456789ab, network rail0: CHECK failed, 2026-01-02 03:04:05Z, code 107: a route is lost",
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_without_permission(tmp_path: Path) -> None:
    save(tmp_path, VF)

    def lists() -> tuple[int, str]:
        with redirect_stderr(io.StringIO()) as said:
            return main(["hpn", "list", "--state-dir", str(tmp_path)]), said.getvalue()

    with nobody(lists) as (status, said):
        assert (status, said) == (1, f"hpn list: reading {tmp_path}: Permission denied; it is for root\n")
