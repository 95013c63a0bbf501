"""Output and errors of the operator's commands (ctl/main.py)."""

import io
import os
import sys
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path

import pytest
from attack.user import nobody
from unit.ctl.test_inspect import VF, save

from base.protocol.errors import BadEnvironment, CniError, IoFailure
from base.protocol.spec import Key
from ctl.main import main
from ctl.top import command as top

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def test_names_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each byte that is not valid UTF-8 appears as an escape."""
    save(tmp_path, replace(VF, boot="an older one", pod="default/\udcff"))
    assert main(["hpn", "gc", "--dry-run", "--state-dir", f"{tmp_path}", "--data-dir", f"{tmp_path}"]) == 0
    assert "would undo hpn0 of default/\\udcff," in capsys.readouterr().out


def test_names_that_a_terminal_would_obey(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where hpn uninstall finds the units; other tests put other directories first.
    monkeypatch.setattr(sys, "path", [f"{Path(__file__).parents[3]}", *sys.path])
    evil, shown = "default/\x1b[31m", "default/\\x1b[31m"
    save(tmp_path / "run/hpn", replace(VF, pod=evil), replace(VF, key=Key("d", "hpn0"), boot="an older one", pod=evil))
    for words in (
        ["gc", "--dry-run", "--state-dir", f"{tmp_path}/run/hpn", "--data-dir", f"{tmp_path}"],
        ["gc", "--state-dir", f"{tmp_path}/run/hpn", "--data-dir", f"{tmp_path}"],
        ["uninstall", "--check", "--root", f"{tmp_path}"], ["uninstall", "--root", f"{tmp_path}"],
    ):  # fmt: skip
        main(["hpn", *words])
        said = "".join(capsys.readouterr())
        assert shown in said, words
        assert "\x1b" not in said, words


def fails_with(error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the message for an error that a command raises."""

    def answer(_words: object) -> tuple[str, int]:
        raise error

    monkeypatch.setattr("ctl.repair.answer_gc", answer)
    assert main(["hpn", "gc"]) == 1
    out, err = capsys.readouterr()
    assert not out
    return err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CniError("no \x1b[31m here", "of \udcff"), "hpn gc: no \\x1b[31m here (of \\udcff)\n"),
        (IoFailure("bad:\n  line 1\n  line 2"), "hpn gc: bad:\n  line 1\n  line 2\n"),
        (PermissionError(13, "Permission denied", "/x/\x1b"),
         "hpn gc: /x/\\x1b: Permission denied; run it as root\n"),
        (PermissionError(1, "Operation not permitted"), "hpn gc: Operation not permitted; run it as root\n"),
        (NotADirectoryError(20, "Not a directory", b"/x"), "hpn gc: /x: Not a directory\n"),
        (OSError("timed out"), "hpn gc: timed out\n"),
    ],
)  # fmt: skip
def test_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, said: str
) -> None:
    """The message is one sentence without a traceback or control characters."""
    assert fails_with(error, monkeypatch, capsys) == said


@pytest.mark.parametrize("command", ["list", "inspect", "check", "repair"])
def test_a_state_directory_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """The message does not recommend root, because root gets the same error."""
    (tmp_path / "attachments").touch()
    assert main(["hpn", command, "--state-dir", f"{tmp_path}"]) == 1
    assert capsys.readouterr().err == f"hpn {command}: reading {tmp_path}: Not a directory\n"


@ROOT_ONLY
def test_top_says_itself_why_pods_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hpn top and the metrics page read the same data and have separate messages."""
    save(tmp_path, replace(VF, netns="/proc/self/ns/net"))  # user nobody cannot enter it
    (tmp_path / "sys/bus").mkdir(parents=True)
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPN_STATE_DIR", ".")

    def said() -> str:
        with pytest.raises(BadEnvironment) as e:
            top.answer(["--count", "1"], Path("sys"))
        return e.value.msg

    with nobody(said) as words:
        assert words.endswith("because their namespaces may not be entered; run it as root on the host")
        assert "metrics" not in words


@ROOT_ONLY
def test_gc_without_permission(tmp_path: Path) -> None:
    save(tmp_path, VF)

    def gc() -> tuple[int, str]:
        with redirect_stderr(io.StringIO()) as said:
            return main(["hpn", "gc", "--state-dir", f"{tmp_path}"]), said.getvalue()

    with nobody(gc) as (status, said):
        assert (status, said) == (1, f"hpn gc: {tmp_path}/attachments: Permission denied; run it as root\n")


@pytest.mark.parametrize("word", ["version", "--version"])
def test_the_licences_are_the_programs(capsys: pytest.CaptureFixture[str], word: str) -> None:
    """tests/system/test_supply.py reads them; the sources have one of their own."""
    assert main(["hpn", word, "--licenses"]) == 1
    assert "this program runs from its sources" in capsys.readouterr().err
