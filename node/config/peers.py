"""Reads files of other device plugins as Go's encoding/json does.

Keys have any case, null stands for a missing key, the last of two equal keys counts, and unknown keys are ignored.  A
value of a wrong type refuses the whole file.
"""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Final

from pydantic import Field

from base.yaml_document import BadFile, shown
from node.config.values import Taken, below, meant, validated, why_refused
from node.model import Resource

_MOST: Final = 10  # unknown keys of one object in messages

Texts = Annotated[list[str], Field(default_factory=list)]


def take(model: type[Taken], value: Any, path: str, notes: list[str]) -> Taken:
    """The object as Go reads it; adds a sentence to ``notes`` for each ignored key.  Raises BadFile."""
    if not isinstance(value, dict):
        raise BadFile(f"{path} {shown(value)} is not an object; write it in {{ }}")
    known = {key.lower(): key for key in model.model_fields}
    found, unknown = dict[str, Any](), 0
    for given, member in value.items():
        key, at = known.get(given.lower()), below(path, given)
        if key is None:
            unknown += 1
            if unknown <= _MOST:
                notes.append(f"{at} is ignored, there and here{meant(given, model.model_fields)}")
        elif member is not None:
            if key in found:
                notes.append(f"{at} is a key in two spellings, and the last one counts; remove one")
            found[key] = _as_go(model.model_fields[key].annotation, member, at)
    if unknown > _MOST:
        notes.append(f"{unknown - _MOST} more keys of {path or 'the file'} are ignored")
    return validated(model, found, path)


def _as_go(annotation: Any, value: Any, at: str) -> Any:
    """The value as Go reads it: an empty value for each null in it, and integers of at most 64 bits."""
    if isinstance(value, int) and annotation in (int, int | None) and not -(2**63) <= value < 2**63:
        raise BadFile(f"{at} {shown(value)} is too large; write a smaller number")
    match annotation, value:
        case types.GenericAlias(__origin__=origin, __args__=(*_, inner)), list() | dict() if type(value) is origin:
            empty = inner() if inner is not Any else None
            pairs = enumerate(value) if isinstance(value, list) else value.items()
            members = {key: empty if one is None else _as_go(inner, one, at) for key, one in pairs}
            return list(members.values()) if isinstance(value, list) else members
    return value


def refuse_twins(resources: list[Resource]) -> None:
    """Raise BadFile for two resources of one name."""
    first = dict[str, str]()
    for resource in resources:
        if (name := resource.full_name) in first:
            raise BadFile(f"{first[name]} and {resource.source} are both called {shown(name)}; rename one")
        first[name] = resource.source


def named_well(resources: list[Resource], left_out: list[str]) -> Iterator[Resource]:
    """The resources with a name that kubelet accepts; adds a sentence to ``left_out`` for each other."""
    for resource in resources:
        if why := why_refused(resource.full_name):
            left_out.append(f"{resource.source} {shown(resource.full_name)}: {why}")
        else:
            yield resource
