"""Attributes and errors, as base.kernel.netlink builds and decodes them."""

import errno
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from base.kernel import netlink


def nlmsgerr(number: int, *attrs: bytes) -> bytes:
    """struct nlmsgerr as the kernel sends it under NETLINK_CAP_ACK: errno, the request's header, attributes."""
    return struct.pack("=iIHHII", -number, 48, 16, 5, 1, 0) + b"".join(attrs)


MSG = struct.pack("=HH", 4 + 13, 1) + b"Invalid name\0" + b"\0\0\0"
OFFS = struct.pack("=HHI", 8, 2, 32)


@pytest.mark.parametrize(
    ("body", "has_message", "number", "text"),
    [
        (nlmsgerr(16), False, errno.EBUSY, "Device or resource busy"),
        (nlmsgerr(22, MSG), True, errno.EINVAL, "Invalid argument (Invalid name)"),
        (nlmsgerr(22, OFFS, MSG), True, errno.EINVAL, "Invalid argument (Invalid name)"),  # not the first attribute
        (nlmsgerr(22, OFFS), True, errno.EINVAL, "Invalid argument"),  # an offset without a message
        (nlmsgerr(22), True, errno.EINVAL, "Invalid argument"),
        # without the flag, the rest is no attribute
        (nlmsgerr(22, MSG), False, errno.EINVAL, "Invalid argument"),
    ],
)
def test_error(body: bytes, has_message: bool, number: int, text: str) -> None:
    with pytest.raises(OSError, match=re.escape(text)) as e:
        netlink.raise_error(body, netlink.NLM_F_ACK_TLVS if has_message else 0)
    assert (e.value.errno, e.value.strerror) == (number, text)


def test_error_of_its_own_class() -> None:
    with pytest.raises(FileExistsError):
        netlink.raise_error(nlmsgerr(17), 0)


def test_acknowledgement_is_no_error() -> None:
    netlink.raise_error(nlmsgerr(0), 0)
    netlink.raise_error(nlmsgerr(0, MSG), netlink.NLM_F_ACK_TLVS)  # a warning beside success


@pytest.mark.parametrize(
    ("kind", "payload", "raw"),
    [
        (1, b"", "0400 0100"),
        (3, b"a\0", "0600 0300 6100 0000"),
        (4, b"\1\2\3\4", "0800 0400 0102 0304"),
        (5, b"\1\2\3\4\5", "0900 0500 0102 0304 0500 0000"),
    ],
)
def test_attr(kind: int, payload: bytes, raw: str) -> None:
    assert netlink.attr(kind, payload) == bytes.fromhex(raw)  # of a little-endian machine
    assert netlink.attributes(bytes.fromhex(raw)) == {kind: payload}


def test_attributes_drops_flag_bits_and_keeps_the_last() -> None:
    nested, swapped = struct.pack("=HHI", 8, 0x8000 | 18, 1), struct.pack("=HHI", 8, 0x4000 | 19, 2)
    assert netlink.attributes(nested + swapped + netlink.attr(18, b"last")) == {18: b"last", 19: struct.pack("=I", 2)}


@pytest.mark.parametrize("length", [0, 1, 3])
def test_an_attribute_shorter_than_its_header_ends_the_list(length: int) -> None:
    broken = struct.pack("=HH", length, 9)
    assert netlink.attributes(netlink.attr(1, b"ok") + broken + netlink.attr(2, b"x")) == {1: b"ok"}


pairs = st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=40)), max_size=8)


@given(pairs)
def test_attributes_reads_what_attr_wrote(written: list[tuple[int, bytes]]) -> None:
    data = b"".join(netlink.attr(kind, payload) for kind, payload in written)
    assert netlink.attributes(data) == dict(written)
    assert len(data) % 4 == 0


@given(pairs, st.integers(0, 400))
def test_attributes_cut_short(written: list[tuple[int, bytes]], length: int) -> None:
    """Every payload is as written, except the last one, which may be its beginning."""
    data = b"".join(netlink.attr(kind, payload) for kind, payload in written)[:length]
    read = netlink.attributes(data)
    cut = [kind for kind, payload in read.items() if (kind, payload) not in written]
    assert len(cut) <= 1
    assert all(any(k == kind and p.startswith(read[kind]) for k, p in written) for kind in cut)


@given(st.binary(max_size=300))
def test_attributes_of_anything(data: bytes) -> None:
    assert all(payload in data for payload in netlink.attributes(data).values())
