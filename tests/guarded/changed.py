"""Which guards a change touches."""

import ast
import re
import subprocess
from typing import Protocol

from guarded import ROOT, marks


class Guard(Protocol):
    file: str
    name: str


def lines_changed(base: str) -> dict[str, set[int]]:
    """By file: the lines that differ from that commit, and those around what was removed; 0 for a file that git does
    not know yet."""
    found: dict[str, set[int]] = {}
    at: set[int] = set()
    for line in _git("diff", "-U0", "--no-color", "--no-ext-diff", "--relative", base).split("\n"):
        if line.startswith("+++ b/"):
            at = found.setdefault(line.removeprefix("+++ b/"), set())
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            at.update(range(first, first + count) if count else (first, first + 1))
    return found | {name: {0} for name in _git("ls-files", "--others", "--exclude-standard").split("\n") if name}


def is_changed(guard: Guard, changed: dict[str, set[int]]) -> bool:
    """Whether a line of the function that the guard is in has changed; of a file in C, any line."""
    if not (lines := changed.get(guard.file)):
        return False
    text = (ROOT / guard.file).read_text()
    if 0 in lines or not guard.file.endswith(".py"):
        return True
    tree, own = ast.parse(text), [mark.line for mark in marks.marks(text) if mark.name == guard.name]
    return any(not lines.isdisjoint(_around(tree, line)) for line in own)


def _around(tree: ast.AST, line: int) -> range:
    """The lines of the innermost function around one; of the statement, if there is none."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    around = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno]
    best = max((node for node in around if isinstance(node, functions)), key=lambda node: node.lineno, default=None)
    best = best or max(around, key=lambda node: node.lineno)
    return range(best.lineno, best.end_lineno + 1)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
