"""An rtnetlink socket for what every ADD and DEL needs (man 7 rtnetlink).

pyroute2's import takes longer than all the rest of an ADD, so it decodes only rare answers (dump.py).

A failure is an OSError with the kernel's errno, and with the kernel's own message if there is one (NETLINK_EXT_ACK).  A
lost answer is netlink.AnswerLost.
"""

import _thread
import errno
import os
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count
from typing import Final, Self

from base.kernel import netlink
from base.kernel.budget import REQUEST, attempts
from base.kernel.links import (
    IFF_UP,
    IFLA_IFNAME,
    IFLA_PROP_LIST,
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
    NETLINK_ADD_MEMBERSHIP,
    NETLINK_DROP_MEMBERSHIP,
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
    u32,
)
from base.kernel.netns import run_in
from base.kernel.sysfs import SYS

_series = count()  # the high bits of each Rtnl's sequence numbers
_DUMPS: Final = 3  # the most dumps for one question whose answer changes all the time
RTNLGRP_LINK: Final = 1
IFLA_GROUP: Final = 27
IFLA_NEW_NETNSID: Final = 45
_POLL: Final = 0.005
# Seconds to repeat a change while a driver resets a VF, and between two attempts; as sriov-cni does for i40e and ice.
_RESET, _PAUSE = 2.0, 0.1
_RESETTING: Final = (errno.EAGAIN, errno.EBUSY)


