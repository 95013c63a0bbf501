"""A packet socket for the frames of one EtherType to some groups, on one interface (man 7 packet).

The kernel's filter drops all other frames before they take memory.  The socket's queue is short, so that a flood fills
it, and the kernel drops the rest without waking a process.
"""

import ctypes
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, _PACKET_MR_MULTICAST = 263, 1, 0
_SO_ATTACH_FILTER: Final = 26
_QUEUE: Final = 16384  # bytes; each frame takes one to two thousand
# Classic BPF (linux/bpf_common.h): load a word or half a word of the frame, load its length, compare, return.
_LOAD_WORD, _LOAD_HALF, _LOAD_LENGTH, _IF_EQUAL, _IF_GREATER, _RETURN = 0x20, 0x28, 0x80, 0x15, 0x25, 0x06
_INSTRUCTION: Final = struct.Struct("=HBBI")  # struct sock_filter
_PROGRAM: Final = struct.Struct("@HP")  # struct sock_fprog
_MREQ: Final = struct.Struct("=iHH8s")  # struct packet_mreq


def open_receiver(name: str, ethertype: int, groups: Sequence[bytes], most: int) -> socket.socket:
    """A socket that receives frames of at most ``most`` bytes to ``groups``, MACs with the same first four bytes.

    The interface keeps receiving these groups until the socket is closed.  Raises OSError: EPERM without CAP_NET_RAW.
    """
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _QUEUE)
        attach(sock, _filter(groups, most))
        sock.bind((name, ethertype))
        index = socket.if_nametoindex(name)
        for group in groups:
            request = _MREQ.pack(index, _PACKET_MR_MULTICAST, len(group), group)
            sock.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, request)
    except BaseException:
        sock.close()
        raise
    return sock


def is_bound(sock: socket.socket) -> bool:
    """Whether the socket still has its interface.  It loses it for ever when the interface moves to another
    namespace."""
    with suppress(OSError):
        return bool(sock.getsockname()[0])
    return False


def attach(sock: socket.socket, program: bytes) -> None:
    """Give the socket this filter.  Raises OSError."""
    instructions = ctypes.create_string_buffer(program, len(program))
    head = _PROGRAM.pack(len(program) // _INSTRUCTION.size, ctypes.addressof(instructions))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, head)


def _filter(groups: Sequence[bytes], most: int) -> bytes:
    """Accept a frame to one of the groups.  A jump counts the instructions that it skips."""
    count = len(groups)
    steps = [
        (_LOAD_LENGTH, 0, 0, 0),
        (_IF_GREATER, count + 3, 0, most),
        (_LOAD_WORD, 0, 0, 0),
        (_IF_EQUAL, 0, count + 1, int.from_bytes(groups[0][:4])),
        (_LOAD_HALF, 0, 0, 4),
        *((_IF_EQUAL, count - at, 0, int.from_bytes(group[4:])) for at, group in enumerate(groups)),
        (_RETURN, 0, 0, 0),
        (_RETURN, 0, 0, most),
    ]
    return b"".join(_INSTRUCTION.pack(*step) for step in steps)
