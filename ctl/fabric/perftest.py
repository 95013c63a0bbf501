"""perftest's programs: their command lines, reports and failures.  Pure.

Its reports (--out_json) have two forms: JSON, and before perftest 24.01 lines like JSON's with bare names, bare words
and a comma after each.  Debian 12's 4.5 writes the latter.  Both have the same members (write_test_info_to_file in
src/perftest_parameters.c).
"""

import json
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from base.protocol.errors import DecodeFailure
from ctl.fabric.model import FabricRail, Reached

PACKAGE: Final = "perftest"
_MOST: Final = 65536  # characters of a report
_MESSAGES: Final = 5  # the fewest that ib_write_lat accepts
_LATENCIES: Final = 200
_SIZE: Final = 65536  # bytes of each write of the bandwidth test
_LINE: Final = re.compile(r" ?([A-Za-z0-9_.]+) ?: (.*?),?")
_NUMBER: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{1,9})?")
_HEADER: Final = re.compile(r"(?:^|\t) ?(Device|Mtu|GID index) +: (\S+?)(?:\[B\])?$", re.MULTILINE)
# The source address's option: its name since perftest 23.07, and before.
_SOURCES: Final = ("bind_source_ip", "source_ip")
# Failures of one end alone, which say nothing of the fabric.
_LOCAL: Final = re.compile(
    "|".join(
        (
            "allocate MR",
            "create (mr|MR)",
            "Cannot allocate memory",
            "device .* not found",
            "find the Infiniband/RoCE device",
            "Couldn't (create|allocate|listen)",
            "Failed to (bind|create)",
            "Invalid",
            "[Gg]id index",
            "unrecognized option",
            "pkey",
        )
    )
)
_DOWN: Final = re.compile(r"Port number \d+ state is (?!Active)\w+")
_NOISE: Final = re.compile(
    r"-{10,}|\*{5,}|^\s*$|Waiting for client|^ [A-Z][\w* .-]*\s*: |^ (local|remote) address|^ GID:"
)


class Stage(StrEnum):
    """The steps of a trial, in their order."""

    MESSAGE = "message"  # an RDMA connection, and a few bytes
    LATENCY = "latency"
    BANDWIDTH = "bandwidth"

    @property
    def program(self) -> str:
        return "ib_write_bw" if self is Stage.BANDWIDTH else "ib_write_lat"


PROGRAMS: Final = tuple(dict.fromkeys(stage.program for stage in Stage))


@dataclass(frozen=True)
class Settings:
    """Settings of all trials of a run.

    - ``seconds``: of the bandwidth test; ``pairs``: its queue pairs.
    - ``patience``: seconds until a program that has not ended is killed, besides ``seconds``.
    - ``timeout``: of a queue pair, 4.096 us * 2^timeout for each of seven retries.
    - ``traffic_class``: -1 for the device's own; ``gpu``: the number of a CUDA device, -1 for the host's memory.
    """

    seconds: int = 2
    pairs: int = 4
    patience: int = 15
    timeout: int = 14
    traffic_class: int = -1
    gpu: int = -1


@dataclass(frozen=True)
class Used:
    """The device, MTU and GID index that perftest reports as used; the index is -1 without one."""

    device: str
    mtu: int
    gid: int = -1


@dataclass(frozen=True)
class Measured:
    """A report: ``bandwidth`` is in Gb/s, ``latency`` in microseconds, and one of them is None."""

    used: Used
    bandwidth: float | None = None
    latency: float | None = None


def options(text: str) -> frozenset[str]:
    """The long options in the text of --help."""
    return frozenset(re.findall(r"--([a-z][a-z0-9_-]*)", text))


def missing(known: AbstractSet[str], settings: Settings) -> str:
    """The option that this version of perftest lacks; empty if it has all."""
    needed = ["out_json", "out_json_file"]
    needed += ["tclass"] if settings.traffic_class >= 0 else []
    needed += ["use_cuda"] if settings.gpu >= 0 else []
    if not known & {*_SOURCES}:
        needed.append(_SOURCES[0])
    return next((f"--{name}" for name in needed if name not in known), "")