class Rtnl:
    """A NETLINK_ROUTE socket in one namespace, for one request at a time."""

    def __init__(self, sock: socket.socket, *, strictly: bool = False) -> None:
        self.sock, self._strictly = sock, strictly
        if strictly:
            netlink.answers_strictly(sock)
        # Another Rtnl may use the same socket (``adopt``).  It must not accept a late answer to a request of this one.
        self.sequence = next(_series) << 12 & 0x7FFFFFFF

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def call(self, kind: int, flags: int, body: bytes) -> bytes:
        """Send one message (type, flags, body); the body of the answer, empty for an acknowledgement.  Raises OSError.
        If the answer to a question is lost, the question is sent once more, because it changes nothing."""
        try:
            return self._answer(self.pack(kind, flags, body))
        except netlink.AnswerLost:
            self.reopen()
            if flags & NLM_F_ACK:
                raise
            return self._answer(self.pack(kind, flags, body))

    def _answer(self, request: bytes) -> bytes:
        received = netlink.receive(self.sock, request)
        while True:
            answer = next(received)
            length, kind, flags, sequence, _ = HEADER.unpack_from(answer)
            if sequence != self.sequence:
                continue  # left over from a request that was not followed to its end
            if kind != NLMSG_ERROR:
                return answer[HEADER.size : length]
            raise_error(answer[HEADER.size : length], flags)
            return b""

    def dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        """The bodies of all answers to a dump request.  Raises OSError.

        The kernel reports that something changed during the dump (NLM_F_DUMP_INTR).  Then the dump is repeated, and the
        caller gets the bodies again.  A pod may change things all the time, so there are at most two repetitions: what
        is missing then appeared or disappeared meanwhile.
        """
        for _ in range(_DUMPS):
            if (yield from self._dump_once(self.pack(kind, NLM_F_DUMP, body))):
                return

    def dump_known(self, kind: int, body: bytes) -> Iterator[bytes]:
        """As ``dump``; nothing if the kernel lacks the table or the family."""
        try:
            yield from self.dump(kind, body)
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.EAFNOSUPPORT, errno.EOPNOTSUPP):
                raise

    def _dump_once(self, request: bytes) -> Generator[bytes, None, bool]:
        """Yield the bodies of one dump; return whether nothing changed meanwhile."""
        whole, received = True, netlink.receive(self.sock, request)
        try:
            while True:
                for kind, flags, sequence, body in messages(next(received)):
                    if sequence != self.sequence:
                        continue  # as in _answer
                    whole = whole and not flags & NLM_F_DUMP_INTR
                    if kind == NLMSG_ERROR:
                        raise_error(body, flags)
                    if kind == NLMSG_DONE:
                        return whole
                    yield body
        except netlink.AnswerLost:
            self.reopen()  # the kernel would continue the dump
            raise

    def reopen(self) -> None:
        """Replace the socket by a new one in the same namespace, because the kernel may drop answers on the old one.
        Raises OSError."""
        sock = netlink.open_beside(self.sock)
        self.sock.close()
        self.sock = sock
        if self._strictly:
            netlink.answers_strictly(sock)

    def pack(self, kind: int, flags: int, body: bytes) -> bytes:
        """The next request as bytes.  It increments ``sequence``, and the answer has that number."""
        self.sequence += 1
        return HEADER.pack(HEADER.size + len(body), kind, flags | NLM_F_REQUEST, self.sequence, 0) + body

    def link(self, name: str = "", *, index: int = 0, filters: int = RTEXT_FILTER_SKIP_STATS) -> Link | None:
        """Equivalent to: ip link show NAME.  A name matches altnames too.  None if there is no such link.  ``filters``
        are RTEXT_FILTER_*.  Raises OSError."""
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

        One message changes everything, but not atomically: the kernel has its own order, moves first, and keeps the
        changes before a failure.
        """
        self.change(RTM_NEWLINK, 0, LINK.pack(0, 0, index, flags, mask) + b"".join(attrs))

    def add_altname(self, index: int, name: str) -> None:
        """Equivalent to: ip link property add dev DEV altname NAME."""
        self.change(RTM_NEWLINKPROP, NLM_F_CREATE | NLM_F_EXCL, altname(index, name))

    def remove_altname(self, index: int, name: str) -> None:
        """Equivalent to: ip link property del dev DEV altname NAME."""
        self.change(RTM_DELLINKPROP, 0, altname(index, name))

    def change_all(self, changes: Sequence[Change]) -> None:
        """Send the changes as one datagram, in their order.  Raises the first OSError, with a note that names the
        failed change.  The kernel tried the later changes too.  While a device resets, those that failed are repeated.
        """
        left = list(changes)

        def send() -> None:
            failed = self._send_all(left)
            left[:] = [change for change, _ in failed]
            for _, error in failed:
                raise error

        while_resetting(send)

    def _send_all(self, changes: Sequence[Change]) -> list[tuple[Change, OSError]]:
        before = self.sequence
        # The kernel always answers failures.  So only the last change requests an answer, which ends the answers.
        *others, (_, kind, flags, body) = changes
        data = [self.pack(k, f, b) for _, k, f, b in others]
        received = netlink.receive(self.sock, b"".join((*data, self.pack(kind, flags | NLM_F_ACK, body))))
        failed, sequence = list[tuple[Change, OSError]](), 0
        while sequence != self.sequence:
            ((kind, flags, sequence, body),) = messages(next(received))
            if kind != NLMSG_ERROR or sequence <= before:
                continue  # as in _answer
            try:
                raise_error(body, flags)
            except OSError as e:
                change = changes[sequence - before - 1]
                e.add_note(f"while {change[0]}")
                failed.append((change, e))
        return failed


def while_resetting(change: Callable[[], None]) -> None:
    """Make the change, and repeat it for some seconds while the driver resets the device.  Raises OSError."""
    refused: OSError | None = None
    for _ in attempts(_RESET, _PAUSE):
        try:
            change()
        except OSError as e:
            if e.errno not in _RESETTING:
                raise
            refused = e
        else:
            return
    if refused:
        raise refused


def open_in(ns_fd: int | None = None, *, strictly: bool = False) -> Rtnl:
    """A socket in the namespace of a descriptor, by default in ours.  Raises OSError.  It stays in its namespace,
    whichever thread uses it.  ``strictly``: dumps answer with only what the request names, if the kernel can."""
    return Rtnl(_socket() if ns_fd is None else run_in(ns_fd, _socket), strictly=strictly)


def real_name(name: str) -> str:
    """The name of our namespace's interface with this name or altname; the same name if there is none.  Raises OSError.

    /sys lists names only, so a configured name that it lacks may be an altname."""
    if not name or os.path.lexists(f"{SYS}/class/net/{name}"):
        return name
    with open_in() as host:
        link = host.link(name)
    return link.name if link else name


def altnames() -> dict[str, tuple[str, ...]]:
    """The altnames of our namespace's interfaces, by name; without interfaces that have none.  Raises OSError."""
    with open_in() as host:
        bodies = host.dump(RTM_GETLINK, get_link())
        named = [parse_link(body) for body in bodies if IFLA_PROP_LIST in attributes(body[LINK.size :])]
    return {link.name: link.altnames for link in named}


