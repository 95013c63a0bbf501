"""The messages between ``hpn fabric test`` and the hosts that it tests, and their members, read strictly.  Pure.

A host takes from a message only numbers within bounds, addresses, and words of a list.  No text of the other end
reaches a command line.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Final, TypeVar

from base.protocol import written
from base.protocol.errors import DecodeFailure
from base.protocol.spec import Json
from base.table import printable
from ctl.fabric.model import FabricRail, Participant, Reached
from ctl.fabric.perftest import Settings, Stage, Used

VERSION: Final = 1
RAILS_MOST: Final = 64
_TEXT_MOST: Final = 1024
_COUNTER: Final = re.compile(r"[A-Za-z0-9_]{1,64}")
# The bounds of each setting, and of each number of a rail.
SETTINGS: Final = {
    "seconds": (1, 3600), "pairs": (1, 64), "patience": (1, 600), "timeout": (0, 31), "traffic_class": (-1, 255),
    "gpu": (-1, 255),
}  # fmt: skip
_RAIL: Final = {
    "port": (1, 255), "gid": (-1, 65535), "mtu": (0, 1 << 20), "path_mtu": (0, 1 << 20), "traffic_class": (-1, 255),
}  # fmt: skip

Word = TypeVar("Word", bound=StrEnum)


class Operation(StrEnum):
    """What a host is requested to do."""

    HELLO = "hello"  # report rails and limits
    SERVE = "serve"  # start servers of perftest
    MEASURE = "measure"  # run clients of perftest
    STOP = "stop"  # end the servers, and report their side
    BYE = "bye"  # the test is over


@dataclass(frozen=True)
class Target:
    """The far end of a trial: a rail here, and the address and TCP ports there.  ``probe`` is 0 for none."""

    rail: int
    address: str
    port: int
    probe: int = 0


@dataclass(frozen=True)
class Served:
    """A server of perftest: its TCP port and that of the probe; or why there is none."""

    port: int = 0
    probe: int = 0
    trouble: str = ""


@dataclass(frozen=True)
class Ran:
    """A client of perftest: how far it came, its result, and what it used.  ``value`` is Gb/s or microseconds."""

    reached: Reached
    value: float | None = None
    detail: str = ""
    used: Used | None = None


def hello(who: Participant) -> Json:
    return {"version": VERSION} | asdict(who)


def participant(body: Json) -> Participant:
    """The host that sent this hello.  Raises DecodeFailure."""
    if number(body, "version", 0, 1 << 16) != VERSION:
        raise DecodeFailure(f"its messages have version {body['version']}, and ours {VERSION}: install one hpn on both")
    rails = body.get("rails")
    if not isinstance(rails, list) or len(rails) > RAILS_MOST:
        raise DecodeFailure("its rails are not a list, or too many")
    return Participant(
        text(body, "name"), tuple(map(_rail, rails)), number(body, "memlock", -1, 1 << 62), text(body, "trouble")
    )


def _rail(body: object) -> FabricRail:
    if not isinstance(body, dict):
        raise DecodeFailure("a rail is not an object")
    errors = body.get("errors")
    if not isinstance(errors, dict) or not all(_COUNTER.fullmatch(name) for name in errors):
        raise DecodeFailure("a rail's errors are not counters")
    texts = {one.name: text(body, one.name) for one in fields(FabricRail) if one.type is str}
    numbers = {name: number(body, name, *bounds) for name, bounds in _RAIL.items()}
    if texts["address"]:
        texts["address"] = address(body, "address")
    counters = {name: number(errors, name, 0, 1 << 64) for name in errors}
    return FabricRail(**texts, **numbers, rate=amount(body, "rate") or 0.0, errors=counters)  # type: ignore[arg-type]


def settings(body: Json) -> Settings:
    """The settings in a request.  Raises DecodeFailure."""
    return Settings(**{name: number(body, name, *bounds) for name, bounds in SETTINGS.items()})


def serve(stage: Stage, rails: list[int], chosen: Settings) -> Json:
    return {"operation": Operation.SERVE, "stage": stage, "rails": rails} | asdict(chosen)


def measure(stage: Stage, targets: list[Target], chosen: Settings) -> Json:
    listed = [asdict(one) for one in targets]
    return {"operation": Operation.MEASURE, "stage": stage, "targets": listed} | asdict(chosen)


def rails(body: Json, count: int) -> list[int]:
    """The rails to serve, each once, of as many as there are.  Raises DecodeFailure."""
    found = _list(body, "rails")
    chosen = [_number(one, "rails", 0, count - 1) for one in found]
    if len({*chosen}) != len(chosen):
        raise DecodeFailure("rails: one is named twice")
    return chosen


def targets(body: Json, count: int) -> list[Target]:
    """The targets of a measurement, one for each rail.  Raises DecodeFailure."""
    found = []
    for one in _list(body, "targets"):
        if not isinstance(one, dict):
            raise DecodeFailure("targets: one is not an object")
        ports = number(one, "port", 1, 65535), number(one, "probe", 0, 65535)
        found.append(Target(number(one, "rail", 0, count - 1), address(one, "address"), *ports))
    if len({one.rail for one in found}) != len(found):
        raise DecodeFailure("targets: a rail is named twice")
    return found


def by_rail(results: Mapping[int, Served | Ran]) -> Json:
    return {"rails": {f"{rail}": asdict(one) for rail, one in results.items()}}


def served(body: Json) -> dict[int, Served]:
    """The answer to a request to serve.  Raises DecodeFailure."""
    return {
        rail: Served(number(one, "port", 0, 65535), number(one, "probe", 0, 65535), text(one, "trouble"))
        for rail, one in _by_rail(body)
    }


def ran(body: Json) -> dict[int, Ran]:
    """The answer to a request to measure or to stop.  Raises DecodeFailure."""
    return {
        rail: Ran(word(one, "reached", Reached), amount(one, "value"), text(one, "detail"), _used(one))
        for rail, one in _by_rail(body)
    }


def _by_rail(body: Json) -> Iterator[tuple[int, Json]]:
    found = body.get("rails")
    if not isinstance(found, dict) or len(found) > RAILS_MOST:
        raise DecodeFailure("rails: not an object, or too many")
    for name, one in found.items():
        if not isinstance(one, dict):
            raise DecodeFailure("rails: one is not an object")
        try:
            yield written.number(name), one
        except ValueError as e:
            raise DecodeFailure(f"rails: {e}") from e


def _used(body: Json) -> Used | None:
    found = body.get("used")
    if found is None:
        return None
    if not isinstance(found, dict):
        raise DecodeFailure("used: not an object")
    return Used(text(found, "device"), number(found, "mtu", 0, 1 << 20), number(found, "gid", -1, 65535))


def number(body: Json, name: str, least: int, most: int) -> int:
    """A whole number within bounds.  Raises DecodeFailure."""
    return _number(body.get(name), name, least, most)


def _number(value: object, name: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:  # bool is an int
        raise DecodeFailure(f"{name}: {value!r:.40} is not a number from {least} to {most}")
    return value


def amount(body: Json, name: str) -> float | None:
    """A number that is not negative, or None.  Raises DecodeFailure."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < 1e12:  # false for nan
        raise DecodeFailure(f"{name}: {value!r:.40} is not a number of at least 0")
    return float(value)


def text(body: Json, name: str) -> str:
    """A text, made printable on one line.  Raises DecodeFailure."""
    value = body.get(name)
    if not isinstance(value, str) or len(value) > _TEXT_MOST:
        raise DecodeFailure(f"{name}: not a text, or too long")
    return printable(value)


def word(body: Json, name: str, words: type[Word]) -> Word:
    """One of these words.  Raises DecodeFailure."""
    try:
        return words(text(body, name))
    except ValueError as e:
        raise DecodeFailure(f"{name}: {body[name]!r:.40} is not one of {', '.join(words)}") from e


def address(body: Json, name: str) -> str:
    """An IPv4 address in its normal form.  Raises DecodeFailure."""
    try:
        found = written.address(text(body, name))
    except ValueError as e:
        raise DecodeFailure(f"{name}: {e}") from e
    if found.version != 4:
        raise DecodeFailure(f"{name}: {found} is not an IPv4 address")
    return f"{found}"


def _list(body: Json, name: str) -> list[object]:
    found = body.get(name)
    if not isinstance(found, list) or len(found) > RAILS_MOST:
        raise DecodeFailure(f"{name}: not a list, or too long")
    return found
