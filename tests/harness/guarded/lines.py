"""The lines of a source, each with its function and its code without comments."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import lru_cache

_C_FUNCTION = re.compile(r"[a-z].*?(\w+)\([^;]*$")


@lru_cache
def functions(text: str, *, is_python: bool = True) -> tuple[str, ...]:
    """For each line, the qualified name of the innermost function or class around it; "" outside of all.  Names of
    nested ones have a dot: ``Class.method``, ``function.nested``."""
    names = [""] * len(text.split("\n"))
    for name, first, last in _in_python(ast.parse(text)) if is_python else _in_c(text):
        names[first - 1 : last] = [name] * (last - first + 1)
    return tuple(names)


@lru_cache
def code(text: str, *, is_python: bool = True) -> tuple[str, ...]:
    """Each line without its comment and the space around it."""
    if is_python:
        lines = text.split("\n")
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                lines[token.start[0] - 1] = token.line[: token.start[1]]
    else:
        lines = re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL).split("\n")
    return tuple(line.strip() for line in lines)


def numbers(text: str, function: str, line: str, *, is_python: bool = True) -> list[int]:
    """The numbers of the function's own lines with this code, counted from 1.  Lines of nested functions belong to
    those."""
    found = zip(functions(text, is_python=is_python), code(text, is_python=is_python), strict=True)
    return [number for number, one in enumerate(found, 1) if one == (function, line)]


def _in_python(node: ast.AST, above: str = "") -> Iterator[tuple[str, int, int]]:
    """Each function and class, outer ones first, with its first and last line."""
    for one in ast.iter_child_nodes(node):
        name = above
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{above}.{one.name}".lstrip(".")
            yield name, min([one.lineno, *(of.lineno for of in one.decorator_list)]), one.end_lineno or one.lineno
        yield from _in_python(one, name)


def _in_c(text: str) -> Iterator[tuple[str, int, int]]:
    """Each function.  Its name is in the line above its brace, which is in the first column, as is the last one."""
    lines = text.split("\n")
    for first, line in enumerate(lines, 1):
        if (head := _C_FUNCTION.match(line)) and "{" in lines[first : first + 1]:
            yield head[1], first, lines.index("}", first) + 1
