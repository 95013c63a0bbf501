"""prose.py turns a Python source into a page, and maps the page's lines to the source.  Vale checks the page."""

import re
import subprocess
from pathlib import Path

import prose
import pytest
import yaml
from conftest import require

# An example for each pattern of packaging/vale/Hpn/Words.yml.
REFUSED = (
    "The pool, the ranges of which overlap, is full.",
    "The link may be down, in which case ADD waits.",
    "This is the key by which it is found.",
    "The device is to be had.",
    "The record tells the node's name.",
    "The kernel was told about it.",
    "The node whose is the block sends a heartbeat.",
    "An absent link is no error.",
    "It was\nno error.",
    "The plugin takes it for a bridge.",
    "Another round puts it right.",
    "The page names a number of chance.",
    "The plugin makes links of its own making.",
    "List what there is.",
    "It serves whoever asks.",
    "Then nobody holds the lock.",
    "Somebody holds the lock.",
    "Any file is readable by everybody.",
    "The file says which device it is.",
    "The plugin looks whether it exists.",
    "List what it has.",
)
ALLOWED = (
    "There is no such link, and the master is no longer up.",
    "There\nis no such link.",
    "A process of the user nobody-else exists.",
    "Retell the order of the antibodies.",
    "The pod whose interface it is exists.",
)

SOURCE = '''\
"""A module, described in one sentence.

And in a second one."""
# A comment of two lines,
# which is one text.
x = 1  # time: a mark is no sentence at all
raise ValueError(f"the value {x} of key is not a number")
'''


def test_each_line_of_the_page_is_known_in_the_source() -> None:
    text, numbers = prose.page_of(SOURCE)
    lines = dict(zip(text.split("\n"), numbers, strict=False))
    assert lines["And in a second one."] == 3
    assert lines["A comment of two lines,"] == 4
    assert lines["which is one text."] == 5
    assert lines["the value X of key is not a number"] == 7
    assert "mark" not in text


def test_a_message_has_a_sentence_for_each_part() -> None:
    text, numbers = prose.page_of(
        '"""One sentence; of two parts."""\nraise ValueError("key x: is absent; set y; or z")\n'
    )
    assert text.split("\n") == ["One sentence; of two parts.", "", "key x: is absent;", "", "set y;", "", "or z", ""]
    assert numbers[2:7] == [2] * 5


@pytest.fixture(scope="module")
def vale() -> str:
    built = subprocess.run([prose.ROOT / "netns-fixtures" / "vale"], capture_output=True, text=True, check=False)
    if built.returncode:
        require("unit", built.stderr)
    return built.stdout.strip()


def test_vale_refuses_an_example_of_each_word(vale: str, tmp_path: Path) -> None:
    pages = {str(tmp_path / f"{number}.md"): text for number, text in enumerate((*REFUSED, *ALLOWED))}
    for path, text in pages.items():
        Path(path).write_text(f"{text}\n")
    found = prose.alerts_of(vale, *pages)
    rules = {text: {alert["Check"] for alert in found.get(path, ())} for path, text in pages.items()}
    assert [text for text in REFUSED if rules[text] != {"Hpn.Words"}] == []
    assert [text for text in ALLOWED if rules[text]] == []


def test_each_pattern_of_words_has_an_example() -> None:
    words = yaml.safe_load((prose.RULES.parent / "Hpn" / "Words.yml").read_text())["swap"]
    for pattern in words:
        assert any(re.search(pattern, text, re.IGNORECASE) for text in REFUSED), pattern


def test_vale_counts_the_words_of_a_sentence(vale: str, tmp_path: Path) -> None:
    page = tmp_path / "page.txt"
    most = yaml.safe_load((prose.RULES.parent / "Hpn" / "Length.yml").read_text())["max"]
    for more in (0, 1):
        page.write_text(f"The {'very ' * (most - 3 + more)}long sentence.\n")
        found = prose.alerts_of(vale, str(page)).get(str(page), [])
        assert [alert["Check"] for alert in found] == ["Hpn.Length"] * more
