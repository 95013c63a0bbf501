"""hpn fabric: prove the fabric between hosts, every rail of each against those of the others; and its wiring."""

import argparse
import errno
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from base.kernel import sysfs
from base.protocol import written
from base.protocol.errors import BadEnvironment, CniError, InvalidConfig, IoFailure
from base.table import printable_lines
from ctl.command_line import as_document, parser_for
from ctl.fabric import fleet as fleets
from ctl.fabric import schedule
from ctl.fabric.blaming import Inquiry, batches
from ctl.fabric.causes import Facts
from ctl.fabric.channel import Ended, new_token
from ctl.fabric.document import Result, document, parts
from ctl.fabric.door import admit, listen
from ctl.fabric.fleet import PORT, Address, Fleet
from ctl.fabric.judging import Rates, judge, judge_isolation, yardstick
from ctl.fabric.messages import SETTINGS
from ctl.fabric.model import Blame, Culprit, Ends, Judged, Limits, Spot, Trial, Verdict
from ctl.fabric.page import page
from ctl.fabric.perftest import Settings
from ctl.fabric.station import Station
from ctl.fabric.trials import Trials
from ctl.fabric.wiring import command as wiring
from ctl.screen import progress, show, text

Parsed = TypeVar("Parsed")

_CANNOT: Final = 2
_EXAMPLE: Final = """\
example:
  node1# hpn fabric serve --bind 10.0.0.1

  node2# hpn fabric test TOKEN@10.0.0.1:18500
"""
_FAILS: Final = "a rail is slow, cut, leaks or miswired, 2 if one could not be tested"


def answer(words: Sequence[str], root: Path = sysfs.SYS) -> tuple[str, int]:
    """The command's output and exit status."""
    whole = parser()
    options = whole.parse_args(words)
    if options.command == "serve":
        return _serve(options, root)
    if options.command == "wiring":
        return wiring.answer(options, root)
    try:
        return _test(options, root)
    except (CniError, OSError) as e:
        _complain(getattr(e, "msg", "") or f"{e}")
        return "", _CANNOT  # status 1 would be a finding


def parser() -> argparse.ArgumentParser:
    """The options of all subcommands."""
    about = "Prove the fabric between hosts: every rail against those of others, and how they are wired."
    whole = parser_for("fabric", about, _EXAMPLE, fails=_FAILS)
    commands = whole.add_subparsers(dest="command", required=True)
    about = "take part in a test that another host runs; print the word that it needs"
    serve = commands.add_parser("serve", help=about, description=about)
    about = "interfaces or RDMA devices, in the order of the rails; default: all but VFs beside their PF"
    serve.add_argument("rail", nargs="*", help=about)
    serve.add_argument(
        "--bind", type=_refusing(_bind), default=("127.0.0.1", PORT), metavar="ADDRESS[:PORT]",
        help=f"listen only there; default 127.0.0.1:{PORT}; port 0: any free one",
    )  # fmt: skip
    about = "test the rails of this host and of those that serve"
    test = commands.add_parser("test", help=about, description=about)
    about = "TOKEN@ADDRESS:PORT, which serve prints"
    test.add_argument("host", nargs="*", type=_refusing(fleets.address), metavar="HOST", help=about)
    about = "more of them, one a line; - for stdin"
    test.add_argument("--hosts", type=_refusing(_listed), default=[], metavar="FILE", help=about)
    test.add_argument("--here", action="append", default=[], metavar="RAIL", help="a rail of this host; default: all")
    _add_plan(test)
    _add_limits(test)
    test.add_argument("--json", type=Path, metavar="FILE", help="write the result as a JSON document")
    test.add_argument("--html", type=Path, metavar="FILE", help="write the result as one HTML page")
    wiring.add(commands)
    return whole


def _add_plan(test: argparse.ArgumentParser) -> None:
    plan = test.add_mutually_exclusive_group()
    plan.add_argument("--full", action="store_true", help="every host with every other (default)")
    plan.add_argument("--quick", action="store_true", help="each host with one other")
    about = "lines ROUND HOST HOST, by hostname"
    plan.add_argument("--pairs", dest="listed", type=_refusing(_text_of), metavar="FILE", help=about)
    test.add_argument("--rails", type=_refusing(schedule.rails_of), metavar="0-7", help="only these rails")
    test.add_argument("--one-by-one", action="store_true", help="each pair and rail alone, not all of a round at once")
    test.add_argument("--isolated", action="store_true", help="rails of different numbers must not reach each other")


