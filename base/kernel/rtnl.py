"""An rtnetlink socket for what every ADD and DEL needs (man 7 rtnetlink).

pyroute2 takes longer to import than all the rest of an ADD takes to run, so it only decodes what is asked rarely
(dump.py).

A failure is an OSError with the kernel's errno and, where the kernel gave one, its own sentence (NETLINK_EXT_ACK).
Where the answer was lost, it is netlink.AnswerLost.
"""

import _thread
import errno
import os
import socket
from collections.abc import Generator, Iterator, Sequence
from itertools import count
from typing import Final, Self

from base.kernel import netlink
from base.kernel.budget import REQUEST, attempts
from base.kernel.links import (
    IFF_UP,
    IFLA_IFNAME,
    LINK,
    RTEXT_FILTER_SKIP_STATS,
    RTM_DELLINK,
    RTM_DELLINKPROP,
    RTM_GETLINK,
    RTM_NEWLINK,
    RTM_NEWLINKPROP,
    Link,
    altname,
    get_link,
    parse_link,
)
from base.kernel.netlink import (
    HEADER,
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_EXCL,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    SOL_NETLINK,
    Change,
    attr,
    attributes,
    messages,
    raise_error,
    text,
)
from base.kernel.netns import run_in

_series = count()  # of Rtnl's numbers
_DUMPS: Final = 3  # how often at most one question is asked whose answer changes all the time
NETLINK_ADD_MEMBERSHIP, NETLINK_DROP_MEMBERSHIP = 1, 2
RTNLGRP_LINK: Final = 1
IFLA_NEW_NETNSID: Final = 45
_POLL: Final = 0.005


