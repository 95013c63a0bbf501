"""Import modules, and write down what Python compiled from text meanwhile, as modules for startup/precompiled_*.py.

record.py DIRECTORY PATH MODULE...     PATH is sys.path; run without site, whose imports would not be recorded
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
    """As compile() has it."""
    made = compile(text, "<string>", mode, dont_inherit=True)
    table[text] = marshal.dumps(made)
    return made


def keep(*arguments: Any) -> Any:
    """Note what re arrived at and hands to C."""
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
    directory, path, *modules = sys.argv[1:]
    sys.path[:] = path.split(":")
    _compiler.compile, _compiler._sre = expression, SimpleNamespace(**vars(_sre) | {"compile": keep})  # noqa: SLF001
    dataclasses, typing = map(importlib.import_module, ("dataclasses", "typing"))
    dataclasses.exec = lambda text, *where: exec(compile_text(text, "exec", methods), *where)  # noqa: S102
    typing.compile = lambda text, _, mode: compile_text(text, mode, annotations)
    for name in modules:
        importlib.import_module(name)
    for name, table in (("dataclasses", methods), ("typing", annotations), ("re", expressions)):
        # Not by pathlib, whose import would not be recorded.
        with open(f"{directory}/recorded_{name}.py", "w") as file:
            file.write(f"TABLE = {table!r}\n")


if __name__ == "__main__":
    main()
