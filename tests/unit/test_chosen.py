"""The words by which list, inspect, check, repair and hints are asked for an attachment."""

import json
from pathlib import Path

import pytest
from unit.test_inspect import VF, save
from unit.test_list import HALF

from ctl.main import main

COMMANDS = pytest.mark.parametrize("command", ["inspect", "check", "repair"])


@COMMANDS
def test_a_word_that_names_nothing_beside_one_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    save(tmp_path, VF, HALF)
    words = ["hpn", command, "--state-dir", str(tmp_path), "half", "typo", "fault"]
    dry = ["--dry-run"] if command == "repair" else []
    assert main([*words, *dry]) == 1
    *rest, last = capsys.readouterr().out.splitlines()
    assert last == f"nothing is attached that is called typo or fault, says {tmp_path}"
    assert any("half" in line for line in rest)
    assert main([*words, *dry, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["unknown"] == ["typo", "fault"]
    assert [a["containerID"] for a in document["steps" if dry else "attachments"]] == ["half"]


@COMMANDS
def test_only_words_that_name_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    save(tmp_path, VF)
    assert main(["hpn", command, "--state-dir", str(tmp_path), "typo"]) == 1
    assert capsys.readouterr().out == f"nothing is attached that is called typo, says {tmp_path}\n"


@pytest.mark.parametrize("command", ["inspect", "check", "repair", "hints"])
def test_an_empty_word(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """As of a variable that is not set.  VF has no pod's name."""
    save(tmp_path, VF)
    with pytest.raises(SystemExit) as ended:
        main(["hpn", command, "--state-dir", str(tmp_path), ""])
    assert ended.value.code == 2
    assert "an empty word names nothing" in capsys.readouterr().err
