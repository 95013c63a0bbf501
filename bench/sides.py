"""The compared programs, each run as a runtime runs it: a new process per command."""

import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "netns-fixtures"))
sys.path.insert(0, str(Path(__file__).parent.parent))

from fabric import container_id, netns_path

from agent.workers import WORKERS
from base.kernel import addresses, links, netlink, netns, rtnl

VERBS = ("ADD", "DEL")
_ECHO, _ECHO_REPLY = 128, 129  # ICMPv6
_CPUCLOCK_SCHED = 2  # linux/posix-timers.h
_FORKED = multiprocessing.get_context("fork")


def spawned(argv: list[str], environ: dict[str, str], given: bytes, *, quiet: bool = False) -> tuple[int, int]:
    """Its process, and the file of its answer.  subprocess would take longer than the measured command."""
    stdin, stdout = os.memfd_create("stdin"), os.memfd_create("stdout")
    os.write(stdin, given)
    os.lseek(stdin, 0, os.SEEK_SET)
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, stdout, 1)]
    if quiet:
        actions.append((os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0))
    pid = os.posix_spawn(argv[0], argv, environ, file_actions=actions)
    os.close(stdin)
    return pid, stdout


def workers(agent_pid: int) -> list[int]:
    """The processes of an agent that work.  It has had a request."""
    return [int(pid) for pid in Path(f"/proc/{agent_pid}/task/{agent_pid}/children").read_text().split()]


def spent(processes: Sequence[int]) -> float:
    """Seconds of processor time of living processes, by their clocks (man 3 clock_getcpuclockid)."""
    return sum(time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED) for pid in processes)


@dataclass
class Side:
    """A program, and its times: milliseconds per verb and round.  ``spent`` are those of the processor, where they are
    measured.  ``quiet`` keeps its log from the terminal."""

    name: str
    binary: Path
    conf: dict[str, Any]
    variables: dict[str, str]
    times: dict[str, list[float]] = field(default_factory=lambda: {verb: [] for verb in VERBS})
    quiet: bool = False
    spent: dict[str, list[float]] = field(default_factory=lambda: {verb: [] for verb in VERBS})

    def environment(self, verb: str, pod: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container_id(pod),
            "CNI_NETNS": netns_path(pod),
            "CNI_IFNAME": "hpn0",
            "CNI_PATH": str(self.binary.parent),
            # Make's directory; otherwise the launcher would leave files in an installed program's place.
            **{name: value for name, value in os.environ.items() if name == "HPN_PROGRAM_DIR"},
            **self.variables,
        }

    def argv(self, _verb: str, _pod: str) -> list[str]:
        return [str(self.binary)]

    def start(self, verb: str, pod: str) -> tuple[int, int]:
        """As ``spawned``."""
        return spawned(
            self.argv(verb, pod), self.environment(verb, pod), json.dumps(self.conf).encode(), quiet=self.quiet
        )

    def end(self, verb: str, status: int, stdout: int) -> None:
        """Raises SystemExit if the command failed."""
        if status:
            sys.exit(f"{self.name}: {verb} failed: {os.pread(stdout, 4096, 0).decode()}")
        os.close(stdout)

    def one_by_one(self, verb: str, pods: Sequence[str]) -> float:
        """The milliseconds of one command from exec to exit."""
        started = time.perf_counter()
        for pod in pods:
            pid, stdout = self.start(verb, pod)
            self.end(verb, os.waitpid(pid, 0)[1], stdout)
        return (time.perf_counter() - started) * 1000 / len(pods)

    def together(self, verb: str, pods: Sequence[str], at_once: int) -> float:
        """The milliseconds for all of them, this many at a time."""
        waiting, working = list(pods), dict[int, int]()
        started = time.perf_counter()
        while waiting or working:
            while waiting and len(working) < at_once:
                pid, stdout = self.start(verb, waiting.pop())
                working[pid] = stdout
            pid, status = os.wait3(0)[:2]
            if pid in working:  # and not the agent, should it end
                self.end(verb, status, working.pop(pid))
        return (time.perf_counter() - started) * 1000


