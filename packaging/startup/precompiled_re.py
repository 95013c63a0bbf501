"""Replace the compiler of re, which is written in Python, by its recorded results (record.py)."""

import _sre
from re import _compiler
from typing import Any

from recorded_re import TABLE

compile_expression = _compiler.compile


def expression(pattern: Any, flags: int = 0) -> Any:
    """Compile a regular expression like re, from its recorded numbers if there are any."""
    found = TABLE.get((pattern, flags))
    return _sre.compile(*found) if found else compile_expression(pattern, flags)


_compiler.compile = expression
