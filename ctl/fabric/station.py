"""A host's part in a test: it reports its rails, and runs perftest at the requests of one authenticated client."""

import os
import select
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Final

from base.kernel import sysfs
from base.protocol.errors import DecodeFailure, LinkUnavailable
from base.protocol.spec import Json
from ctl.fabric import messages, perftest, rails
from ctl.fabric.channel import Channel
from ctl.fabric.messages import Operation, Ran, Served, Target
from ctl.fabric.model import FabricRail, Participant, Reached
from ctl.fabric.perftest import Settings, Stage
from ctl.fabric.processes import Running, ended, listens, report_file

_POLL: Final = 0.02
_PROBE: Final = 5.0  # seconds for an answer at an address
_FINISH: Final = 3.0  # seconds for a server to end after its client


@dataclass(frozen=True)
class Program:
    """An installed program of perftest: its path, and its long options."""

    path: str
    options: frozenset[str]


class Station:
    """This network namespace as a participant."""

    def __init__(self, wanted: Sequence[str], root: Path = sysfs.SYS) -> None:
        """``wanted`` names interfaces or RDMA devices, in the order of the rails; empty for all.  Raises
        LinkUnavailable."""
        self._wanted, self._root = wanted, root
        self._rails = rails.read(wanted, root)
        self._programs = {name: program for name in perftest.PROGRAMS if (program := _program(name))}
        self._servers = dict[int, Running]()
        self._stage = Stage.MESSAGE
        self._probes = ExitStack()

    @property
    def rails(self) -> tuple[FabricRail, ...]:
        return self._rails

    def participant(self) -> Participant:
        """This host with its rails as they are now; as they were, if one that is wanted has gone."""
        with suppress(LinkUnavailable, OSError):
            self._rails = rails.read(self._wanted, self._root)
        lacking = [name for name in perftest.PROGRAMS if name not in self._programs]
        trouble = f"{lacking[0]} is not installed here; install the package {perftest.PACKAGE}" if lacking else ""
        return Participant(socket.gethostname(), self._rails, rails.memlock(), trouble)

    def serve(self, channel: Channel, first: Json | None = None) -> None:
        """Answer requests until the client says goodbye.  Raises Ended if the connection ends before, DecodeFailure if
        the client sends anything else.  No process remains."""
        request = self._next(channel) if first is None else first
        try:
            while messages.word(request, "operation", Operation) is not Operation.BYE:
                channel.send(self._answer(request, channel))
                request = self._next(channel)
        finally:
            self._end_servers()

    def _next(self, channel: Channel) -> Json:
        """The next request; a host may wait for its turn for hours.  Servers whose time is over are ended meanwhile."""
        while (request := channel.take()) is None:
            select.select([channel], [], [], 1.0 if self._servers else None)
            if any(one.until < time.monotonic() for one in self._servers.values()):
                self._end_servers()
        return request

    def _answer(self, request: Json, channel: Channel) -> Json:
        operation = messages.word(request, "operation", Operation)
        if operation is Operation.HELLO:
            return messages.hello(self.participant())
        if operation is Operation.STOP:
            return messages.by_rail(self._stop())
        stage, settings = messages.word(request, "stage", Stage), messages.settings(request)
        if operation is Operation.SERVE:
            chosen = messages.rails(request, len(self._rails))
            return messages.by_rail(self._serve(stage, chosen, settings))
        return messages.by_rail(self._measure(stage, messages.targets(request, len(self._rails)), settings, channel))

    def _serve(self, stage: Stage, chosen: Sequence[int], settings: Settings) -> Mapping[int, Served]:
        """Start a server on each of these rails, in place of all earlier ones."""
        self._end_servers()
        self._stage = stage
        answers = dict[int, Served]()
        for number in chosen:
            try:
                answers[number] = self._start(stage, number, settings)
            except (OSError, DecodeFailure) as e:
                answers[number] = Served(trouble=f"{e}")
        until = time.monotonic() + settings.patience
        waiting = {*self._servers}
        while waiting and time.monotonic() < until:
            waiting -= {one for one in waiting if listens(answers[one].port) or self._servers[one].status is not None}
            time.sleep(_POLL)
        for number, server in self._servers.items():
            if server.status is not None or number in waiting:
                reason = perftest.failure(stage, server.output)[1]
                answers[number] = Served(trouble=f"{stage.program}: {reason}")
        return answers

    def _start(self, stage: Stage, number: int, settings: Settings) -> Served:
        """Start a server, and the probe of its rail's address.  Raises OSError, DecodeFailure."""
        rail = self._rails[number]
        port = _free_port(rail.address)
        words = self._command(stage, rail, port, settings)
        seconds = settings.seconds + 3.0 * settings.patience
        probe = self._probes.enter_context(socket.create_server((rail.address, 0), backlog=8))
        self._servers[number] = Running(words, seconds, report_file()[0])
        return Served(port, probe.getsockname()[1])

    def _command(self, stage: Stage, rail: FabricRail, port: int, settings: Settings) -> list[str]:
        """Raises DecodeFailure if perftest lacks an option."""
        program = self._programs.get(stage.program)
        if not program:
            raise DecodeFailure(f"{stage.program} is not installed; install the package {perftest.PACKAGE}")
        if option := perftest.missing(program.options, settings):
            raise DecodeFailure(f"{stage.program} of this version has no option {option}; install a newer perftest")
        return [program.path, *perftest.command(stage, rail, port, settings, program.options)[1:]]

    def _measure(
        self, stage: Stage, found: Sequence[Target], settings: Settings, channel: Channel
    ) -> Mapping[int, Ran]:
        """Run a client to each target, all at once.  Raises Ended if the connection ends meanwhile."""
        answers, running = dict[int, Ran](), dict[int, Running]()
        processes = list[Running]()
        with ended(processes):
            for target in self._probed(found, answers):
                rail = self._rails[target.rail]
                seconds = settings.patience + (settings.seconds if stage is Stage.BANDWIDTH else 0.0)
                try:
                    words = self._command(stage, rail, target.port, settings)
                    fd, path = report_file()
                    running[target.rail] = Running(perftest.client(words, path, target.address), seconds, fd)
                except (OSError, DecodeFailure) as e:
                    answers[target.rail] = Ran(Reached.NOT_RUN, detail=f"{e}")
                else:
                    processes.append(running[target.rail])
            _wait(processes, channel)
            answers |= {number: _ran(stage, one) for number, one in running.items()}
        return answers

    def _probed(self, found: Sequence[Target], answers: dict[int, Ran]) -> Iterator[Target]:
        """The targets whose address answers to the rail's own address and interface.  The others get their answer."""
        for target, trouble in zip(found, _probe(found, self._rails), strict=True):
            if trouble:
                answers[target.rail] = Ran(Reached.UNREACHED, detail=trouble)
            else:
                yield target

    def _stop(self) -> Mapping[int, Ran]:
        """The servers' side: what they used, and the reason of those that failed by themselves."""
        until = time.monotonic() + _FINISH
        while any(one.status is None for one in self._servers.values()) and time.monotonic() < until:
            time.sleep(_POLL)
        answers = {}
        for number, server in self._servers.items():
            reached, detail = Reached.DONE, ""
            if server.status:
                reached, detail = perftest.failure(self._stage, server.output)
            answers[number] = Ran(reached, detail=detail, used=perftest.used_by_server(server.output))
        self._end_servers()
        return answers

    def _end_servers(self) -> None:
        while self._servers:
            self._servers.popitem()[1].end()
        self._probes.close()


