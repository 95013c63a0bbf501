"""Entries of ``pfNames`` and ``rootDevices``: "rail0" for all VFs or SFs of a PF, "rail0#0,2-7" for some of them."""

import re
from collections.abc import Sequence
from typing import Final

from node.model import PfName

# What Go's strconv.Atoi takes (sriov-network-device-plugin: pkg/resources/deviceSelectors.go, isSelected), which splits
# at "-" before; so there are no negative numbers.
_NUMBER: Final = re.compile(r"\+?[0-9]{1,18}", re.ASCII)


def entries(texts: Sequence[str]) -> tuple[tuple[PfName, ...], list[str]]:
    """The PFs, and what of the texts selects nothing there, in words.

    As sriov-network-device-plugin reads them: of several texts with one name the first counts, and of its numbers those
    before the first that is none.
    """
    found, wrong = dict[str, PfName](), list[str]()
    for text in texts:
        name, sign, numbers = text.partition("#")
        if first := found.get(name.lower()):
            wrong.append(
                f"{text!r} is passed over, for {first.name!r} is there before it; write one entry, as {_JOINED}"
            )
            continue
        parts, why = _ranges(numbers) if sign else (None, "")
        found[name.lower()] = PfName(name, parts)
        if why:
            wrong.append(f"{text!r}: {why}; write {_JOINED}")
    return tuple(found.values()), wrong


_JOINED: Final = "'rail0#0,2-7'"


def _ranges(numbers: str) -> tuple[tuple[range, ...], str]:
    if "#" in numbers:
        return (), "of two '#' nothing is selected"
    found, empty = list[range](), ""
    for part in numbers.split(","):
        first, dash, last = part.partition("-")
        if not _NUMBER.fullmatch(first) or (dash and not _NUMBER.fullmatch(last)):
            return tuple(found), f"{part!r} is no number and no range, and nothing from there on is selected"
        found.append(range(int(first), int(last or first) + 1))
        if not found[-1]:
            empty = empty or f"{part!r} begins above its end, and selects nothing"
    return tuple(found), empty
