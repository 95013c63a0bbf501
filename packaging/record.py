"""Import modules, and record what Python compiles from text meanwhile, as modules for startup/precompiled_*.py.

record.py DIRECTORY PATH MODULE...     PATH is sys.path; run it without site, because site's imports come too early
"""

import _sre
import importlib
import marshal
import sys
from re import _compiler
from types import CodeType, SimpleNamespace
from typing import Any

methods: dict[str, bytes] = {}
annotations: dict[str, bytes] = {}
expressions: dict[tuple[str | bytes, int], tuple[Any, ...]] = {}
last: list[Any] = []
compile_expression = _compiler.compile


def compile_text(text: str, mode: str, table: dict[str, bytes]) -> CodeType:
    """Compile text, and record the code in the table."""
    made = compile(text, "<string>", mode, dont_inherit=True)
    table[text] = marshal.dumps(made)
    return made


def keep(*arguments: Any) -> Any:
    """Note the arguments that re passes to its C code."""
    last[:] = arguments
    return _sre.compile(*arguments)


def expression(pattern: Any, flags: int = 0) -> Any:
    """Compile a regular expression as re does, and record it."""
    made = compile_expression(pattern, flags)
    if isinstance(pattern, str | bytes):
        # The numbers may be of a subclass of int with a repr of its own.
        text, all_flags, numbers, *groups = last
        expressions[pattern, int(flags)] = text, int(all_flags), [int(n) for n in numbers], *groups
    return made


def main() -> None:
    directory, path, *modules = sys.argv[1:]
    sys.path[:] = path.split(":")
    _compiler.compile, _compiler._sre = expression, SimpleNamespace(**vars(_sre) | {"compile": keep})  # noqa: SLF001
    dataclasses, typing = map(importlib.import_module, ("dataclasses", "typing"))
    dataclasses.exec = lambda text, *where: exec(compile_text(text, "exec", methods), *where)  # noqa: S102
    typing.compile = lambda text, _, mode: compile_text(text, mode, annotations)
    for name in modules:
        importlib.import_module(name)
    for name, table in (("dataclasses", methods), ("typing", annotations), ("re", expressions)):
        # Not by pathlib, which this script would import before it records.
        with open(f"{directory}/recorded_{name}.py", "w") as file:
            file.write(f"TABLE = {table!r}\n")


if __name__ == "__main__":
    main()
