"""BPF programs that are attached to a link (man 2 bpf, include/uapi/linux/bpf.h).

A move to another namespace does not detach them (netif_change_net_namespace shuts down qdiscs, and with them tc's
filters).
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

# Some architectures number system calls on their own; the others use the generic number.
_NUMBER: Final = {"x86_64": 321, "ppc64le": 361, "s390x": 351}.get(os.uname().machine, 280)
_PROG_DETACH, _PROG_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD, _PROG_QUERY = 9, 13, 15, 16
_LINK_GET_FD_BY_ID, _LINK_GET_NEXT_ID, _LINK_DETACH = 30, 31, 34
TCX: Final = (46, 47)  # BPF_TCX_INGRESS, BPF_TCX_EGRESS: Linux 6.6
_LINK_TYPE_XDP: Final = 6
# The kernel's answers if it lacks tcx, or refuses the system call.
_UNKNOWN: Final = (errno.EINVAL, errno.ENOSYS, errno.EPERM)
# Above BPF_MPROG_MAX, the kernel's bound for the programs of one link.
_MOST: Final = 64

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_long)


def on_tcx(index: int) -> dict[int, tuple[int, int]]:
    """The programs that tcx runs for the link of this ifindex in our namespace, by id.

    Each value is the attach point, of ``TCX``, and the id of the BPF link that holds the program there, 0 for none.
    The result is empty if the kernel has no tcx, or forbids the query.  Raises OSError.
    """
    found = dict[int, tuple[int, int]]()
    for where in TCX:
        programs, links = (ctypes.c_uint32 * _MOST)(), (ctypes.c_uint32 * _MOST)()
        at = ctypes.addressof(programs), ctypes.addressof(links)
        query = struct.pack("=IIIIQIIQQQQ", index, where, 0, 0, at[0], _MOST, 0, 0, at[1], 0, 0)
        try:
            answer = _bpf(_PROG_QUERY, query)[1]
        except OSError as e:
            if e.errno in _UNKNOWN:
                return {}
            raise
        (count,) = struct.unpack_from("=I", answer, 24)
        found |= {programs[n]: (where, links[n]) for n in range(count)}
    return found


def detach_from_tcx(index: int, program: int, where: int, link: int) -> None:
    """Detach what ``on_tcx`` found, unless it is detached already.  Raises OSError."""
    with suppress(FileNotFoundError):
        if link:
            _detach_link(link)
        else:
            with _opened(_PROG_GET_FD_BY_ID, program) as fd:
                _bpf(_PROG_DETACH, struct.pack("=IIIIIIQ", index, fd, where, 0, 0, 0, 0))


def detach_xdp_link(index: int, program: int) -> bool:
    """Detach the BPF link that holds this XDP program on the link of this ifindex; return whether there was one.

    Netlink cannot detach such a program.  The kernel identifies a BPF link's device by ifindex alone.  Raises OSError.
    """
    return any(_detach_link(link) for link, *of in _links() if of == [_LINK_TYPE_XDP, program, index])


def _links() -> Iterator[tuple[int, int, int, int]]:
    """Every BPF link: its id and type, its program's id, and its device's ifindex if it has a device."""
    link = 0
    while True:
        try:
            answer = _bpf(_LINK_GET_NEXT_ID, struct.pack("=III", link, 0, 0))[1]
        except FileNotFoundError:
            return
        (link,) = struct.unpack_from("=4xI", answer)
        with suppress(FileNotFoundError), _opened(_LINK_GET_FD_BY_ID, link) as fd:
            info = ctypes.create_string_buffer(256)
            _bpf(_OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, len(info), ctypes.addressof(info)))
            kind, _, program, index = struct.unpack_from("=III4xI", info)
            yield link, kind, program, index


def _detach_link(link: int) -> bool:
    with _opened(_LINK_GET_FD_BY_ID, link) as fd:
        _bpf(_LINK_DETACH, struct.pack("=II", fd, 0))
    return True


@contextmanager
def _opened(command: int, number: int) -> Iterator[int]:
    """Open a program or a BPF link by its id.  Raises OSError: ENOENT if there is none."""
    fd, _ = _bpf(command, struct.pack("=III", number, 0, 0))
    try:
        yield fd
    finally:
        os.close(fd)


def _bpf(command: int, attributes: bytes) -> tuple[int, bytes]:
    """bpf(2): its return value, and its union after the call, as bytes.  Raises OSError."""
    union = ctypes.create_string_buffer(attributes, len(attributes))
    result = int(_syscall(_NUMBER, command, union, len(attributes)))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bpf command {command}: {os.strerror(number)}")
    return result, union.raw
