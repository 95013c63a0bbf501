"""Load and attach BPF programs as a pod may do it, and list the programs that the kernel reports (man 2 bpf)."""

import ctypes
import errno
import os
import struct

import pytest
from support.topology import ip

from base.kernel import netns, rtnl
from base.kernel.netlink import attr, u32

PROG_LOAD, PROG_ATTACH, PROG_QUERY, LINK_CREATE = 5, 8, 16, 28
SCHED_CLS, XDP = 3, 6  # types of programs
TCX_INGRESS, TCX_EGRESS, XDP_LINK = 46, 47, 37  # types of attachments
GENERIC, DRIVER = 1 << 1, 1 << 2
_libc = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, attributes: bytes) -> tuple[int, bytes]:
    union = ctypes.create_string_buffer(attributes, len(attributes))
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    result = _libc.syscall(number, command, union, len(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf command {command}")
    return result, union.raw


def load(kind: int, answer: int) -> int:
    """Load a program of two instructions, which returns that answer for every packet."""
    code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, answer, 0x95, 0, 0, 0))
    free = ctypes.create_string_buffer(b"GPL")
    words = struct.pack("=IIQQ", kind, 2, ctypes.addressof(code), ctypes.addressof(free))
    return bpf(PROG_LOAD, words + bytes(24))[0]


def attach(path: str, index: int, way: str) -> int:
    """Attach a program that passes every packet to the link in that namespace.  Return a descriptor that keeps the
    program attached, or of a program that stays attached without it."""
    if way.startswith("tcx") and not has_tcx():
        pytest.skip("this kernel has no tcx, which is there from Linux 6.6 on")
    with netns.hold_open(path) as fd:
        return netns.run_in(fd, lambda: _attach(fd, index, way))


def _attach(fd: int, index: int, way: str) -> int:
    kind, _, how = way.partition(" by ")
    program = load(XDP, 2) if "xdp" in kind else load(SCHED_CLS, -1)
    if how == "link":
        point = (XDP_LINK, GENERIC) if "xdp" in kind else (TCX_INGRESS, 0)
        holder, _ = bpf(LINK_CREATE, struct.pack("=IIII", program, index, *point) + bytes(16))
        os.close(program)
        return holder
    if kind == "tcx":
        bpf(PROG_ATTACH, struct.pack("=IIIIIIQ", index, program, TCX_EGRESS, 0, 0, 0, 0))
    else:
        mode = DRIVER if kind == "xdpdrv" else GENERIC
        with rtnl.open_in(fd) as inside:
            inside.set_link(index, attr(0x802B, attr(1, u32(program)) + attr(3, u32(mode))))  # IFLA_XDP, nested
    return program


def has_tcx() -> bool:
    """Whether the kernel supports such attachments (Linux 6.6)."""
    try:
        _query(1, TCX_INGRESS)
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise
        return False
    return True


def attached(name: str) -> list[str]:
    """The programs on one of our links, in words."""
    (link,) = ip("-d", "link", "show", "dev", name)
    ways = (TCX_INGRESS, TCX_EGRESS) if has_tcx() else ()
    tcx = [struct.unpack_from("=I", _query(link["ifindex"], where), 24)[0] for where in ways]
    return [*(["xdp"] if "xdp" in link else []), *(f"tcx {count}" for count in tcx if count)]


def _query(index: int, where: int) -> bytes:
    return bpf(PROG_QUERY, struct.pack("=IIIIQI", index, where, 0, 0, 0, 0) + bytes(36))[1]