def adopt(fd: int) -> Rtnl:
    """A socket over a NETLINK_ROUTE socket that another process opened and will close.  Raises OSError."""
    return Rtnl(_socket(os.dup(fd)))


def _socket(fd: int | None = None) -> socket.socket:
    return netlink.open_socket(socket.NETLINK_ROUTE, fd)


def delete_link(inside: Rtnl, index: int) -> None:
    """Equivalent to: ip link delete, for the link with that index in the socket's namespace.  Raises OSError.

    Returns as soon as the kernel announces that the link has left its namespace: then its name and MAC are free.
    RTM_DELLINK returns 20 ms later, because the kernel waits for readers of the link (rcu_barrier in netdev_run_todo).
    """
    request = inside.pack(RTM_DELLINK, NLM_F_ACK, LINK.pack(0, 0, index, 0, 0))
    inside.sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_LINK)
    try:
        try:
            _send_beside(inside.sock, request)
            _wait_until_gone(inside, {index})
        finally:
            _stop_listening(inside.sock)
    except netlink.AnswerLost:
        # Any process may send to this group, and the kernel drops messages while the socket is full: poll for the link.
        inside.reopen()
        _look_until_gone(inside, index)


def delete_links(inside: Rtnl, indexes: Sequence[int]) -> set[int]:
    """Delete the links with these indexes by one message, and return those that have left their namespace.  The kernel
    waits once for the readers of all.  Raises OSError if it deletes none.

    The message names a group of links (ip link set DEV group N; rtnl_group_dellink).  This puts them into a random one
    before.  A pod can add its own links to the group, which are then deleted too.  It can take ours out, and they stay.
    """
    group = attr(IFLA_GROUP, u32(int.from_bytes(os.urandom(4)) | 1))
    phrase = "preparing links for their removal"
    inside.change_all([(phrase, RTM_NEWLINK, 0, LINK.pack(0, 0, index, 0, 0) + group) for index in indexes])
    request, left = inside.pack(RTM_DELLINK, NLM_F_ACK, LINK.pack(0, 0, 0, 0, 0) + group), set(indexes)
    inside.sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_LINK)
    try:
        _send_beside(inside.sock, request)
        _wait_until_gone(inside, left)
    finally:
        _stop_listening(inside.sock)
    return set(indexes) - left


def _send_beside(sock: socket.socket, request: bytes) -> None:
    """Send the request in a thread, because sending takes those 20 ms; here, where none can be started."""
    fd = os.dup(sock.fileno())
    try:
        # Not threading.Thread: its start() waits until the thread runs.
        _thread.start_new_thread(_send_and_close, (fd, request))
    except RuntimeError:
        _send_and_close(fd, request)


def _send_and_close(fd: int, request: bytes) -> None:
    try:
        os.write(fd, request)
    finally:
        os.close(fd)


def _wait_until_gone(inside: Rtnl, indexes: set[int]) -> None:
    """Take from ``indexes`` the links that the kernel announces as removed.  Return when none is left, or when it
    answers the request.  Raises OSError."""
    received = netlink.receive(inside.sock)
    while True:
        for kind, flags, sequence, body in messages(next(received)):
            if kind == NLMSG_ERROR and sequence == inside.sequence:
                raise_error(body, flags)
                return
            # With AF_BRIDGE, the message means that the link left a bridge.  With IFLA_NEW_NETNSID, it means that the
            # link moved to another namespace.
            if kind != RTM_DELLINK:
                continue
            family, index = LINK.unpack_from(body)[::2][:2]
            if family == socket.AF_UNSPEC and IFLA_NEW_NETNSID not in attributes(body[LINK.size :]):
                indexes.discard(index)
                if not indexes:
                    return


def _look_until_gone(inside: Rtnl, index: int) -> None:
    """Poll for the link until it is gone.  Raises OSError when the budget is spent."""
    for _ in attempts(REQUEST, _POLL):
        if inside.link(index=index) is None:
            return
    raise OSError(errno.ETIMEDOUT, "the link still exists after all waits that the request's budget allows")


def _stop_listening(sock: socket.socket) -> None:
    """Leave the group, and drop its pending announcements, which must not pass for the next answer.  Raises OSError."""
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
    """The link with that index, as soon as it has carrier; None if it has none after ``seconds``.  Raises OSError."""
    for _ in attempts(seconds, _POLL):
        link = inside.link(index=index)
        if link and link.carrier:
            return link
    return None
