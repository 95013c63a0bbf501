"""Spares re its compiler, which is written in Python: record.py kept what that makes of our expressions."""

import _sre
from re import _compiler
from typing import Any

from recorded_re import TABLE

compile_expression = _compiler.compile


def expression(pattern: Any, flags: int = 0) -> Any:
    """As re has it."""
    found = TABLE.get((pattern, flags))
    return _sre.compile(*found) if found else compile_expression(pattern, flags)


_compiler.compile = expression
