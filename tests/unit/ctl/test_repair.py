"""hpn repair on records; tests/netns has real interfaces."""

import io
import json
import os
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attack.user import nobody
from unit.ctl.test_inspect import VF, save

from base.protocol.spec import Key
from base.state import durable, journal
from base.state.record import LOST, Record
from cni import repair
from cni.attachments import find
from ctl.main import main

PLAN = {
    "kind": "macvlan", "master": "rail0", "parent": 1, "mac": "", "mtu": 0, "data": "", "in_container": False,
    "rdma_devs": [], "pci": "",
}  # fmt: skip
HALF = replace(
    VF, key=Key("half", "hpn0"), kind="macvlan", link=PLAN, config={"name": "rail0"}, complete=False, result={}, gids=[]
)
REFUSAL = '{"cniVersion":"1.1.0","code":133,"msg":"no such pool"}'


def here(state: Path) -> list[str]:
    """Return options for this state and no leases."""
    (state / "none").mkdir(exist_ok=True)
    return ["--state-dir", str(state), "--data-dir", str(state / "none")]


def repaired(state: Path, capsys: pytest.CaptureFixture[str], status: int, *words: str) -> list[dict[str, Any]]:
    folders = here(state)
    assert main(["hpn", "repair", "--json", *folders, *words]) == status
    document = json.loads(capsys.readouterr().out)
    assert document["stateDirs"] == [str(state)]
    assert document["dryRun"] is ("--dry-run" in words)
    return list(document["steps"])


def files(state: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in state.rglob("*") if p.is_file() and "locks" not in p.parts}


