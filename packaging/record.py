"""Import modules, and print what Python compiled from text meanwhile, as the source of a module for precompiled.py.

record.py PATH MODULE...     PATH is sys.path; run without site, for nothing that was imported before is seen
"""

import _sre
import importlib
import marshal
import sys
from re import _compiler
from types import CodeType, SimpleNamespace
from typing import Any

code: dict[tuple[str, str], bytes] = {}
expressions: dict[tuple[str | bytes, int], tuple[Any, ...]] = {}
last: list[Any] = []
compile_expression = _compiler.compile


def compiled(text: str, mode: str) -> CodeType:
    """As compile() has it."""
    made = compile(text, "<string>", mode, dont_inherit=True)
    code[text, mode] = marshal.dumps(made)
    return made


def keep(*arguments: Any) -> Any:
    """What re arrived at and hands to C."""
    last[:] = arguments
    return _sre.compile(*arguments)


def expression(pattern: Any, flags: int = 0) -> Any:
    """As re has it."""
    made = compile_expression(pattern, flags)
    if isinstance(pattern, str | bytes):
        # Its numbers may be of a subclass, which shows itself by name.
        text, all_flags, numbers, *groups = last
        expressions[pattern, int(flags)] = text, int(all_flags), [int(n) for n in numbers], *groups
    return made


def main() -> None:
    sys.path[:] = sys.argv[1].split(":")
    _compiler.compile, _compiler._sre = expression, SimpleNamespace(**vars(_sre) | {"compile": keep})  # noqa: SLF001
    dataclasses, typing = map(importlib.import_module, ("dataclasses", "typing"))
    dataclasses.exec = lambda text, *where: exec(compiled(text, "exec"), *where)  # noqa: S102
    typing.compile = lambda text, _, mode: compiled(text, mode)
    for name in sys.argv[2:]:
        importlib.import_module(name)
    print(f"CODE = {code!r}\nEXPRESSIONS = {expressions!r}")  # noqa: T201


if __name__ == "__main__":
    main()
