"""Whole records with members as this version does not write them: each command has a word for them, and shows all
others."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.ctl.test_inspect import VF, save

from base.protocol.spec import Key
from cni.attachments import find
from ctl.main import main

GOOD = replace(VF, pod="default/good", key=Key("fedcba987654", "hpn0"))
ODD: list[dict[str, Any]] = [
    {"result": {"ips": ["10.56.0.2/24"]}},
    {"result": {"ips": [{"address": "nowhere"}]}},
    {"result": []},
    {"link": []},
    {"link": {**VF.link, "rdma_devs": 4}},
    {"link": {**VF.link, "device": ["0000:3b:10.1"]}},
    {"link": {**VF.link, "software": {"kind": "veth"}}},
    {"link": {**VF.link, "software": "veth"}},
    {"link": {**VF.link, "index": "4"}},
    {"time": 4},
    {"time": "2026-01-02T03:04:05"},
    {"gids": [{"address": "10.56.0.2"}]},
    {"pod": 4},
    {"netns": None},
    {"config": None},
    {"rules": [4]},
    {"refusals": "4"},
]


def told(state: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main(["hpn", words[0], "--json", "--state-dir", str(state), *words[1:]])
    said = capsys.readouterr()
    assert said.err == ""
    document: dict[str, Any] = json.loads(said.out)
    return document


@pytest.mark.parametrize("fields", ODD)
def test_one_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any]
) -> None:
    save(tmp_path, GOOD, replace(VF, **fields))
    path = str(tmp_path / "attachments/rail0/0123456789abcdef:hpn0.json")
    states = {"fedcba987654": "attached", "0123456789abcdef": "unreadable"}
    assert {a["containerID"]: a["state"] for a in told(tmp_path, capsys, "list")["attachments"]} == states
    inspected = told(tmp_path, capsys, "inspect")
    assert ([a["containerID"] for a in inspected["attachments"]], inspected["unreadable"]) == (["fedcba987654"], [path])
    assert {a["containerID"]: a["state"] for a in told(tmp_path, capsys, "inspect", "hpn0")["attachments"]} == states
    checked = {a["containerID"]: a["state"] for a in told(tmp_path, capsys, "check")["attachments"]}
    assert checked["0123456789abcdef"] == "unreadable"
    assert told(tmp_path, capsys, "hints", "good")["pod"] == "default/good"


def test_what_we_write_is_of_our_shape(tmp_path: Path) -> None:
    software = {"kind": "veth", "at_home": 4, "in_pod": 5}
    save(tmp_path, GOOD, replace(VF, link={"software": software, "rdma_devs": []}, result={}, gids=[]))
    assert [one.record is None for one in find(tmp_path)] == [False, False]
