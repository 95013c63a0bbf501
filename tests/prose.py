"""Check the English of pages, docstrings, comments and messages by Vale, with the rules of docs/develop/style.md.

    packaging/venv python tests/prose.py $(netns-fixtures/vale)

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
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
RULES = ROOT / "packaging" / "vale" / "vale.ini"
FOLDERS = ("base", "hardware", "cni", "ipam", "agent", "node", "ctl", "packaging", "docs")
# Fewer words are a key, a name or a column's head.
SENTENCE = 4
# A comment that a tool reads.
MARK = re.compile(r"# *(guard|time|noqa|type|ruff|mypy|pragma):|#!")


def pages() -> list[Path]:
    """Every page of the project."""
    found = chain(ROOT.glob("*.md"), (ROOT / "conf").glob("*.md"), (ROOT / "docs").rglob("*.md"))
    # The left column of the style page shows what the rules refuse.
    return sorted(page for page in found if page.name != "style.md")


def programs() -> list[Path]:
    """Every Python file of the product that a person wrote."""
    found = chain.from_iterable((ROOT / folder).rglob("*.py") for folder in FOLDERS)
    return sorted(path for path in found if not path.name.endswith("_pb2.py"))


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each docstring, comment and sentence in a Python source."""
    yield from _comments(source)
    inside = set[ast.AST]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inside.update(node.values)
            yield node.lineno, "".join(_shown(part) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.lineno, node.value


def page_of(source: str) -> tuple[str, list[int]]:
    """The page that Vale reads in place of a Python source, and the source's line for each of its lines."""
    lines, numbers = list[str](), list[int]()
    for first, text in texts(source):
        if len(text.split()) >= SENTENCE:
            block = [line.strip() for line in text.splitlines()]
            lines += [*block, ""]
            numbers += [*range(first, first + len(block)), first]
    return "\n".join(lines), numbers


def findings(vale: str) -> list[str]:
    """A line for each place that breaks a rule: FILE:LINE: rule: message."""
    with TemporaryDirectory(prefix="hpn-prose-") as folder:
        places = dict[str, tuple[str, list[int]]]()
        for path in programs():
            text, numbers = page_of(path.read_text())
            copy = Path(folder, f"{len(places)}.md")
            copy.write_text(text)
            places[str(copy)] = (str(path.relative_to(ROOT)), numbers)
        asked = [*map(str, pages()), *places]
        done = subprocess.run(
            [vale, "--config", str(RULES), "--no-exit", "--output=JSON", *asked],
            capture_output=True,
            text=True,
            check=True,
        )
    found = list[str]()
    for path, alerts in sorted(json.loads(done.stdout).items()):
        name, numbers = places.get(path, (str(Path(path).relative_to(ROOT)) if path not in places else path, []))
        for alert in alerts:
            line = numbers[alert["Line"] - 1] if numbers else alert["Line"]
            found.append(f"{name}:{line}: {alert['Check'].removeprefix('Hpn.')}: {alert['Message']}")
    return sorted(found)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield consecutive lines of comments as one text."""
    block, first, last = list[str](), 0, 0
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type != tokenize.COMMENT or MARK.match(token.string):
            continue
        row = token.start[0]
        if block and row != last + 1:
            yield first, "\n".join(block)
            block = []
        first, last = (first if block else row), row
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
        f"{len(found)} places break a rule of docs/develop/style.md" if found else "prose: no findings",
        sep="\n",
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
