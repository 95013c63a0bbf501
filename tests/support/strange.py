"""Answers that no server gives: those of real servers, each changed in one place."""

import copy
import random
from collections.abc import Iterator
from typing import Any

STRANGE = (
    *(None, True, False, -1, 0, 1.5, 10**30, "", "x", "-1", "9" * 5000, "\ud800", "a\0b", "Mon, 99 Foo"),
    *([], [None], [[]], {}, {"a": 1}, [{}], "2026-99-99T99:99:99Z"),
)


def changed(answer: Any, chance: random.Random) -> Any:
    """Return the answer with a value replaced, repeated or removed in one place."""
    whole = {"": copy.deepcopy(answer)}
    *way, last = chance.choice(list(_ways(whole, ())))
    at: Any = whole
    for key in way:
        at = at[key]
    if chance.random() < 0.2 and way:
        del at[last]
    elif isinstance(at, list) and chance.random() < 0.2:
        at.append(at[last])
    else:
        at[last] = copy.deepcopy(chance.choice(STRANGE))
    return whole[""]


def _ways(document: Any, before: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        yield (*before, key)
        if isinstance(value, dict | list):
            yield from _ways(value, (*before, key))
