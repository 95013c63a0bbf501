"""Runs before the frozen program: what modules compile from text while they are imported was compiled by the build.

dataclasses writes the methods of a class as text, typing compiles every annotation that is a string, and re is a
compiler in Python. record.py found what that makes of our modules; anything else is compiled as ever.
"""

import _sre
import sys
from marshal import loads
from re import _compiler
from types import CodeType, ModuleType
from typing import Any

from recorded import CODE, EXPRESSIONS

compile_expression = _compiler.compile


def code(text: str, mode: str) -> CodeType:
    """As compile() has it."""
    found = CODE.get((text, mode))
    return loads(found) if found else compile(text, "<string>", mode, dont_inherit=True)  # noqa: S302


def expression(pattern: Any, flags: int = 0) -> Any:
    """As re has it."""
    found = EXPRESSIONS.get((pattern, flags))
    return _sre.compile(*found) if found else compile_expression(pattern, flags)


_compiler.compile = expression
# No class has a docstring here, and dataclasses would give each one, its signature: for that it imports inspect.
sys.modules["inspect"] = inspect = ModuleType("inspect")
inspect.signature = lambda _: ""
import dataclasses  # noqa: E402
import typing  # noqa: E402

del sys.modules["inspect"]
dataclasses.exec = lambda text, *where: exec(code(text, "exec"), *where)  # noqa: S102
typing.compile = lambda text, _, mode: code(text, mode)
