"""The daemon's part of LLDP: a socket for each PF, the process that reads them, and the neighbors that count."""

import asyncio
import errno
import json
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from base.child_process import Child
from base.kernel import frames, private_flags, sysfs
from base.protocol.errors import CniError
from hardware import neighbors
from hardware.model import Device, Kind
from hardware.neighbors import Neighbor
from node.lldp import choice, lldpdu, reader
from node.lldp.choice import Heard
from node.log import Topics

TOPIC: Final = "lldp"
_AGAIN: Final = 5.0  # seconds until the next attempt to open a socket or to start the process
_MEGABIT: Final = 1000  # in a gigabit
_RIGHTS: Final = (
    "its unit needs CAP_NET_RAW and AF_PACKET: run hpn install again; its container in a DaemonSet needs NET_RAW, "
    "which the chart adds if the device file has lldp"
)
_LATER: Final = f"tried again every {_AGAIN:g} s"


class Port(NamedTuple):
    """A PF that is heard: its PCI address, and its interface."""

    pf: str
    name: str
    ifindex: int


class Listener:
    """Hears the neighbors of the PFs until ``close``.  Calls ``changed`` when ``settled`` has other values."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, topics: Topics, changed: Callable[[], None], file: Path = neighbors.FILE
    ) -> None:
        self._loop, self._topics, self._changed, self._file = loop, topics, changed, file
        self._heard = {pf: Heard(one) for pf, one in neighbors.read(file).items()}
        self.settled = {pf: one.neighbor for pf, one in self._heard.items() if one.neighbor}
        """The neighbor of each PF by its address, once it has stayed the same for ``after`` seconds."""
        self.after = 0.0
        self._settling = dict[str, tuple[object, asyncio.TimerHandle]]()  # what waits to count
        self._ports = dict[Port, socket.socket]()
        self._child: Child | None = None
        self._messages: socket.socket | None = None
        self._again: asyncio.TimerHandle | None = None
        self._wanted: frozenset[Port] = frozenset()
        self._complained = set[str]()
        self._write()

    def update(self, devices: Iterable[Device]) -> None:
        """Hear the PFs among the devices, and forget those that are gone."""
        pfs = [device for device in devices if device.kind is Kind.PF and device.link_type == "ether"]
        there = {device.id for device in pfs}
        if gone := self._heard.keys() - there:
            self._heard = {pf: one for pf, one in self._heard.items() if pf in there}
            self.settled = {pf: one for pf, one in self.settled.items() if pf in there}
            for pf in gone:
                self._unsettle(pf)
            self._write()
        wanted = frozenset(_ports(pfs))
        if wanted != self._wanted:
            self._wanted = wanted
            self._open()

    def close(self) -> None:
        """Stop; the file stays."""
        self._stop()
        if self._again:
            self._again.cancel()
        for pf in [*self._settling]:
            self._unsettle(pf)
        for sock in self._ports.values():
            sock.close()

    def forget(self) -> None:
        """Forget the problems of this topic."""
        for topic in (TOPIC, f"{TOPIC} file", *(f"{TOPIC} {pf}" for pf in self._complained)):
            self._topics.forget(topic)

    # The process

    def _open(self) -> None:
        """Open the wanted ports that are not open, close the others, and give all to a new process."""
        if self._again:
            self._again.cancel()
            self._again = None
        self._stop()
        for port in [one for one in self._ports if one not in self._wanted or not frames.is_bound(self._ports[one])]:
            self._ports.pop(port).close()
        problems, is_allowed = list[str](), True
        for port in sorted(self._wanted - self._ports.keys()):
            try:
                self._ports[port] = frames.open_receiver(port.name, lldpdu.ETHERTYPE, lldpdu.GROUPS, lldpdu.MOST)
            except OSError as e:
                if e.errno in (errno.ENODEV, None):  # it has gone just now; after its return a scan finds it new
                    self._wanted -= {port}
                else:
                    is_allowed = e.errno not in (errno.EPERM, errno.EAFNOSUPPORT)
                    remedy = _LATER if is_allowed else _RIGHTS
                    problems.append(f"lldp: no neighbor of {port.name} can be heard: {e.strerror}; {remedy}")
        try:
            self._start()
        except OSError as e:
            problems.append(f"lldp: the process that reads frames cannot start: {e.strerror}; {_LATER}")
        agents = [one for port in sorted(self._wanted) if (one := _of_firmware(port.name))]
        self._topics.report(TOPIC, *problems, *agents, is_problem=bool(problems))
        if problems and is_allowed:
            self._again = self._loop.call_later(_AGAIN, self._open)

    def _start(self) -> None:
        if not self._ports:
            return
        self._messages, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            sockets = [*self._ports.values()]
            kept = [one.fileno() for one in (*sockets, theirs)]
            self._child = Child(partial(reader.read, sockets, theirs), keeps=kept)
        self._loop.add_reader(self._messages.fileno(), self._take_one, self._messages, tuple(self._ports))
        self._loop.add_reader(self._child.fd, self._ended)

    def _stop(self) -> None:
        if self._messages:
            self._loop.remove_reader(self._messages.fileno())
            self._messages.close()
            self._messages = None
        if self._child:
            self._loop.remove_reader(self._child.fd)
            self._child.end()  # its answer is not read: a stranger may have taken over the process
            self._child = None

    def _ended(self, why: str = "has ended") -> None:
        self._stop()
        self._topics.problem(TOPIC, f"lldp: the process that reads frames {why}; see the lines above; {_LATER}")
        self._again = self._again or self._loop.call_later(_AGAIN, self._open)

    # Its messages

    def _take_one(self, messages: socket.socket, ports: tuple[Port, ...]) -> None:
        data = b""
        with suppress(ConnectionError):
            data = messages.recv(reader.MESSAGE, socket.MSG_DONTWAIT)
        if not data:
            self._ended()
            return
        try:
            self._take(ports, json.loads(data), neighbors.now())
        except (ValueError, LookupError, TypeError, RecursionError):
            self._ended("has sent what it never sends")

    def _take(self, ports: tuple[Port, ...], message: Any, now: int) -> None:
        """Note a message.  Raises ValueError, LookupError, TypeError for one that the process never sends."""
        port = ports[message["at"]]
        if "neighbor" in message:
            self._hear(port, neighbors.parsed(message["neighbor"]), now)
        elif "refused" in message:
            if port.pf not in self._complained:
                self._complained.add(port.pf)
                self._topics.report(
                    f"{TOPIC} {port.pf}",
                    f"lldp: {port.name} receives frames that are not LLDPDUs, and ignores them: "
                    f"{str(message['refused'])[: reader.MESSAGE]}; find their sender at the other end of the cable",
                )
        elif port in self._ports and not frames.is_bound(self._ports[port]):
            self._open()  # it was in another namespace, and the scans between have not noticed

    def _hear(self, port: Port, neighbor: Neighbor, now: int) -> None:
        speed = max(sysfs.number(f"/sys/class/net/{port.name}/speed"), 0) // _MEGABIT
        before = self._heard.get(port.pf, Heard())
        self._heard[port.pf] = made = choice.after(before, replace(neighbor, heard=now, speed=speed))
        if made.neighbor != before.neighbor:
            self._write()
        self._settle(port.pf, made.neighbor)

    def _settle(self, pf: str, neighbor: Neighbor | None) -> None:
        """Let the neighbor count for others once it has stayed the same for a while; the first one counts at once."""
        known, (waiting, _) = self.settled.get(pf), self._settling.get(pf, (None, None))
        if not neighbor or (known and known.essence == neighbor.essence):
            self._unsettle(pf)
        elif not known:
            self._is_settled(pf)
        elif waiting != neighbor.essence:
            self._unsettle(pf)
            self._settling[pf] = neighbor.essence, self._loop.call_later(self.after, self._is_settled, pf)

    def _unsettle(self, pf: str) -> None:
        if pf in self._settling:
            self._settling.pop(pf)[1].cancel()

    def _is_settled(self, pf: str) -> None:
        self._settling.pop(pf, None)
        if (heard := self._heard.get(pf)) and heard.neighbor:
            self.settled = {**self.settled, pf: heard.neighbor}  # the reader compares it with the one before
            self._changed()

    def _write(self) -> None:
        kept: Mapping[str, Neighbor] = {pf: one.neighbor for pf, one in self._heard.items() if one.neighbor}
        try:
            neighbors.write(kept, self._file)
        except CniError as e:
            self._topics.report(f"{TOPIC} file", f"{e.msg}; until then hpn devices shows no neighbor")
        else:
            self._topics.forget(f"{TOPIC} file")


def _ports(pfs: Iterable[Device]) -> Iterable[Port]:
    """The PFs with an interface in this namespace."""
    for device in pfs:
        for name in device.netdevs[:1]:
            with suppress(OSError):
                yield Port(device.id, name, socket.if_nametoindex(name))


def _of_firmware(name: str) -> str:
    if remedy := neighbors.taken_by_firmware(name, private_flags.read(name)):
        return f"lldp: an agent in the firmware of {name} takes the frames, so hpn node hears none; run: {remedy}"
    return ""