def _add_limits(test: argparse.ArgumentParser) -> None:
    default, chosen = Limits(), Settings()
    for name, value, about in (
        ("--of-median", default.of_median, "least share of the round's median bandwidth"),
        ("--of-rate", default.of_rate, "least share of the port's rate"),
        ("--of-least", default.of_least, "most, as a multiple of the least latency; 0 for no limit"),
    ):
        test.add_argument(name, type=_refusing(_share), default=value, metavar="N", help=f"{about}; default {value}")
    for option, name, about in (
        ("--seconds", "seconds", "of each bandwidth test"),
        ("--queue-pairs", "pairs", "of each bandwidth test"),
        ("--patience", "patience", "seconds for a program that should have ended"),
        ("--qp-timeout", "timeout", "retransmission after 4.096 us * 2^N"),
        ("--traffic-class", "traffic_class", ""),
        ("--gpu", "gpu", "this CUDA device's memory (never run)"),
    ):
        number = getattr(chosen, name)
        about = ", ".join(filter(None, (about, f"default {number}" if number >= 0 else "")))  # noqa: PLW2901
        kind = _refusing(partial(_whole, *SETTINGS[name]))
        test.add_argument(option, dest=name, type=kind, default=number, metavar="N", help=about)


def _refusing(read: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """An argparse type that shows why ``read`` refuses a word, which may be secret."""

    def parsed(word: str) -> Parsed:
        try:
            return read(word)
        except (ValueError, OSError) as e:
            raise argparse.ArgumentTypeError(f"{e}") from e

    return parsed


def _whole(least: int, most: int, word: str) -> int:
    if not least <= (value := written.number(word)) <= most:
        raise ValueError(f"{word!r} is not a number from {max(least, 0)} to {most}")
    return value


def _share(word: str) -> float:
    if not 0 <= (value := float(word)) <= 1e6:  # true for nan
        raise ValueError(f"{word!r} is not a number of at least 0")
    return value


def _bind(word: str) -> tuple[str, int]:
    """An address of this host and a port.  Not one that stands for all addresses."""
    host, port = fleets.endpoint(word)
    if written.address(host).is_unspecified:
        raise ValueError(f"{word!r} is every address of this host; name one that the tester reaches")
    return host, port


def _text_of(file: str) -> str:
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")


def _listed(file: str) -> list[Address]:
    """The hosts of a file, one a line."""
    return [fleets.address(line) for line in _text_of(file).splitlines() if line.strip()]


def _serve(options: argparse.Namespace, root: Path) -> tuple[str, int]:
    """Serve one test.  The token is printed, and is worthless after it."""
    station = Station(options.rail, root)
    if not station.rails:
        raise BadEnvironment("this network namespace has no rail, an RDMA port with an interface; see: hpn devices")
    (host, port), token = options.bind, new_token()
    try:
        listener = listen(host, port)
    except OSError as e:
        hint = "; the port is in use" if e.errno == errno.EADDRINUSE else "; name an address of this host"
        raise IoFailure(f"--bind {host}:{port}: {os.strerror(e.errno or 0)}{hint}") from e
    with listener:
        show(f"{token}@{Address(host, listener.getsockname()[1], token).name}\n")
        try:
            channel, first = admit(listener, token)
        except KeyboardInterrupt:
            return "", 0
    try:
        station.serve(channel, first)
    except KeyboardInterrupt:
        raise Ended("interrupted; the test goes on without this host") from None
    finally:
        channel.close()
    return "the test has ended\n", 0


def _test(options: argparse.Namespace, root: Path) -> tuple[str, int]:
    """Run the test.  Raises CniError, OSError if it cannot be run."""
    addresses = [*options.host, *options.hosts]
    own = Station(options.here, root)
    if len(addresses) + bool(own.rails) < 2:
        raise InvalidConfig("a test needs two hosts with rails: name HOST, as hpn fabric serve prints it there")
    limits = Limits(options.of_median, options.of_rate, options.of_least)
    settings = Settings(**{name: getattr(options, name) for name in SETTINGS})
    begun, now = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    try:
        with fleets.opened(addresses, own if own.rails else None) as fleet:
            found = _Test(fleet, settings, limits, options).result(begun, now)
    except KeyboardInterrupt:
        raise IoFailure("interrupted; every host has ended its programs") from None
    body, status = document(found), found.status
    for file, content in ((options.json, as_document(body)), (options.html, page(body))):
        if file:
            try:
                file.write_text(content, encoding="utf-8")
            except OSError as e:  # the rest of the result is not lost
                _complain(f"{file}: {e.strerror}")
                status = _CANNOT
    return text(parts(found)), status


def _complain(why: str) -> None:
    sys.stderr.write(printable_lines(f"hpn fabric test: {why}\n"))


class _Test:
    """One run: the rounds of the plan, the repeated trials, the isolation of rails."""

    def __init__(self, fleet: Fleet, settings: Settings, limits: Limits, options: argparse.Namespace) -> None:
        self._fleet, self._settings, self._limits, self._options = fleet, settings, limits, options
        self._trials = Trials(fleet, settings)
        hosts = fleet.participants
        most = max((len(one.rails) for one in hosts), default=0)
        self._rails = [rail for rail in range(most) if options.rails is None or rail in options.rails]
        spots = [Spot(host, rail) for host in range(len(hosts)) for rail in self._rails]
        self._rates = Rates({spot: rail.rate for spot in spots if (rail := self._trials.rail(spot))})

    def result(self, begun: float, now: str) -> Result:
        """Run everything.  Raises InvalidConfig for a wrong file of pairs."""
        plan = self._plan()
        trials = [
            trial
            for number, pairs in enumerate(progress(plan, "Rounds"))
            for trial in self._run(number, [(pair, rail, rail) for pair in pairs for rail in self._rails])
        ]
        measure = yardstick(trials, self._rates)
        judged = [judge(trial, measure, self._rates, self._limits) for trial in trials]
        inquiry, repeated = Inquiry(judged, self._fleet.lost), list[Judged]()
        number = len(plan)
        while wanted := inquiry.next_trials():
            for batch in progress([*batches(wanted)], "Repeating"):
                found = self._run(number, [(pair, rail, rail) for pair, rail in batch])
                again = [judge(trial, measure, self._rates, self._limits) for trial in found]
                inquiry.add(again)
                repeated += again
                number += 1
        isolation = [judge_isolation(one, judged) for one in self._across(plan[:1], number)]
        leaking = [one for one in isolation if one.verdict is Verdict.LEAKS]
        leaks = [Blame(Culprit.LEAK, one.trial.spots, one.verdict, (one,)) for one in leaking]
        facts = Facts(self._fleet.participants, self._fleet.again())
        return Result(
            facts, self._limits, self._settings, judged, repeated, isolation, [*inquiry.blames(), *leaks],
            time.monotonic() - begun, now,
        )  # fmt: skip

    def _plan(self) -> list[list[Ends]]:
        names = [one.name for one in self._fleet.participants]
        if self._options.listed is not None:
            return schedule.from_lines(self._options.listed, names)
        return (schedule.quick if self._options.quick else schedule.full)(len(names))

    def _across(self, plan: Sequence[Iterable[Ends]], number: int) -> list[Trial]:
        """The trials of rails that must not reach each other: those of the first round's pairs."""
        if not self._options.isolated:
            return []
        found = list[Trial]()
        count = len(self._rails)
        for shift in progress(range(1, count), "Isolation"):
            turned = [*zip(self._rails, [*self._rails[shift:], *self._rails[:shift]], strict=True)]
            wanted = [(pair, *two) for pairs in plan for pair in pairs for two in turned]
            found += self._run(number + shift - 1, wanted)
        return found

    def _run(self, number: int, wanted: Sequence[tuple[Ends, int, int]]) -> list[Trial]:
        groups = [[one] for one in wanted] if self._options.one_by_one else [wanted]
        return [trial for group in groups for trial in self._trials.run(number, group)]