def _wait(processes: Sequence[Running], channel: Channel) -> None:
    """Wait until each has ended, or its time is over.  Raises Ended if the connection ends, DecodeFailure for a request
    meanwhile."""
    while any(one.status is None and time.monotonic() < one.until for one in processes):
        select.select([channel], [], [], _POLL)
        if channel.take() is not None:
            raise DecodeFailure("a request before the answer to the last one")


def _ran(stage: Stage, process: Running) -> Ran:
    """The result of a client."""
    status = process.status
    if status is None:
        reached = Reached.UNREACHED if stage is Stage.MESSAGE else Reached.STALLED
        return Ran(reached, detail=f"{stage.program} did not end in time")
    if status:
        reached, reason = perftest.failure(stage, process.output)
        return Ran(reached, detail=f"{stage.program}: {reason}")
    try:
        measured = perftest.parse(process.written)
    except DecodeFailure as e:
        return Ran(Reached.NOT_RUN, detail=f"{e}")
    return Ran(Reached.DONE, measured.latency if measured.bandwidth is None else measured.bandwidth, used=measured.used)


def _probe(found: Sequence[Target], known: Sequence[FabricRail]) -> list[str]:
    """Connect to every target's probe at once, from its rail; why each cannot be reached, empty if it can."""
    troubles, waiting = [""] * len(found), dict[int, socket.socket]()
    with ExitStack() as stack:
        for at, target in enumerate(found):
            if target.probe:
                try:
                    waiting[at] = stack.enter_context(_connecting(known[target.rail], target))
                except OSError as e:
                    troubles[at] = f"no TCP connection to {target.address}: {e.strerror or e}"
        until = time.monotonic() + _PROBE
        while waiting and (rest := until - time.monotonic()) > 0:
            for sock in select.select([], list(waiting.values()), [], rest)[1]:
                at = next(one for one, its in waiting.items() if its is sock)
                del waiting[at]
                if refused := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    troubles[at] = f"no TCP connection to {found[at].address}: {os.strerror(refused)}"
        for at in waiting:
            troubles[at] = f"no answer from {found[at].address} within {_PROBE:g} s"
    return troubles


def _connecting(rail: FabricRail, target: Target) -> socket.socket:
    """A socket that connects from the rail's address and interface, and no other.  Raises OSError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with suppress(PermissionError):  # Linux before 5.7 demands CAP_NET_RAW
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, rail.netdev.encode())
        sock.bind((rail.address, 0))
        with suppress(BlockingIOError):
            sock.connect((target.address, target.probe))
    except OSError:
        sock.close()
        raise
    return sock


def _free_port(address: str) -> int:
    """A TCP port of the address that is free now.  Raises OSError."""
    with socket.create_server((address, 0)) as sock:
        return int(sock.getsockname()[1])


def _program(name: str) -> Program | None:
    """The program of perftest on PATH with its options; None if it is not installed."""
    path = which(name)
    if not path:
        return None
    try:
        # Its status is 1 or 0, by version.
        done = subprocess.run([path, "--help"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return Program(path, perftest.options(done.stdout + done.stderr))
