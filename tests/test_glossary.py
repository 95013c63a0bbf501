"""docs/develop/glossary.md: the code has each of its words, and no module or class has a replaced word."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOORS = ("base", "hardware", "cni", "ipam", "agent", "node", "ctl")
ROW = re.compile(r"^\| (?!word|---)(.+?) \| (.+?) \| (.+?) \|(.*)\|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs" / "develop" / "glossary.md").read_text())
FILES = [p for floor in FLOORS for p in (ROOT / floor).rglob("*.py") if not p.stem.endswith("_pb2")]


def words(name: str) -> set[str]:
    """The words of a module's or a class's name: the same for NodeBlocks and node_blocks."""
    return set(re.findall(r"[a-z0-9]+", re.sub(r"([A-Z])", r"_\1", name).lower()))


def classes() -> set[str]:
    trees = (ast.parse(path.read_text()) for path in FILES)
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def test_what_stands_for_a_word_is_there() -> None:
    assert len(ROWS) > 40
    named = {name for _, _, code, _ in ROWS for name in re.findall(r"`([^`]+)`", code)}
    assert {name for name in named if "/" in name and not (ROOT / name).exists()} == set()
    assert {name for name in named if "/" not in name} - classes() == set()


def test_nothing_has_a_name_that_is_given_up() -> None:
    given_up = {word for *_, row in ROWS for word in re.split(r", |\s", row.strip()) if word}
    assert "survey" in given_up
    names = {*classes(), *(path.stem for path in FILES), *(path.parent.name for path in FILES)}
    assert {name for name in names if words(name) & given_up} == set()


def test_each_word_once() -> None:
    defined = [word for terms, *_ in ROWS for word in terms.split(", ")]
    assert sorted(set(defined)) == sorted(defined)
