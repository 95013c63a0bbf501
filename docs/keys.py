# ruff: noqa: INP001  # a folder of pages is not a package
"""Generate the pages' tables of keys from the models (make docs).

A page has a table between <!-- keys: MODULE.MODEL --> and <!-- end -->; "without NAME" omits that key, or all keys that
the model inherits from that class.  Values, bounds and defaults come from the model.  A key's meaning is the string
below it in the model, which Python drops when it compiles, so it costs no start.  Lines of that string that begin with
"Value: ", "Default: " or "Refused: " fill those columns, the first two only if the model does not define them.
"""

import ast
import importlib
import inspect
import json
import re
import sys
import types
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

PAGES = Path(__file__).parent
TABLE = re.compile(r"(<!-- keys: ([\w.]+?)\.(\w+)(?: without (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)
# The name of each type; and of types that a validator of ours parses from text.
NAMES: dict[Any, str] = {bool: "`true`, `false`", str: "text", dict: "object", list: "list"}
PLAIN: dict[Any, str] = {IPv4Address: "address", IPv4Network: "subnet"}
# A description may replace these names by a more exact one.
VAGUE = ("", "text", "object", "list")
HEAD = "| key | value | default | meaning | refused |\n|---|---|---|---|---|\n"


class Undescribed(Exception):
    """A key has no description, or one that repeats the model."""


def filled_in(page: str) -> str:
    """Return the page with every table generated from the models."""

    def made(found: re.Match[str]) -> str:
        begin, module, name, without, end = found.groups()
        return begin + table(getattr(importlib.import_module(module), name), without or "") + end

    return TABLE.sub(made, page)


def table(model: type[BaseModel], without: str = "") -> str:
    left_out = {without} | {key for base in model.__mro__ if base.__name__ == without for key in base.model_fields}
    texts = described(model)
    rows = [row(key, field, texts.get(key, "")) for key, field in model.model_fields.items() if key not in left_out]
    return HEAD + "".join(rows)


def described(model: type[BaseModel]) -> dict[str, str]:
    """Return the string below each key, of the model and its base classes."""
    texts = dict[str, str]()
    for cls in reversed(model.__mro__):
        if cls is not BaseModel and issubclass(cls, BaseModel):
            body = ast.parse(inspect.getsource(cls)).body[0]
            members = body.body if isinstance(body, ast.ClassDef) else []
            for one, other in pairwise(members):
                match one, other:
                    case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                        texts[key] = inspect.cleandoc(text)
    return texts


def row(key: str, field: FieldInfo, text: str) -> str:
    name = field.alias or key
    if not text:
        raise Undescribed(f"{name} has no description: write a string below it in the model")
    meaning, *others = (" ".join(part.split()) for part in re.split(r"\n(?=Value: |Default: |Refused: )", text))
    named = dict(part.split(": ", 1) for part in others)
    value, default = values(field.annotation, field.metadata), shown_default(field)
    for column, made in (("Value", value), ("Default", default)):
        if column in named and made not in VAGUE:
            raise Undescribed(f"{name}: the model says {made}; remove the line {column!r}")
    columns = (f"`{name}`", named.get("Value", value), named.get("Default", default), meaning, named.get("Refused", ""))
    return f"| {' | '.join(column.removesuffix('.') for column in columns)} |\n"


def shown_default(field: FieldInfo) -> str:
    default = field.default
    if field.default_factory:
        default = field.get_default(call_default_factory=True, validated_data={})
    if default is PydanticUndefined:
        return "required"
    if default is None or default == "" or isinstance(default, dict | list | BaseModel):
        return ""
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"


def values(annotation: Any, metadata: list[Any]) -> str:
    """Return the type's values and their bounds; empty if the model does not define them."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return values(arguments[0], [*metadata, *arguments[1:]])
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in arguments)
    if origin in (Union, types.UnionType):
        texts = dict.fromkeys(values(one, metadata) for one in arguments if one is not type(None))
        return " or ".join(filter(None, texts))
    if any(type(one).__name__ == "PlainValidator" for one in metadata):
        return PLAIN.get(annotation, "")
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        annotation = dict
    return bounded(metadata) or NAMES.get(origin or annotation, "")


def bounded(metadata: list[Any]) -> str:
    low = high = None
    for one in metadata:
        for constraint in getattr(one, "metadata", None) or [one]:
            low = getattr(constraint, "ge", low)
            high = getattr(constraint, "le", high)
            high = constraint.lt - 1 if hasattr(constraint, "lt") else high
    if low is None:
        return ""
    return f"{low} to {high}" if high is not None else f"{low} or more"


def main() -> int:
    for page in sorted(PAGES.rglob("*.md")):
        text = page.read_text()
        if (made := filled_in(text)) != text:
            page.write_text(made)
            sys.stdout.write(f"{page.name}: wrote the tables of keys\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
