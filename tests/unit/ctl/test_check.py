"""hpn check on records that need a NIC; tests/netns has records of real interfaces."""

import base64
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
from unit.ctl.test_list import HALF

from base.protocol.spec import Key
from base.state import journal, libcni_cache
from ctl.main import main

OTHER = replace(
    HALF,
    network="other",
    key=Key("other", "net1"),
    netns="/run/netns/other",
    link={"device": "0000:5e:10.1", "pf": "0000:5e:00.0", "number": 1, "rdma_devs": ["mlx5_9"]},
)
RESULT = {"cniVersion": "1.0.0", "interfaces": [{"name": "hpn0"}]}


def checked(state: Path, capsys: pytest.CaptureFixture[str], status: int, *what: str) -> list[dict[str, Any]]:
    assert main(["hpn", "check", "--json", "--state-dir", str(state), *what]) == status
    return list(json.loads(capsys.readouterr().out)["attachments"])


def test_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path, capsys, 0) == []
    assert checked(tmp_path, capsys, 1, "default/worker-0") == []
    assert main(["hpn", "check", "--state-dir", str(tmp_path), "10.56.0.2"]) == 1
    assert capsys.readouterr().out == f"no attachment is called 10.56.0.2 (searched {tmp_path})\n"


def test_a_pod_that_cannot_be_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, VF)
    (only,) = checked(tmp_path, capsys, 1)
    assert (only["state"], only["code"], only["wrong"]) == ("wrong", 107, True)
    assert "/run/netns/nobody is gone, or cannot be seen" in only["why"]
    assert main(["hpn", "check", "--state-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["0123456789ab", "hpn0", "rail0", "wrong"]


def test_what_cannot_be_checked_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, replace(VF, boot="older"), HALF)
    found = {a["containerID"]: (a["state"], a["wrong"]) for a in checked(tmp_path, capsys, 1)}
    assert found == {"0123456789abcdef": ("dead", True), "half": ("half-attached", True)}


def test_a_running_add_is_not_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, HALF)
    with journal.lock(tmp_path, HALF.network, HALF.key):
        (only,) = checked(tmp_path, capsys, 0)
    assert (only["state"], only["wrong"]) == ("attaching", False)


def test_half_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A partial record is unreadable, and its file stays."""
    save(tmp_path, VF)
    file = tmp_path / "attachments/rail0/0123456789abcdef:hpn0.json"
    half = file.read_bytes()[:100]
    file.write_bytes(half)
    (only,) = checked(tmp_path, capsys, 1)
    assert (only["state"], file.read_bytes()) == ("unreadable", half)


@pytest.mark.parametrize(
    "what",
    [
        "worker-0", "default/worker-0", "0123456789abcdef", "0123456789ab", "0123456789abcdef:hpn0", "hpn0", "rail0",
        "0000:3b:10.1", "0000:3B:10.1", "0000:3b:00.0", "10.56.0.2", "10.56.0.2/24", "FD00:56::2", "02:00:00:00:00:01",
        "mlx5_5", "/run/netns/nobody",
    ],
)  # fmt: skip
def test_what_a_person_may_call_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    save(tmp_path, replace(VF, pod="default/worker-0"), OTHER)
    assert [a["containerID"] for a in checked(tmp_path, capsys, 1, what)] == ["0123456789abcdef"]


@pytest.mark.parametrize("what", ["worker", "0123456789a", "0000:3b:10", "10.56.0", "-"])
def test_a_part_of_a_name_is_not_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    save(tmp_path, replace(VF, pod="default/worker-0"))
    assert checked(tmp_path, capsys, 1, what) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_without_permission(tmp_path: Path) -> None:
    save(tmp_path, VF)

    def checks() -> tuple[int, str]:
        with redirect_stderr(io.StringIO()) as said:
            return main(["hpn", "check", "--state-dir", str(tmp_path)]), said.getvalue()

    with nobody(checks) as (status, said):
        assert (status, said) == (1, f"hpn check: reading {tmp_path}: Permission denied; it is for root\n")


@pytest.mark.parametrize(
    ("cached", "found"),
    [
        (
            {"kind": "cniCacheV1", "containerId": "x", "config": base64.b64encode(b"{}").decode(), "result": RESULT},
            True,
        ),
        ({"cniVersion": "0.3.1", "ips": []}, False),  # libcni 0.6
        ({"kind": "cniCacheV1", "result": "x"}, False),
        ([], False),
    ],
)
def test_libcnis_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: Any, found: bool) -> None:
    monkeypatch.setattr(libcni_cache, "RESULTS", (str(tmp_path / "no"), str(tmp_path)))
    assert libcni_cache.result("rail0", VF.key) is None
    file = tmp_path / "rail0-0123456789abcdef-hpn0"
    file.write_text(json.dumps(cached))
    assert libcni_cache.result("rail0", VF.key) == (RESULT if found else None)
    file.write_bytes(file.read_bytes()[:-1])
    assert libcni_cache.result("rail0", VF.key) is None
