"""What the pages list is what the program has."""

import re
from pathlib import Path

from cni import standing
from ctl.main import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"


def first_column(page: str, heading: str) -> set[str]:
    """The words in the first cells of the first table below a heading."""
    section = (DOCS / page).read_text().partition(f"## {heading}\n")[2]
    rows = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert rows
    return {word for row in rows[0].splitlines()[2:] for word in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_commands() -> None:
    listed = first_column("install.md", "What the program does by name")
    ours = {f"hpn {name}" for name in (*COMMANDS, "agent", "node", "version", "help")}
    assert {name for name in listed if name.startswith("hpn ")} == ours


def test_states_of_attachments() -> None:
    words = {value for name, value in vars(standing).items() if name.isupper() and isinstance(value, str)}
    assert first_column("inspect.md", "hpn list") == words - {standing.LOST}
