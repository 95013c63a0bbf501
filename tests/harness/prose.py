"""Check the English of pages, docstrings, comments and messages by Vale, with the rules of docs/develop/guide.md.

    packaging/venv python tests/harness/prose.py $(netns-fixtures/vale)

Vale reads pages as they are, but it cannot read the strings of a program.  So each Python file is written as a page of
its docstrings, comments and sentences, one line for one line of the source.
"""

import ast
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
RULES = ROOT / "packaging" / "vale" / "vale.ini"
FOLDERS = ("base", "hardware", "cni", "ipam", "agent", "node", "ctl", "packaging", "docs")
# Fewer words are a key, a name or a column's head.
SENTENCE = 4
# A comment that a tool reads.
MARK = re.compile(r"# *(time|noqa|type|ruff|mypy|pragma):|#!")
# The first line of a table's row: a term, a gap, its meaning; or a column of the pages' tables (docs/keys.py).
ROW = re.compile(r" *(\S+( \S+)* {3,}\S|(Value|Default|Refused): )")
# English has one of these words in so many words.  A style sheet, a list of keys and an example in JSON have none.
ENGLISH = re.compile(r"\b(the|an?|is|are|has|of|to|for|in|it|its|and|with|by)\b", re.IGNORECASE)
CODE = 20
# Between the parts of a message: key and value; cause; remedy.  The page has each part as a sentence.
PART = "; "
END = ";\x1f"


def pages() -> list[Path]:
    """Every page of the project."""
    found = chain(ROOT.glob("*.md"), (ROOT / "conf").glob("*.md"), (ROOT / "docs").rglob("*.md"))
    return sorted(found)


def programs() -> list[Path]:
    """Every Python file of the product that a person wrote."""
    found = chain.from_iterable((ROOT / folder).rglob("*.py") for folder in FOLDERS)
    return sorted(path for path in found if not path.name.endswith("_pb2.py"))


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each docstring, comment and sentence in a Python source."""
    yield from _comments(source)
    inside, documents = set[ast.AST](), set[ast.AST]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr):
            documents.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            inside.update(node.values)
            yield node.lineno, "".join(_shown(part) for part in node.values).replace(PART, END)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.lineno, node.value if node in documents else node.value.replace(PART, END)


def page_of(source: str) -> tuple[str, list[int]]:
    """Return the page that Vale reads in place of a Python source, and the source's line for each of its lines."""
    lines, numbers = list[str](), list[int]()
    for first, text in texts(source):
        if len(text.split()) < SENTENCE:
            continue
        for number, paragraph in _paragraphs(first, text):
            if len(paragraph.split()) >= CODE and not ENGLISH.search(paragraph):
                continue
            for at, line in enumerate(paragraph.splitlines(), number):
                # An empty line makes each row of a table a sentence of its own.
                before = [""] if ROW.match(line) else []
                parts = line.strip().replace(END, ";\n\n").split("\n")
                lines += [*before, *parts]
                numbers += [at] * (len(before) + len(parts))
            lines.append("")
            numbers.append(number)
    return "\n".join(lines), numbers


def alerts_of(vale: str, *paths: str) -> dict[str, list[dict[str, Any]]]:
    """Return Vale's alerts for each page that breaks a rule."""
    words = [vale, "--config", str(RULES), "--no-exit", "--output=JSON", *paths]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    alerts: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return alerts


def findings(vale: str) -> list[str]:
    """A line for each place that breaks a rule: FILE:LINE: rule: message."""
    with TemporaryDirectory(prefix="hpn-prose-") as folder:
        places = dict[str, tuple[str, list[int]]]()
        for path in programs():
            text, numbers = page_of(path.read_text())
            copy = Path(folder, f"{len(places)}.md")
            copy.write_text(text)
            places[str(copy)] = (str(path.relative_to(ROOT)), numbers)
        answer = alerts_of(vale, *map(str, pages()), *places)
    found = list[str]()
    for place, alerts in sorted(answer.items()):
        name, numbers = places[place] if place in places else (str(Path(place).relative_to(ROOT)), list[int]())
        for alert in alerts:
            line = numbers[alert["Line"] - 1] if numbers else alert["Line"]
            found.append(f"{name}:{line}: {alert['Check'].removeprefix('Hpn.')}: {alert['Message']}")
    return sorted(found)


def _paragraphs(first: int, text: str) -> Iterator[tuple[int, str]]:
    """Yield the parts of a text between its empty lines, each with its first line's number."""
    for is_empty, lines in groupby(enumerate(text.splitlines(), first), lambda line: not line[1].strip()):
        if not is_empty:
            numbered = list(lines)
            yield numbered[0][0], "\n".join(line for _, line in numbered)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield each comment behind code, and each run of lines with nothing but comments, as one text."""
    block, first, last, column = list[str](), 0, 0, 0
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type != tokenize.COMMENT or MARK.match(token.string):
            continue
        row = token.start[0]
        is_behind_code = bool(token.line[: token.start[1]].strip())
        if block and (is_behind_code or token.start != (last + 1, column)):
            yield first, "\n".join(block)
            block = []
        first, last, column = (first if block else row), *token.start
        block.append(token.string.lstrip("# "))
    if block:
        yield first, "\n".join(block)


def _shown(part: ast.expr) -> str:
    """A part of an f-string, with a word for what it inserts."""
    return str(part.value) if isinstance(part, ast.Constant) else "X"


def main() -> int:
    found = findings(sys.argv[1])
    print(
        *found,
        f"{len(found)} places break a rule of docs/develop/guide.md" if found else "prose: no findings",
        sep="\n",
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
