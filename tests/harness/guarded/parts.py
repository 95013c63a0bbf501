"""The parts of a statement that an edit can remove, and their replacements."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_Place = tuple[int, int]  # line and column, the latter in bytes, as in ast
_BODIES = {"body", "orelse", "finalbody", "handlers", "cases"}
_SIDES = ast.BitOr | ast.BitAnd | ast.Sub | ast.Add  # either side of these can go


@dataclass(frozen=True, eq=False)
class Part:
    """A part between two places; ``new`` replaces the node in ``field`` of ``above``, or the one at index ``at``."""

    begin: _Place
    end: _Place
    above: ast.AST
    field: str
    at: int | None
    new: ast.AST | None

    def take_out(self) -> None:
        put(self.above, self.field, self.at, self.new)


def put(above: ast.AST, field: str, at: int | None, new: ast.AST | None) -> None:
    if at is None:
        setattr(above, field, new)
    elif new is None:
        del getattr(above, field)[at]
    else:
        getattr(above, field)[at] = new


def inside(statement: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """All nodes of a statement, except those of nested statements, each with its place."""
    for field, value in ast.iter_fields(statement):
        if field in _BODIES and isinstance(value, list):
            continue
        for at, one in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(one, ast.AST):
                yield statement, field, at, one
                yield from inside(one)


def parts(statement: ast.AST) -> list[Part]:
    return [part for place in inside(statement) for part in _of(*place)]


def _of(above: ast.AST, field: str, at: int | None, node: ast.AST) -> Iterator[Part]:
    if isinstance(node, ast.comprehension):
        for number, one in enumerate(node.ifs):
            yield Part(*span(one), node, "ifs", number, None)
    elif field == "decorator_list" or (field == "elts" and isinstance(above, ast.Set | ast.List | ast.Tuple)):
        yield Part(*span(node), above, field, at, None)
    for begin, end, new in _short(node):
        yield Part(begin, end, above, field, at, new)


def _short(node: ast.AST) -> Iterator[tuple[_Place, _Place, ast.AST | None]]:
    """A node without one of its parts, and the place of that part."""
    match node:
        case ast.BoolOp(op=op, values=values):
            for number, one in enumerate(values):
                rest = values[:number] + values[number + 1 :]
                yield *span(one), rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.Compare(left=left, ops=[first, second], comparators=[middle, right]):
            yield *span(left), ast.Compare(middle, [second], [right])
            yield *span(right), ast.Compare(left, [first], [middle])
        case ast.Dict(keys=keys, values=values):
            for number, key in enumerate(keys):
                others = ast.Dict(keys[:number] + keys[number + 1 :], values[:number] + values[number + 1 :])
                yield span(key or values[number])[0], span(values[number])[1], others
        case ast.keyword(arg=str()) | ast.withitem():
            yield *span(node if isinstance(node, ast.keyword) else node.context_expr), None
        case _:
            yield from ((*span(gone), rest) for gone, rest in _one_stays(node))


def _one_stays(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The part that goes, and the part of the node that stays."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _SIDES):
            yield from ((left, right), (right, left))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield from ((test, body), (body, orelse), (orelse, body))
        case ast.Subscript(value=value, slice=ast.Slice() as cut):
            yield cut, value
        case ast.Call():
            yield from _of_call(node)
        case _:
            pass


def _of_call(call: ast.Call) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Remove a bound, or replace a call by its first argument; or by its object, if the call has no other argument."""
    match call:
        case ast.Call(func=ast.Name(id="min" | "max"), args=[one, other]):
            yield from ((one, other), (other, one))
        case ast.Call(func=ast.Attribute(value=value)) if all(isinstance(one, ast.Constant) for one in call.args):
            yield call.func, value
        case ast.Call(args=[first, *_]) if not isinstance(first, ast.Starred):
            yield call.func, first


def span(node: ast.AST) -> tuple[_Place, _Place]:
    """The first and the last place of a node that has them."""
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
