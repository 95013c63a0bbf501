"""The words by which list, inspect, check, repair and hints select attachments."""

import json
from pathlib import Path

import pytest
from unit.ctl.test_inspect import VF, save
from unit.ctl.test_list import HALF

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
    assert last == f"no attachment is called typo or fault (searched {tmp_path})"
    assert any("half" in line for line in rest)
    assert main([*words, *dry, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["unknown"] == ["typo", "fault"]
    assert [a["containerID"] for a in document["steps" if dry else "attachments"]] == ["half"]


@COMMANDS
def test_only_words_that_name_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    save(tmp_path, VF)
    assert main(["hpn", command, "--state-dir", str(tmp_path), "typo"]) == 1
    assert capsys.readouterr().out == f"no attachment is called typo (searched {tmp_path})\n"


@pytest.mark.parametrize("command", ["inspect", "check", "repair", "hints"])
def test_an_empty_word(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """An empty word, as from an unset variable, selects nothing; the record VF has no pod name."""
    save(tmp_path, VF)
    with pytest.raises(SystemExit) as ended:
        main(["hpn", command, "--state-dir", str(tmp_path), ""])
    assert ended.value.code == 2
    assert "an empty word names nothing" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["list"], ["inspect"], ["check"], ["repair"], ["gc"], ["hints", "x"], ["devices"]])
def test_a_directory_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """A misspelt directory is an error.  Only the default may be missing, before the first ADD."""
    no_leases = ["--data-dir", f"{tmp_path}"] if words[0] in ("gc", "repair") else []
    argv = ["hpn", *words, "--state-dir", f"{tmp_path}/misspelt", *no_leases]
    assert main(argv) == 1
    said = capsys.readouterr()
    why = "No such file or directory; give a directory that ADD used"
    assert (said.out, said.err) == ("", f"hpn {words[0]}: --state-dir {tmp_path}/misspelt: {why}\n")
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}/misspelt")
    assert main(argv) == (1 if words[0] == "hints" else 0)
    assert why not in capsys.readouterr().err


@pytest.mark.parametrize("words", [["gc"], ["repair"], ["repair", "--dry-run"]])
def test_leases_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """Without the directory of leases nothing is undone."""
    save(tmp_path, HALF)
    argv = ["hpn", *words, "--state-dir", f"{tmp_path}", "--data-dir", f"{tmp_path}/misspelt"]
    assert main(argv) == 1
    said = capsys.readouterr()
    why = "No such file or directory; give a configuration's dataDir"
    assert (said.out, said.err) == ("", f"hpn {words[0]}: --data-dir {tmp_path}/misspelt: {why}\n")
    assert (tmp_path / "attachments/rail0/half:hpn0.json").exists()
