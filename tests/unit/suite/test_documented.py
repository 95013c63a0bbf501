"""The lists in the pages match the program."""

import re
from pathlib import Path

import pytest

from cni import attachment_state
from ctl.main import COMMANDS, main

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def first_column(page: str, heading: str) -> set[str]:
    """Return the words in the first cells of the first table below a heading."""
    section = (DOCS / page).read_text().partition(f"## {heading}\n")[2]
    rows = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert rows
    return {word for row in rows[0].splitlines()[2:] for word in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_commands() -> None:
    listed = first_column("user/install.md", "What the program does by name")
    ours = {f"hpn {name}" for name in (*COMMANDS, "agent", "node", "version", "help")}
    assert {name for name in listed if name.startswith("hpn ")} == ours


def test_states_of_attachments() -> None:
    constants = {value for name, value in vars(attachment_state).items() if name.isupper() and isinstance(value, str)}
    words = {value for value in constants if re.fullmatch(r"[a-z-]+", value)}  # excludes remedies
    assert first_column("user/commands.md", "hpn list") == words - {attachment_state.LOST}


def test_tools_of_the_tests() -> None:
    """docs/develop/testing.md has a row for each program and module."""
    tools = {path.name for path in (ROOT / "tests" / "harness").glob("*.py")}
    assert first_column("develop/testing.md", "The tools") == tools


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_ends_with_the_exit_statuses(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        main(["hpn", command, "--help"])
    asked = capsys.readouterr().out
    assert e.value.code == 0
    assert asked.count("Exit status: ") == 1
    assert re.fullmatch(r"Exit status: 0; 1 if .*; 2 for wrong options\.", asked.splitlines()[-1])
    assert "example" in asked


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_of_a_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """hpn help COMMAND prints the output of hpn COMMAND --help."""
    for words in ([command, "--help"], ["help", command]):
        with pytest.raises(SystemExit) as e:
            main(["hpn", *words])
        assert e.value.code == 0
    said = capsys.readouterr().out
    assert said[: len(said) // 2] == said[len(said) // 2 :]
    assert said.startswith(f"usage: hpn {command} ")


@pytest.mark.parametrize("command", ["inspect", "check", "repair"])
def test_help_has_all_that_names_an_attachment(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["hpn", command, "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "PCI address, master, RDMA device, network, MAC, address, or the path of the namespace" in words