def command(stage: Stage, rail: FabricRail, port: int, settings: Settings, known: AbstractSet[str]) -> list[str]:
    """The server's command line for a stage, at a TCP port of the rail's address."""
    source = next((name for name in _SOURCES if name in known), _SOURCES[0])
    words = [stage.program, "-d", rail.device, "-i", f"{rail.port}", "-F", "-p", f"{port}"]
    words.append(f"--{source}={rail.address}")
    words += ["-x", f"{rail.gid}"] if rail.gid >= 0 else []
    words += ["-u", f"{settings.timeout}"]
    words += [f"--tclass={settings.traffic_class}"] if settings.traffic_class >= 0 else []
    words += [f"--use_cuda={settings.gpu}"] if settings.gpu >= 0 else []
    match stage:
        case Stage.MESSAGE:
            return [*words, "-n", f"{_MESSAGES}"]
        case Stage.LATENCY:
            return [*words, "-n", f"{_LATENCIES}"]
        case Stage.BANDWIDTH:
            return [*words, "-s", f"{_SIZE}", "-D", f"{settings.seconds}", "-q", f"{settings.pairs}", "--report_gbits"]


def client(words: list[str], report: str, address: str) -> list[str]:
    """The client's command line, which writes a report and connects to an address."""
    return [*words, "--out_json", f"--out_json_file={report}", address]


def parse(text: str) -> Measured:
    """The report of a client.  Raises DecodeFailure."""
    info, results = (_member(text, name) for name in ("test_info", "results"))
    is_bandwidth = "BW_average" in results
    value = _number(results, "BW_average" if is_bandwidth else "t_typical")
    used = Used(info.get("Device", ""), int(_number(info, "Mtu")), int(_number(info, "GID_index", "-1")))
    return Measured(used, value, None) if is_bandwidth else Measured(used, None, value)


def used_by_server(output: str) -> Used | None:
    """The device, MTU and GID index in a server's output; None if it came to none."""
    found = dict(_HEADER.findall(output[:_MOST]))
    try:
        return Used(found["Device"], int(_number(found, "Mtu")), int(_number(found, "GID index", "-1")))
    except (KeyError, DecodeFailure):
        return None


def _member(text: str, name: str) -> Mapping[str, str]:
    document = _sections(text[:_MOST])
    if name not in document:
        raise DecodeFailure(f"perftest's report has no {name}")
    return document[name]


def _sections(text: str) -> Mapping[str, Mapping[str, str]]:
    """The members of each section as texts.  Raises DecodeFailure."""
    try:
        return _from_json(text)
    except ValueError:
        return dict(_from_lines(text))


def _from_json(text: str) -> Mapping[str, Mapping[str, str]]:
    found = json.loads(text)
    if not isinstance(found, dict) or not all(isinstance(members, dict) for members in found.values()):
        raise DecodeFailure("perftest's report is not an object of objects")
    return {name: {key: f"{value}" for key, value in members.items()} for name, members in found.items()}


def _from_lines(text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The older form: each member on its line."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if not lines or (lines[0], lines[-1]) != ("{", "}"):
        raise DecodeFailure("perftest's report is not whole")
    section, members = "", dict[str, str]()
    for line in lines[1:-1]:
        if not section:
            if not line.endswith(": {"):
                raise DecodeFailure(f"perftest's report: {line!r} is not the beginning of a section")
            section = line.removesuffix(": {")
        elif line in ("}", "},"):
            yield section, members
            section, members = "", {}
        elif (found := _LINE.fullmatch(line)) and found[1] not in members:
            members[found[1]] = found[2].strip('"')
        else:
            raise DecodeFailure(f"perftest's report: {line!r} is not a member")
    if section:
        raise DecodeFailure(f"perftest's report: {section} does not end")


def _number(members: Mapping[str, str], name: str, default: str = "") -> float:
    text = members.get(name, default)
    if text == default == "-1":
        return -1
    if not _NUMBER.fullmatch(text):
        raise DecodeFailure(f"perftest's report: {name} is {text!r}")
    return float(text)


def failure(stage: Stage, output: str) -> tuple[Reached, str]:
    """How far a trial came whose program failed, and the program's reason in one line."""
    lines = [line.strip() for line in output[-_MOST:].splitlines() if not _NOISE.search(line)]
    reason = "; ".join(dict.fromkeys(lines[-3:]))[:240] or "it ended without a reason"
    if _DOWN.search(output):
        return Reached.UNREACHED, reason
    if _LOCAL.search(output):
        return Reached.NOT_RUN, reason
    return (Reached.UNREACHED if stage is Stage.MESSAGE else Reached.BROKEN), reason