class Rtnl:
    """A NETLINK_ROUTE socket in one namespace.  It has one request at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        # Another Rtnl may use the same socket (``adopt``).  An answer that this one did not wait for must not pass
        # for an answer to the other's request.
        self.sequence = next(_series) << 12 & 0x7FFFFFFF

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def call(self, kind: int, flags: int, body: bytes) -> bytes:
        """Send one message (type, flags, body); the body of the answer, empty for an acknowledgement.  Raises OSError.

        A question whose answer was lost is asked once more, for that changes nothing.
        """
        try:
            return self._answer(self.pack(kind, flags, body))
        except netlink.AnswerLost:
            self.reopen()  # guard: renewed
            if flags & NLM_F_ACK:  # guard: changes-once
                raise
            return self._answer(self.pack(kind, flags, body))

    def _answer(self, request: bytes) -> bytes:
        hearing = netlink.receive(self.sock, request)
        while True:
            answer = next(hearing)
            length, kind, flags, sequence, _ = HEADER.unpack_from(answer)
            if sequence != self.sequence:  # guard: sequence
                continue  # what is left of a request that nobody waited for to its end
            if kind != NLMSG_ERROR:
                return answer[HEADER.size : length]
            raise_error(answer[HEADER.size : length], flags)
            return b""

    def dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        """The bodies of all answers to a dump request.  Raises OSError.

        The kernel says if something changed during the dump (NLM_F_DUMP_INTR).  Then the dump is repeated, and the
        caller gets the bodies again.  A pod may change things all the time, so it is repeated twice at most: what is
        missing then came meanwhile or was taken away.
        """
        for _ in range(_DUMPS):  # guard: dumps-most = iter(int, 1)
            if (yield from self._dump_once(self.pack(kind, NLM_F_DUMP, body))):  # guard: dump-changed = True
                return

    def _dump_once(self, request: bytes) -> Generator[bytes, None, bool]:
        """Yield the bodies of one dump; return whether nothing changed meanwhile."""
        whole, hearing = True, netlink.receive(self.sock, request)
        try:
            while True:
                for kind, flags, sequence, body in messages(next(hearing)):
                    if sequence != self.sequence:
                        continue  # as in _answer
                    whole = whole and not flags & NLM_F_DUMP_INTR
                    if kind == NLMSG_ERROR:
                        raise_error(body, flags)
                    if kind == NLMSG_DONE:
                        return whole
                    yield body
        except netlink.AnswerLost:
            self.reopen()  # the kernel would go on with the dump
            raise

    def reopen(self) -> None:
        """Replace the socket by a new one in the same namespace, because the kernel may drop answers on the old one.

        Raises OSError.
        """
        sock = netlink.open_beside(self.sock)
        self.sock.close()
        self.sock = sock

    def pack(self, kind: int, flags: int, body: bytes) -> bytes:
        """The next request as bytes.  ``sequence`` is counted up; the answer has that number."""
        self.sequence += 1
        return HEADER.pack(HEADER.size + len(body), kind, flags | NLM_F_REQUEST, self.sequence, 0) + body

    def link(self, name: str = "", *, index: int = 0, filters: int = RTEXT_FILTER_SKIP_STATS) -> Link | None:
        """Equivalent to: ip link show NAME.  A name matches altnames too.  None if there is no such link.

        ``filters`` are RTEXT_FILTER_*.  Raises OSError.
        """
        try:
            return parse_link(self.call(RTM_GETLINK, 0, get_link(name, index, filters)))
        except OSError as e:
            if e.errno == errno.ENODEV:
                return None
            raise

    def change(self, kind: int, flags: int, body: bytes) -> None:
        """Send one message that changes something, and wait until the kernel has done it.  Raises OSError."""
        self.call(kind, flags | NLM_F_ACK, body)

    def rename(self, index: int, name: str) -> None:
        """Equivalent to: ip link set DEV name NAME."""
        self.change(RTM_NEWLINK, 0, LINK.pack(0, 0, index, 0, 0) + attr(IFLA_IFNAME, text(name)))

    def set_up(self, index: int) -> None:
        """Equivalent to: ip link set DEV up."""
        self.set_link(index, flags=IFF_UP, mask=IFF_UP)

    def set_link(self, index: int, *attrs: bytes, flags: int = 0, mask: int = 0) -> None:
        """Equivalent to: ip link set DEV ...; the IFF_* bits in ``mask`` become as in ``flags``.

        One message changes all of it, but not all or nothing: the kernel has an order of its own, moves first, and
        keeps what it did when something fails.
        """
        self.change(RTM_NEWLINK, 0, LINK.pack(0, 0, index, flags, mask) + b"".join(attrs))

    def add_altname(self, index: int, name: str) -> None:
        """Equivalent to: ip link property add dev DEV altname NAME."""
        self.change(RTM_NEWLINKPROP, NLM_F_CREATE | NLM_F_EXCL, altname(index, name))

    def remove_altname(self, index: int, name: str) -> None:
        """Equivalent to: ip link property del dev DEV altname NAME."""
        self.change(RTM_DELLINKPROP, 0, altname(index, name))

    def change_all(self, changes: Sequence[Change]) -> None:
        """Send the changes as one datagram, in their order.

        Raises the first OSError, with a note that says which change failed.  The changes after it were tried too.
        """
        before = self.sequence
        # The kernel answers failures in any case.  So only the last change asks for an answer, which ends the answers.
        *others, (_, kind, flags, body) = changes
        data = [self.pack(k, f, b) for _, k, f, b in others]
        hearing = netlink.receive(self.sock, b"".join((*data, self.pack(kind, flags | NLM_F_ACK, body))))
        failed, sequence = None, 0
        while sequence != self.sequence:
            ((kind, flags, sequence, body),) = messages(next(hearing))
            if kind != NLMSG_ERROR or sequence <= before:
                continue  # as in _answer
            try:
                raise_error(body, flags)
            except OSError as e:
                e.add_note(f"while {changes[sequence - before - 1][0]}")
                failed = failed or e
        if failed:
            raise failed


def open_in(ns_fd: int | None = None) -> Rtnl:
    """A socket in the namespace of a descriptor, by default in ours.  Raises OSError.

    It stays in its namespace, whichever thread uses it.
    """
    return Rtnl(_socket() if ns_fd is None else run_in(ns_fd, _socket))


def adopt(fd: int) -> Rtnl:
    """A socket over a NETLINK_ROUTE socket that another process has opened, and will close.  Raises OSError."""
    return Rtnl(_socket(os.dup(fd)))


def _socket(fd: int | None = None) -> socket.socket:
    return netlink.open_socket(socket.NETLINK_ROUTE, fd)


def delete_link(inside: Rtnl, index: int) -> None:
    """Equivalent to: ip link delete, for the link of that index in the socket's namespace.  Raises OSError.

    Returns as soon as the link has left its namespace, which is announced: its name and MAC are free then.
    RTM_DELLINK returns 20 ms later, because the kernel waits for readers that may still look at the link (rcu_barrier
    in netdev_run_todo).
    """
    request = inside.pack(RTM_DELLINK, NLM_F_ACK, LINK.pack(0, 0, index, 0, 0))
    inside.sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_LINK)
    try:
        try:
            # A thread sends the request, because sending lasts those 20 ms.  Not threading.Thread: its start() waits
            # until the thread runs.
            _thread.start_new_thread(_send_and_close, (os.dup(inside.sock.fileno()), request))
            _wait_until_gone(inside, index)
        finally:
            _stop_listening(inside.sock)
    except netlink.AnswerLost:
        # Anybody may send to this group, and the kernel drops messages when the socket is full: look for the link.
        inside.reopen()
        _look_until_gone(inside, index)  # guard: looked-for


def _send_and_close(fd: int, request: bytes) -> None:
    try:
        os.write(fd, request)
    finally:
        os.close(fd)


def _wait_until_gone(inside: Rtnl, index: int) -> None:
    """Return at the link's announcement that it is gone, or at the request's answer.  Raises OSError."""
    hearing = netlink.receive(inside.sock)
    while True:
        for kind, flags, sequence, body in messages(next(hearing)):
            if kind == NLMSG_ERROR and sequence == inside.sequence:
                raise_error(body, flags)  # guard: answer
                return
            # With AF_BRIDGE the message says that the link has left a bridge.  With IFLA_NEW_NETNSID it says that the
            # link was moved to another namespace.
            if (
                kind == RTM_DELLINK
                # guard below: of-this-link (index -> LINK.unpack_from(body)[2])
                # guard below: not-a-bridges (socket.AF_UNSPEC -> LINK.unpack_from(body)[0])
                and LINK.unpack_from(body)[::2][:2] == (socket.AF_UNSPEC, index)
                and IFLA_NEW_NETNSID not in attributes(body[LINK.size :])  # guard: not-moved
            ):
                return


def _look_until_gone(inside: Rtnl, index: int) -> None:
    """Look for the link until it is gone.  Raises OSError when the budget is spent."""
    for _ in attempts(REQUEST, _POLL):
        if inside.link(index=index) is None:
            return
    raise OSError(errno.ETIMEDOUT, "the link is still there after all the time that the request may wait")


def _stop_listening(sock: socket.socket) -> None:
    """Leave the group, and drop what was announced meanwhile, so that it does not pass for the next answer.

    Raises OSError.
    """
    sock.setsockopt(SOL_NETLINK, NETLINK_DROP_MEMBERSHIP, RTNLGRP_LINK)
    while True:
        try:
            sock.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as e:
            if e.errno != errno.ENOBUFS:  # messages were lost; the kernel drops answers until the socket is empty
                raise


def wait_for_carrier(inside: Rtnl, index: int, seconds: float) -> Link | None:
    """The link of that index, as soon as it has carrier; None if it has none after ``seconds``.  Raises OSError."""
    for _ in attempts(seconds, _POLL):
        link = inside.link(index=index)
        if link and link.carrier:
            return link
    return None
