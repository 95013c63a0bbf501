"""The source without one guard: the edits that the tables beside this file name.

A row names a line of a function.  Without an edit the line's statement goes: an ``if`` or ``while`` is never taken, a
``with`` keeps only its body, an ``except`` catches nothing, any other statement is skipped.  If the line is a later one
of its statement, the part that begins there goes.  An edit is one of:

    (WORDS)         the smallest part of the statement, or of its later line, that contains the words (parts.py) goes;
                    (and WORDS), (WORDS and): the largest that begins or ends there
    (OLD -> NEW)    NEW replaces an expression of the statement
    = NEW           NEW is the statement's value or condition; or the whole statement, if NEW is one

In C only the line counts: OLD is any text in it, and an ``if`` in it is never taken.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from guarded import lines
from guarded.parts import Part, inside, parts, put, span

_STATEMENTS = ast.stmt | ast.ExceptHandler


_EDIT = re.compile(r"|= (?P<value>.*)|\((?P<old>.+?)(?P<arrow> ->(?P<new>.*))?\)")


@dataclass(frozen=True)
class Place:
    """A line of a function by its code, and an edit; ``nth`` tells lines with the same code apart, 0 if none has it."""

    line: str
    edit: str = ""
    nth: int = 0

    @property
    def old(self) -> str:
        """The words that go."""
        return self._edit["old"] or ""

    @property
    def new(self) -> str | None:
        return self._edit["new"].strip() if self._edit["arrow"] else self._edit["value"]

    @property
    def _edit(self) -> re.Match[str]:
        if not (found := _EDIT.fullmatch(self.edit)):
            raise LookupError(f"{self.edit!r} is no edit")
        return found

    def number(self, text: str, function: str, *, is_python: bool = True) -> int:
        """The line's number, counted from 1.  Raises LookupError if the function has not exactly this line."""
        found = lines.numbers(text, function, self.line, is_python=is_python)
        if self.nth > len(found) or (not self.nth and len(found) != 1):
            wanted = f"number {self.nth} is wanted" if self.nth else "not one"
            raise LookupError(f"{len(found)} lines of {function or 'the module'} are {self.line!r}, {wanted}")
        return found[self.nth - 1]


def without(text: str, function: str, places: Sequence[Place], *, is_python: bool = True) -> str:
    """The source after the edits.  Raises LookupError if one of them cannot apply."""
    edits = [(place, place.number(text, function, is_python=is_python)) for place in places]
    if not is_python:
        return _without_in_c(text, edits)
    tree, source = ast.parse(text), text.encode().split(b"\n")
    at = [_statement(tree, number) for _, number in edits]
    chosen = [_chosen(*edit, statement, source) for edit, statement in zip(edits, at, strict=True)]
    for place, statement, part in zip(places, at, chosen, strict=True):
        take_out(tree, statement, part, place)
    return ast.unparse(ast.fix_missing_locations(tree))


def _without_in_c(text: str, edits: list[tuple[Place, int]]) -> str:
    source, code = text.split("\n"), lines.code(text, is_python=False)
    for edit, number in edits:
        line, condition = source[number - 1], re.search(r"\bif \((.*)\)", code[number - 1])
        old = edit.old or (condition[1] if condition else code[number - 1])
        if line.count(old) != 1:
            raise LookupError(f"{old!r} is in the line {line.count(old)} times, not once")
        new = ("0" if condition else ";") if edit.new is None else edit.new
        source[number - 1] = line.replace(old, new)
    return "\n".join(source)


def statements(tree: ast.AST) -> Iterator[tuple[ast.AST, int, int]]:
    """All statements of a file, each with its first line and its last line before any nested statement."""
    for node in ast.walk(tree):
        if isinstance(node, _STATEMENTS):
            own = [one for _, _, _, one in inside(node) if hasattr(one, "end_lineno")]
            simple = not hasattr(node, "body")
            last = (node.end_lineno or 0) if simple else max((span(one)[1][0] for one in own), default=node.lineno)
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


def _chosen(edit: Place, number: int, statement: ast.AST, source: list[bytes]) -> Part | None:
    """The part that the edit means; None for the whole statement."""
    if edit.new is not None:
        return None
    there, first = parts(statement), span(statement)[0][0]
    later = number > first
    if not edit.old:
        begun = [part for part in there if part.begin[0] == number] if later else []
        return max(begun, key=lambda part: (-part.begin[1], part.end), default=None)
    words = re.compile(rf"(?<!\w)(?=\w){re.escape(edit.old)}(?!\w)|(?!\w){re.escape(edit.old)}".encode())
    where = [number] if later else range(first, max([first, *(part.end[0] for part in there)]) + 1)
    places = [(n, *one.span()) for n in where for one in words.finditer(source[n - 1])]
    found = {id(part): part for place in places if (part := _meant(there, edit.old, *place))}
    if len(found) != 1:
        raise LookupError(f"{len(found)} parts of the statement contain {edit.old!r}, not one")
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


def take_out(tree: ast.AST, statement: ast.AST, part: Part | None, edit: Place) -> None:
    if part:
        part.take_out()
        if isinstance(statement, ast.With) and not statement.items:
            _replace(tree, statement, statement.body)
    elif edit.old:
        _exchange(statement, edit)
    elif edit.new is not None:
        _value(tree, statement, edit.new)
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


def _exchange(statement: ast.AST, edit: Place) -> None:
    old, new = (ast.parse(one, mode="eval").body for one in (edit.old, edit.new or ""))
    same = [place for place in inside(statement) if ast.dump(place[3]) == ast.dump(old)]
    if len(same) != 1:
        raise LookupError(f"{edit.old!r} is in the statement {len(same)} times, not once")
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
