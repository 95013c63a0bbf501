"""Record the frames that reach an interface, each with its sender's MAC.

The decoder shares no code with the product.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import ip_address

from support.topology import ip

from base.kernel import netns

ARP, IPV4, IPV6 = b"\x08\x06", b"\x08\x00", b"\x86\xdd"
ALL, ROCE = 3, 4791
# An advertisement counts for its target address, not for its sender.
_ICMP6 = {128: "echo", 129: "echo reply", 136: "advertisement"}


class Wire:
    """The frames from an interface's neighbours since this object was made."""

    def __init__(self, sock: socket.socket, mac: str) -> None:
        self._sock = sock
        self._mac = bytes.fromhex(mac.replace(":", ""))
        self._seen = set[tuple[str, str, str]]()

    @classmethod
    @contextmanager
    def at(cls, interface: str, pod: str = "") -> Iterator["Wire"]:
        """Open the interface of that name, here or in the namespace of that name."""

        def opened() -> socket.socket:
            return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))

        (link,) = ip("link", "show", "dev", interface, netns=pod)
        if pod:
            with open(f"/run/netns/{pod}") as space:
                sock = netns.run_in(space.fileno(), opened)
        else:
            sock = opened()
        with closing(sock):
            sock.bind((interface, ALL))
            sock.setblocking(False)
            yield cls(sock, link["address"])

    def ask(self, address: str, sender: str) -> None:
        """Broadcast an ARP request for the address."""
        head = b"\xff" * 6 + self._mac + ARP + struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1)
        self._sock.send(head + self._mac + socket.inet_aton(sender) + bytes(6) + socket.inet_aton(address))

    def seen(self, what: str) -> set[tuple[str, str]]:
        """Return (MAC, address) of all senders of "ARP request", "ARP reply", "advertisement", "echo", "echo reply" or
        "RoCE"."""
        while True:
            try:
                frame, (_, _, direction, *_) = self._sock.recvfrom(2048)
            except BlockingIOError:
                return {(mac, address) for one, mac, address in self._seen if one == what}
            if direction != socket.PACKET_OUTGOING and (found := _who(frame)):
                self._seen.add(found)


def _who(frame: bytes) -> tuple[str, str, str] | None:
    mac, kind = frame[6:12].hex(":"), frame[12:14]
    if kind == ARP:
        return {1: "ARP request", 2: "ARP reply"}[frame[21]], mac, str(ip_address(frame[28:32]))
    if kind == IPV4 and frame[23] == socket.IPPROTO_ICMP:
        return {0: "echo reply", 8: "echo"}.get(frame[34], ""), mac, str(ip_address(frame[26:30]))
    if kind == IPV4 and frame[23] == socket.IPPROTO_UDP and struct.unpack("!H", frame[36:38]) == (ROCE,):
        return "RoCE", mac, str(ip_address(frame[26:30]))
    if kind == IPV6 and frame[20] == socket.IPPROTO_ICMPV6:
        source = frame[62:78] if frame[54] == 136 else frame[22:38]
        return _ICMP6.get(frame[54], ""), mac, str(ip_address(source))
    return None