@dataclass
class Chain(Side):
    """A main plugin and further plugins, as libcni calls them: ADD in order, each with the previous result, and DEL in
    reverse, each with the final result."""

    others: tuple[Side, ...] = ()
    results: dict[str, Any] = field(default_factory=dict)

    def one_by_one(self, verb: str, pods: Sequence[str]) -> float:
        """Side's for the whole chain."""
        chain: tuple[Side, ...] = (self, *self.others)
        started = time.perf_counter()
        for pod in pods:
            for side in chain if verb == "ADD" else reversed(chain):
                previous = {"prevResult": self.results[pod]} if pod in self.results else {}
                pid, stdout = replace(side, conf={**side.conf, **previous}).start(verb, pod)
                status = os.waitpid(pid, 0)[1]
                if verb == "ADD" and not status:
                    self.results[pod] = json.loads(os.pread(stdout, 65536, 0))
                side.end(verb, status, stdout)
            if verb == "DEL":
                del self.results[pod]
        return (time.perf_counter() - started) * 1000 / len(pods)


@dataclass
class Reaching(Side):
    """ADD until ``neighbour``, an IPv6 address on the pod's link, has answered the first packet: neither has the other
    in its neighbour table, and the packet leaves when ADD has returned."""

    neighbour: str = ""

    def one_by_one(self, verb: str, pods: Sequence[str]) -> float:
        """Side's with the answer."""
        if verb != "ADD":
            return super().one_by_one(verb, pods)
        [pod] = pods
        with netns.hold_open(netns_path(pod)) as fd:
            sock = netns.run_in(fd, lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6))
        with sock:
            sock.settimeout(30)
            started = time.perf_counter()
            super().one_by_one(verb, pods)
            sock.sendto(bytes([_ECHO, 0, 0, 0, 0, 1, 0, 1]), (self.neighbour, 0))  # the kernel fills in the checksum
            while sock.recv(2048)[0] != _ECHO_REPLY:
                pass
            return (time.perf_counter() - started) * 1000


class Asking(Side):
    """The cost of a process and a request without work: VERSION, whatever verb is measured beside it."""

    def environment(self, _verb: str, pod: str) -> dict[str, str]:
        return super().environment("VERSION", pod)


class Floor(Side):
    """The unavoidable cost: the kernel's work, requested by a warm loop, and one sync of 512 bytes to the disk, of the
    file ``binary``.  For many at once, by as many loops as the agent has workers."""

    def together(self, verb: str, pods: Sequence[str], at_once: int) -> float:
        """Side's without processes except the loops, after all loops have started."""
        loops = min(at_once, WORKERS)
        barrier = _FORKED.Barrier(loops + 1, timeout=60)

        def loop(n: int) -> None:
            barrier.wait()
            replace(self, binary=self.binary.with_suffix(f".{n}")).one_by_one(verb, pods[n::loops])
            barrier.wait()

        processes = [_FORKED.Process(target=loop, args=(n,)) for n in range(loops)]
        for process in processes:
            process.start()
        barrier.wait()
        started = time.perf_counter()
        barrier.wait()
        took = (time.perf_counter() - started) * 1000
        for process in processes:
            process.join()
        return took

    def one_by_one(self, verb: str, pods: Sequence[str]) -> float:
        """Side's without a process."""
        lease = os.open(self.binary, os.O_WRONLY | os.O_CREAT)
        with rtnl.open_in() as host:
            master = host.link(self.conf["master"])
            assert master
            started = time.perf_counter()
            for pod in pods:
                with netns.hold_open(netns_path(pod)) as fd, rtnl.open_in(fd) as inside:
                    if verb == "ADD":
                        self._add(host, inside, fd, master.index)
                    elif link := inside.link("hpn0"):
                        rtnl.delete_link(inside, link.index)
                os.pwrite(lease, bytes(512), 0)
                os.fdatasync(lease)
            took = (time.perf_counter() - started) * 1000 / len(pods)
        os.close(lease)
        return took

    @staticmethod
    def _add(host: rtnl.Rtnl, inside: rtnl.Rtnl, fd: int, master: int) -> None:
        bridge = netlink.attr(1, netlink.u32(4))  # IFLA_MACVLAN_MODE
        body = links.new_link(kind="macvlan", data=bridge, parent=master, name="hpn0", ns_fd=fd)
        host.change(links.RTM_NEWLINK, netlink.NLM_F_CREATE | netlink.NLM_F_EXCL, body)
        link = inside.link("hpn0")
        assert link
        inside.change_all([addresses.adding_address(link.index, IPv4Interface("10.58.0.2/16")), links.setting_up(link)])
