"""What hpn node logs on a topic, and whether that is a problem."""

import pytest

from node.log import Topics, log


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_what_was_said_is_not_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    topics = Topics()
    topics.report("offers", "a", "b")
    topics.report("offers", "b", "c")
    assert said(capsys) == ["hpn node: a", "hpn node: b", "hpn node: c"]
    topics.report("offers", "a")
    topics.report("others", "a")
    assert said(capsys) == ["hpn node: a", "hpn node: a"]


def test_a_problem_lasts_until_it_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    topics = Topics()
    topics.problem("socket a/b", "no room")
    topics.problem("socket a/c", "no room")
    topics.problem("files", "read-only")
    topics.report("offers", "fine")
    assert topics.problems == {"socket", "files"}
    topics.solved("socket a/b")
    topics.report("socket a/c", "serves")
    topics.solved("offers")
    assert topics.problems == {"files"}
    said(capsys)
    topics.problem("files", "read-only")  # the same sentence again
    topics.report("offers", "fine")
    assert said(capsys) == []
    topics.solved("files")
    topics.problem("files", "read-only")
    assert said(capsys) == ["hpn node: read-only"]


def test_what_is_forgotten_is_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    topics = Topics()
    for _ in range(2):
        topics.problem("configuration", "refused")
        topics.forget("configuration")
        assert topics.problems == set()
    assert said(capsys) == ["hpn node: refused"] * 2


def test_what_moves_a_cursor_is_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    log("a\x1b[2Jb\u2028\udcff\nc")
    assert said(capsys) == ["hpn node: a\\x1b[2Jb\\u2028\\udcff", "c"]
