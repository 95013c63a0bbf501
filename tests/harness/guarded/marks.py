"""Marks of guards in the source, and the source without one guard.

``# guard: NAME`` stands at the end of a statement's line, ``# guard below: NAME`` on the line above; commas separate
several marks.  In C the mark is ``/* guard: NAME */``.  A mark removes:

    NAME                the statement: an ``if`` or ``while`` is never taken, a ``with`` keeps only its body, an
                        ``except`` catches nothing, any other statement is skipped; on a later line of a statement,
                        the part that begins there
    NAME (WORDS)        the smallest part of the statement, or of its later line, that contains the words (parts.py);
                        (and WORDS), (WORDS and): the largest that begins or ends there
    NAME (OLD -> NEW)   an expression of the statement; NEW replaces it
    NAME = NEW          the statement's value or condition; or the whole statement, if NEW is one

Marks of one name in a file are one guard.  In C only the line counts: OLD is any text in it, and an ``if`` in it is
never taken.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from guarded.parts import Part, inside, parts, put, span

_MARK = re.compile(r" *(?:#|/\*) guard( below)?: (.*?)(?=  #| \*/|$)(?: \*/)?", re.MULTILINE)
_ONE = re.compile(r"([\w-]+)(?: = (.*)| \((.*?)\)(?=, [\w-]+(?: |,|$)|$))?(?:, |$)")
_STATEMENTS = ast.stmt | ast.ExceptHandler


@dataclass(frozen=True)
class Mark:
    """``line`` is the line of the code, counted from 1."""

    name: str
    line: int
    old: str = ""
    new: str | None = None

    @property
    def what(self) -> str:
        """The mark as the source writes it."""
        if self.new is None:
            return f"{self.name} ({self.old})" if self.old else self.name
        return f"{self.name} ({self.old} -> {self.new})" if self.old else f"{self.name} = {self.new}"


def marks(text: str) -> list[Mark]:
    return [*_found(text)] if " guard" in text else []


def lines(text: str, name: str) -> list[int]:
    """The numbers of the lines that contain the guard of that name."""
    return [mark.line for mark in marks(text) if mark.name == name]


def _found(text: str) -> Iterator[Mark]:
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        for found in _MARK.finditer(line):
            at, of = 0, number
            while found[1] and lines[of - 1].lstrip().startswith(("#", "/*")):
                of += 1
            while at < len(found[2]):
                if not (one := _ONE.match(found[2], at)):
                    raise LookupError(f"line {number}: no mark of a guard: {found[2]}")
                name, value, within = one.groups()
                old, arrow, new = (within or "").partition(" ->")
                yield Mark(name, of, old, new.strip() if arrow else value)
                at = one.end()


def without(text: str, name: str, *, is_python: bool = True) -> str:
    """The source without this guard.  Raises LookupError if the source has no such mark, or the mark cannot apply."""
    wanted = [mark for mark in marks(text) if mark.name == name]
    if not wanted:
        raise LookupError(f"no mark of a guard {name}")
    if not is_python:
        return _without_in_c(text, wanted)
    tree = ast.parse(text)
    lines = [line.encode() for line in _MARK.sub("", text).split("\n")]
    at = [_statement(tree, mark.line) for mark in wanted]
    chosen = [_chosen(mark, statement, lines) for mark, statement in zip(wanted, at, strict=True)]
    for mark, statement, part in zip(wanted, at, chosen, strict=True):
        take_out(tree, statement, part, mark)
    return ast.unparse(ast.fix_missing_locations(tree))


def _without_in_c(text: str, wanted: list[Mark]) -> str:
    lines = text.split("\n")
    for mark in wanted:
        line = _MARK.sub("", lines[mark.line - 1])
        condition = re.search(r"\bif \((.*)\)", line)
        old = mark.old or (condition[1] if condition else line.strip())
        if line.count(old) != 1:
            raise LookupError(f"line {mark.line}: {mark.what}: that is in the line {line.count(old)} times, not once")
        new = ("0" if condition else ";") if mark.new is None else mark.new
        lines[mark.line - 1] = line.replace(old, new)
    return "\n".join(lines)


def statements(tree: ast.AST) -> Iterator[tuple[ast.AST, int, int]]:
    """All statements of a file, each with its first line and its last line before any nested statement."""
    for node in ast.walk(tree):
        if isinstance(node, _STATEMENTS):
            own = [one for _, _, _, one in inside(node) if hasattr(one, "end_lineno")]
            simple = not hasattr(node, "body")
            last = node.end_lineno if simple else max((span(one)[1][0] for one in own), default=node.lineno)
            yield node, min([node.lineno, *(span(one)[0][0] for one in own)]), last


def _statement(tree: ast.AST, line: int) -> ast.AST:
    """The statement that contains the line.  The line ``):``, which closes a long head, belongs to the head's
    statement."""
    best = max(
        ((first, node) for node, first, _ in statements(tree) if first <= line), key=lambda one: one[0], default=None
    )
    if best is None:
        raise LookupError(f"line {line}: no statement there")
    return best[1]


def _chosen(mark: Mark, statement: ast.AST, lines: list[bytes]) -> Part | None:
    """The part that the mark means; None for the whole statement."""
    if mark.new is not None:
        return None
    there, first = parts(statement), span(statement)[0][0]
    later = mark.line > first
    if not mark.old:
        begun = [part for part in there if part.begin[0] == mark.line] if later else []
        return max(begun, key=lambda part: (-part.begin[1], part.end), default=None)
    words = re.compile(rf"(?<!\w)(?=\w){re.escape(mark.old)}(?!\w)|(?!\w){re.escape(mark.old)}".encode())
    where = [mark.line] if later else range(first, max([first, *(part.end[0] for part in there)]) + 1)
    places = [(n, *one.span()) for n in where for one in words.finditer(lines[n - 1])]
    found = {id(part): part for place in places if (part := _meant(there, mark.old, *place))}
    if len(found) != 1:
        raise LookupError(f"line {mark.line}: {mark.what}: {len(found)} parts of the statement have that, not one")
    return next(iter(found.values()))


def _meant(there: list[Part], words: str, line: int, begin: int, end: int) -> Part | None:
    """The smallest part with the words; after an ``and`` the largest that begins there, before one the largest that
    ends there."""
    if led := re.match(r"(and|or) ", words):
        return max((p for p in there if p.begin == (line, begin + led.end())), key=lambda p: p.end, default=None)
    if found := re.search(r" (and|or)$", words):
        end -= len(found[0])
        return min((p for p in there if p.end == (line, end)), key=lambda p: p.begin, default=None)
    having = [part for part in there if part.begin <= (line, begin) and (line, end) <= part.end]
    return min(having, key=lambda part: (part.end[0] - part.begin[0], part.end[1] - part.begin[1]), default=None)


def take_out(tree: ast.AST, statement: ast.AST, part: Part | None, mark: Mark) -> None:
    if part:
        part.take_out()
        if isinstance(statement, ast.With) and not statement.items:
            _replace(tree, statement, statement.body)
    elif mark.old:
        _exchange(statement, mark)
    elif mark.new is not None:
        _value(tree, statement, mark.new)
    elif isinstance(statement, ast.If | ast.While):
        statement.test = ast.Constant(value=False)
    elif isinstance(statement, ast.With):
        _replace(tree, statement, statement.body)
    elif isinstance(statement, ast.ExceptHandler):
        statement.type = ast.Tuple([], ast.Load())
    else:
        _replace(tree, statement, [ast.Pass()])


def _replace(tree: ast.AST, statement: ast.AST, new: list[ast.stmt]) -> None:
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and statement in value:
                at = value.index(statement)
                value[at : at + 1] = new
                return


def _exchange(statement: ast.AST, mark: Mark) -> None:
    old, new = (ast.parse(one, mode="eval").body for one in (mark.old, mark.new or ""))
    same = [place for place in inside(statement) if ast.dump(place[3]) == ast.dump(old)]
    if len(same) != 1:
        raise LookupError(f"line {mark.line}: {mark.what}: that is in the statement {len(same)} times, not once")
    above, field, at, _ = same[0]
    put(above, field, at, new)


def _value(tree: ast.AST, statement: ast.AST, new: str) -> None:
    try:
        value = ast.parse(new, mode="eval").body
    except SyntaxError:
        _replace(tree, statement, ast.parse(new).body)
        return
    field = {ast.If: "test", ast.While: "test", ast.For: "iter", ast.ExceptHandler: "type"}.get(
        type(statement), "value"
    )
    setattr(statement, field, value)