def script(folder: Path, *, refuses: bool, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Write an IPAM program, and the record of an attachment with its address."""
    folder.mkdir(exist_ok=True)
    body = f"echo '{REFUSAL}'; exit 1" if refuses else f"echo $CNI_COMMAND $CNI_CONTAINERID >>{folder}/asked"
    (folder / "script").write_text(f"#!/bin/sh\ncat >/dev/null; {body}\n")
    (folder / "script").chmod(0o755)
    monkeypatch.setenv("CNI_PATH", str(folder))
    return replace(HALF, complete=True, config={"name": "rail0", "ipam": {"type": "script"}}, trouble="no such pool")


def test_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert repaired(tmp_path, capsys, 0) == []
    words = here(tmp_path)
    assert main(["hpn", "repair", *words]) == 0
    assert capsys.readouterr().out == "no attachment is incomplete, and dead pods left nothing\n"
    assert main(["hpn", "repair", *words, "default/worker-0"]) == 1
    assert capsys.readouterr().out.startswith("no attachment is called default/worker-0")


def test_an_add_that_did_not_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, HALF, replace(VF, pod="default/worker-0"))
    before = files(tmp_path)
    (step,) = repaired(tmp_path, capsys, 0, "--dry-run")
    assert (step["containerID"], step["state"], step["action"], step["done"]) == (
        "half",
        "half-attached",
        "undo",
        False,
    )
    assert files(tmp_path) == before
    assert repaired(tmp_path, capsys, 0, "default/worker-0") == []
    assert files(tmp_path) == before
    (step,) = repaired(tmp_path, capsys, 0, "half")
    assert (step["done"], step["problem"]) == (True, "")
    assert list(files(tmp_path)) == [f"{tmp_path}/attachments/rail0/0123456789abcdef:hpn0.json"]


def test_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, HALF)
    words = here(tmp_path)
    why = "hpn0 of container half, network rail0: its ADD did not end, and nothing works on it\n"
    for more, said in ((["--dry-run"], f"would undo {why}"), ([], f"undid {why}")):
        assert main(["hpn", "repair", *words, *more]) == 0
        assert capsys.readouterr().out == said


def test_an_add_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, HALF)
    with journal.lock(tmp_path, HALF.network, HALF.key):
        before = files(tmp_path)
        assert repaired(tmp_path, capsys, 0) == []
        assert files(tmp_path) == before


@pytest.mark.parametrize(
    "now", [replace(HALF, complete=True), replace(HALF, time="later"), None], ids=["complete", "anew", "gone"]
)
def test_another_command_came_first(tmp_path: Path, now: Record | None) -> None:
    """If another command changes the record before repair has the lock, repair does nothing."""
    save(tmp_path, HALF)
    (task,) = repair.tasks(find(tmp_path))
    with journal.lock(tmp_path, HALF.network, HALF.key) as entry:
        if now:
            entry.save(now)
        else:
            entry.forget()
    before = files(tmp_path)
    assert not repair.mend(task, {}, [])
    assert files(tmp_path) == before


def test_its_lock_is_taken_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, HALF)
    monkeypatch.setattr(repair, "_TIMEOUT", 0)
    (task,) = repair.tasks(find(tmp_path))
    with journal.lock(tmp_path, HALF.network, HALF.key), pytest.raises(repair.TryAgain, match="held by process"):
        repair.mend(task, {}, [])


def test_a_complete_one_of_a_living_pod(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, VF, replace(HALF, complete=True))
    before = files(tmp_path)
    assert repaired(tmp_path, capsys, 0) == []
    assert repaired(tmp_path, capsys, 0, "hpn0") == []
    assert files(tmp_path) == before


def test_what_the_ipam_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interface is gone, and each repair asks the IPAM plugin again."""
    state, folder = tmp_path / "state", tmp_path / "bin"
    record = script(folder, refuses=True, monkeypatch=monkeypatch)
    with journal.lock(state, record.network, record.key) as entry:
        entry.save(record)
        file = entry.keep_for_people(replace(record, refusals=10))
    for _ in range(2):
        (step,) = repaired(state, capsys, 1)
        assert (step["state"], step["done"], "no such pool" in step["problem"]) == ("refused", False, True)
    script(folder, refuses=False, monkeypatch=monkeypatch)
    save(state, replace(record, trouble=""))
    (step,) = repaired(state, capsys, 1)
    assert "attached again" in step["problem"]
    assert not (folder / "asked").exists()
    (state / "attachments/rail0/half:hpn0.json").unlink()
    (step,) = repaired(state, capsys, 0)
    assert step["done"]
    assert (folder / "asked").read_text() == "DEL half\n"
    assert not file.exists()
    assert repaired(state, capsys, 0) == []


def test_a_del_that_the_ipam_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interface is gone and the record stays; repair does not count a refusal."""
    state, folder = tmp_path / "state", tmp_path / "bin"
    save(state, replace(script(folder, refuses=True, monkeypatch=monkeypatch), refusals=3))
    before = files(state)
    (step,) = repaired(state, capsys, 1)
    assert (step["state"], "no such pool" in step["problem"]) == ("half-detached", True)
    assert files(state) == before
    script(folder, refuses=False, monkeypatch=monkeypatch)
    (step,) = repaired(state, capsys, 0)
    assert (step["done"], files(state)) == (True, {})


def test_the_beginning_of_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, VF)
    folder = tmp_path / "attachments/rail0"
    (folder / "half:hpn0.json.tmp").write_text('{"schema":')
    (folder / "0123456789abcdef:hpn0.json.tmp").write_text("of a second write")
    (folder / "stranger").write_text("")
    with journal.lock(tmp_path, "rail0", Key("half", "hpn0")):
        assert repaired(tmp_path, capsys, 0) == []
    (step,) = repaired(tmp_path, capsys, 0)
    assert (step["containerID"], step["state"], step["done"]) == ("half", "leftover", True)
    assert {path.name for path in folder.iterdir()} == {
        "0123456789abcdef:hpn0.json", "0123456789abcdef:hpn0.json.tmp", "stranger",
    }  # fmt: skip


def test_half_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A partial record stays: its pod may live, and its DEL sets the record aside."""
    save(tmp_path, HALF, VF)
    file = tmp_path / "attachments/rail0/half:hpn0.json"
    file.write_bytes(file.read_bytes()[:100])
    before = files(tmp_path)
    (step,) = repaired(tmp_path, capsys, 1)
    assert (step["state"], step["done"], step["problem"]) == ("unreadable", False, "")
    assert files(tmp_path) == before
    assert main(["hpn", "repair", "--state-dir", str(tmp_path), "half"]) == 1
    assert capsys.readouterr().out.startswith(
        f"left alone hpn0 of container half, network rail0: {file} cannot be read"
    )


@pytest.mark.parametrize(("boot", "state"), [("older", "dead"), (VF.boot, "unreadable")])
def test_what_stands_in_for_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str], boot: str, state: str) -> None:
    """A substitute for a lost record is removed only after a reboot, because no change of its ADD survives that."""
    save(tmp_path, replace(HALF, kind=LOST, link={}, boot=boot, trouble="kept in quarantine"))
    (step,) = repaired(tmp_path, capsys, 0 if state == "dead" else 1)
    assert (step["state"], step["done"], step["problem"]) == (state, state == "dead", "")
    assert bool(files(tmp_path)) == (state == "unreadable")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_without_permission(tmp_path: Path) -> None:
    save(tmp_path, HALF)

    def repairs() -> tuple[int, str]:
        with redirect_stderr(io.StringIO()) as said:
            return main(["hpn", "repair", "--state-dir", str(tmp_path)]), said.getvalue()

    with nobody(repairs) as (status, said):
        assert (status, said) == (1, f"hpn repair: reading {tmp_path}: Permission denied; it is for root\n")


def test_a_record_of_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An intact record of an unknown kind stays."""
    save(tmp_path, replace(HALF, kind="wormhole"))
    (step,) = repaired(tmp_path, capsys, 1)
    assert "a newer version attached it" in step["problem"]
    assert durable.read(tmp_path / "attachments/rail0/half:hpn0.json")
