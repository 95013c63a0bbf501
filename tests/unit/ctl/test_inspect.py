"""hpn inspect on records that need a NIC."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from base.protocol.spec import Key
from base.state import journal
from base.state.pod import Identity
from base.state.record import LOST, Record
from ctl.main import main

GIDS = [
    {"address": "10.56.0.2", "device": device, "port": 1, "index": index, "type": kind}
    for device, index, kind in (("mlx5_4", 2, "IB/RoCE v1"), ("mlx5_4", 3, "RoCE v2"), ("mlx5_5", 7, "RoCE v2"))
]
VF = Record(
    network="rail0",
    key=Key("0123456789abcdef", "hpn0"),
    netns="/run/netns/nobody",
    identity=Identity(inode=1, cookie=1),  # without its observer's namespaces, so it cannot be proved gone
    kind="sriov",
    link={"device": "0000:3b:10.1", "pf": "0000:3b:00.0", "number": 1, "rdma_devs": ["mlx5_4", "mlx5_5"]},
    config={},
    time="2026-01-02T03:04:05.678+00:00",
    complete=True,
    result={
        "interfaces": [{"name": "hpn0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/nobody"}, {"name": "rail0"}],
        "ips": [{"address": "10.56.0.2/24", "interface": 0}, {"address": "fd00:56::2/64", "interface": 0}],
    },
    gids=GIDS,
)


def save(state: Path, *records: Record) -> None:
    for record in records:
        with journal.lock(state, record.network, record.key) as entry:
            entry.save(record)


def shown(state: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["hpn", "inspect", "--state-dir", str(state), *words]) == 0
    return capsys.readouterr().out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(
        tmp_path,
        VF,
        replace(VF, key=Key("1", "hpn0"), link={**VF.link, "pf": "", "number": -1, "rdma_devs": []}, gids=[]),
    )
    first, pf_only = json.loads(shown(tmp_path, capsys, "--json"))["attachments"]
    assert first == {
        "pod": "",
        "network": "rail0",
        "containerID": "0123456789abcdef",
        "ifname": "hpn0",
        "netns": "/run/netns/nobody",
        "alive": True,
        "complete": True,
        "since": "2026-01-02T03:04:05.678Z",
        "kind": "sriov",
        "mac": "02:00:00:00:00:01",
        "addresses": ["10.56.0.2/24", "fd00:56::2/64"],
        "rdma": {"devices": ["mlx5_4", "mlx5_5"], "gids": GIDS},
        "device": "0000:3b:10.1",
        "pf": "0000:3b:00.0",
        "pfName": "rail0",
        "vf": 1,
    }
    assert pf_only.keys() & {"pf", "pfName", "vf", "master"} == set()


def test_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each address and port has a line; the attachment's own columns are in the first."""
    save(tmp_path, VF)
    lines = shown(tmp_path, capsys).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["0123456789ab", "rail0", "hpn0", "sriov", "0000:3b:10.1", "VF", "1", "of", "rail0", "10.56.0.2/24", "mlx5_4/1",
         "3", "2", "alive", "2026-01-02", "03:04:05Z", "/run/netns/nobody"],
        ["10.56.0.2/24", "mlx5_5/1", "7", "-"],
        ["fd00:56::2/64", "mlx5_4,", "mlx5_5", "-", "-"],
    ]  # fmt: skip
    column = lines[0].index("ADDRESS")
    assert [line[column:].split()[0] for line in lines[1:]] == ["10.56.0.2/24", "10.56.0.2/24", "fd00:56::2/64"]


def test_an_older_boots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, replace(VF, boot="older", gids=[]))
    (only,) = json.loads(shown(tmp_path, capsys, "--json"))["attachments"]
    assert only["alive"] is False


def test_of_one_by_its_pci_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, VF, replace(VF, key=Key("1", "hpn0"), link={**VF.link, "device": "0000:3b:10.2"}))
    (only,) = json.loads(shown(tmp_path, capsys, "--json", "0000:3b:10.1"))["attachments"]
    assert only["containerID"] == "0123456789abcdef"
    assert (only["state"], "lastError" in only, only["kind"]) == ("attached", False, "sriov")
    assert only["now"] == {"where": "gone", "words": "gone: there is no device 0000:3b:10.1", "name": "", "netns": ""}
    lines = shown(tmp_path, capsys, "0000:3b:10.1").splitlines()
    assert lines[0] == "hpn0 of container 0123456789ab, network rail0"
    assert "  GID        mlx5_4/1 index 3, RoCE v2: 10.56.0.2" in lines
    assert "  PF         0000:3b:00.0 rail0" in lines


def test_nothing_of_that_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, VF)
    assert main(["hpn", "inspect", "--state-dir", str(tmp_path), "0000:3b:10.7"]) == 1
    assert capsys.readouterr().out == f"no attachment is called 0000:3b:10.7 (searched {tmp_path})\n"


def test_of_one_that_another_version_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, replace(VF, link={}), replace(VF, key=Key("1", "hpn0"), kind="wormhole"))
    for words in ([], ["hpn0"]):
        assert main(["hpn", "inspect", "--state-dir", str(tmp_path), *words]) == 0
        assert "Traceback" not in capsys.readouterr().err


def test_one_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output recommends no DEL for a file in refused/, because no DEL reads it."""
    for folder in ("attachments", "refused"):
        (tmp_path / folder / "rail0").mkdir(parents=True)
        (tmp_path / folder / "rail0/0123456789abcdef:hpn0.json").write_text("{")
    attached, refused = shown(tmp_path, capsys).splitlines()
    assert attached.endswith("/attachments/rail0/0123456789abcdef:hpn0.json cannot be read; delete the pod: "
                             "its DEL undoes what it finds")  # fmt: skip
    assert "/refused/rail0/" in refused
    assert "DEL" not in refused


def test_what_stands_in_for_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, replace(VF, kind=LOST, complete=False, link={}, result={}, gids=[], trouble="kept in quarantine"))
    _, row, trouble = shown(tmp_path, capsys).splitlines()
    assert "  unreadable  " in row
    assert trouble.endswith(": kept in quarantine; delete the pod: its DEL undoes what it finds")


def test_no_help_in_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["hpn", "inspect", "--nonsense"])
    assert ended.value.code == 2
    assert "--nonsense" in capsys.readouterr().err
