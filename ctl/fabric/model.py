"""A fabric's rails, the trials between them, and the verdicts, as values.

A host has rails with numbers.  Rails of one number are one network, so a trial uses the same number on two hosts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Ends(NamedTuple):
    """Two hosts by their numbers, the smaller one first."""

    one: int
    other: int

    def partner(self, host: int) -> int:
        return self.other if host == self.one else self.one


class Spot(NamedTuple):
    """One rail of one host."""

    host: int
    rail: int


@dataclass(frozen=True)
class FabricRail:
    """A rail, as its host reads it from the kernel.

    - ``device``, ``port``: the RDMA device and its port; ``netdev``: the interface.
    - ``address``: an IPv4 address, empty for none; ``gid``: its RoCE v2 index, -1 for none.
    - ``layer``: "Ethernet" or "InfiniBand"; ``state``: the kernel's word, such as "ACTIVE".
    - ``mtu``: the interface's; ``path_mtu``: RDMA's, 0 if unknown.
    - ``rate``: in Gb/s; 0 if unknown, and for devices of software, whose rate means nothing.
    - ``lanes``: the kernel's text of rate and width, such as "100 Gb/sec (4X EDR)".
    - ``pcie``, ``pcie_most``: the present and the best PCIe link, such as "16.0 GT/s PCIe x16"; empty if unknown.
    - ``traffic_class``: -1 if unknown.
    - ``errors``: the port's error counters.
    """

    device: str
    port: int
    netdev: str
    address: str = ""
    gid: int = -1
    layer: str = ""
    state: str = ""
    mtu: int = 0
    path_mtu: int = 0
    rate: float = 0.0
    lanes: str = ""
    pcie: str = ""
    pcie_most: str = ""
    traffic_class: int = -1
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Participant:
    """A host, a pod, or any other network namespace that takes part.

    - ``name``: its hostname; ``memlock``: its limit of locked memory in bytes, -1 for none.
    - ``trouble``: why it can run no test at all; empty if it can.
    """

    name: str
    rails: tuple[FabricRail, ...]
    memlock: int = -1
    trouble: str = ""


class Reached(StrEnum):
    """How far a trial came."""

    DONE = "done"  # both ends connected, and data arrived
    UNREACHED = "unreached"  # nothing arrived: no answer at the address, or no RDMA connection
    BROKEN = "broken"  # the connection ended under load
    STALLED = "stalled"  # messages arrived, and the bandwidth test did not end in time
    NOT_RUN = "not run"  # an end could not try


@dataclass(frozen=True)
class Trial:
    """One rail between two hosts, once.

    - ``forth``, ``back``: Gb/s from the first host to the other, and back; None if unknown.
    - ``latency``: microseconds in one direction, None if unknown.
    - ``detail``: a sentence for anything but DONE.
    - ``round``: its number; trials of a round ran at once.
    - ``to_rail``: the other host's rail, if it is another one: they must not reach each other.
    - ``remarks``: sentences about what perftest used that is not what the hosts reported.
    """

    ends: Ends
    rail: int
    reached: Reached
    forth: float | None = None
    back: float | None = None
    latency: float | None = None
    detail: str = ""
    round: int = 0
    to_rail: int = -1
    remarks: tuple[str, ...] = ()

    @property
    def spots(self) -> tuple[Spot, Spot]:
        other = self.rail if self.to_rail < 0 else self.to_rail
        return Spot(self.ends.one, self.rail), Spot(self.ends.other, other)

    @property
    def bandwidth(self) -> float | None:
        """The slower direction, in Gb/s; None if a direction is unknown."""
        return min(self.forth, self.back) if self.forth is not None and self.back is not None else None


class Verdict(StrEnum):
    """The verdict on a trial.  NOT_RUN is never a statement about the fabric."""

    OK = "ok"
    SLOW = "slow"
    CUT = "cut"
    LEAKS = "leaks"
    NOT_RUN = "not run"


BAD = (Verdict.SLOW, Verdict.CUT)


@dataclass(frozen=True)
class Limits:
    """The limits of bandwidth and latency.

    - ``of_median``: the least share of the round's median bandwidth.
    - ``of_rate``: the least share of the port's rate, where that is known.
    - ``of_least``: the most, as a multiple of the run's least latency; 0 for no limit.
    """

    of_median: float = 0.93
    of_rate: float = 0.9
    of_least: float = 2.1


@dataclass(frozen=True)
class Judged:
    """A trial with its verdict; ``why``: a sentence for anything but OK."""

    trial: Trial
    verdict: Verdict
    why: str = ""


class Culprit(StrEnum):
    """The part of the fabric that a finding names."""

    RAIL = "rail"  # one host's rail: it was bad with two partners
    PATH = "path"  # between two hosts whose rails are good with others
    PAIR = "pair"  # one of two rails, or the path: no good partner was there to decide
    LEAK = "leak"  # two rails that must not reach each other


@dataclass(frozen=True)
class Blame:
    """A finding: the culprit, the spots that it concerns (one for RAIL), the worst verdict, and what supports it."""

    culprit: Culprit
    spots: tuple[Spot, ...]
    verdict: Verdict
    evidence: tuple[Judged, ...] = ()
    causes: tuple[str, ...] = ()
