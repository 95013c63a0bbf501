"""What decides without a peer: which frames may come, and what a message is."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.grpc.guard import FRAMES_MOST, PREFACE, Excess, Guard
from node.grpc.messages import Inbox, framed
from node.grpc.status import Failed

DATA, HEADERS, PING, CONTINUATION = 0, 1, 6, 9


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(">HBBBI", len(body) >> 8, len(body) & 255, kind, flags, stream) + body


@given(st.lists(st.integers(0, 1 << 14), max_size=20), st.integers(1, 99))
def test_guard_finds_every_frame(lengths: list[int], step: int) -> None:
    data = PREFACE + b"".join(frame(DATA, 0, 1, bytes(length)) for length in lengths)
    guard = Guard(len(PREFACE))
    for at in range(0, len(data), step):
        guard.admit(data[at : at + step], 0.0)
    with pytest.raises(Excess, match="a frame of 16385 bytes"):
        guard.admit(frame(DATA, 0, 1, bytes((1 << 14) + 1)), 0.0)


def test_guard_counts_anew() -> None:
    guard = Guard(0)
    for now in (0.0, 10.0, 20.0):
        guard.admit(frame(PING, 0, 0) * FRAMES_MOST, now)
    with pytest.raises(Excess, match="more than 20000 frames"):
        guard.admit(frame(PING, 0, 0), 29.9)


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=5))
def test_inbox(data: bytes, cuts: list[int]) -> None:
    """However it is cut, it is the one message, or refused; and no byte is kept beyond the first message's."""
    inbox, edges = Inbox(20), sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    expected = (
        data[5:] if len(data) >= 5 and data[0] == 0 and int.from_bytes(data[1:5]) == len(data) - 5 <= 20 else None
    )
    found: bytes | None
    try:
        for a, b in pairwise(edges):
            inbox.add(data[a:b])
        found = inbox.message()
    except Failed:
        found = None
    assert found == expected


def test_guard_bounds_a_block_of_headers() -> None:
    guard = Guard(0)
    for _ in range(3):
        guard.admit(frame(HEADERS, 0, 1, bytes(9000)) + frame(CONTINUATION, 0, 1, bytes(7000)), 0.0)
    with pytest.raises(Excess, match="16384 bytes of headers"):
        guard.admit(frame(CONTINUATION, 0, 1, bytes(1000)), 0.0)


def test_guard_does_not_count_what_costs_the_peer_as_much() -> None:
    guard, long, short = Guard(0), frame(DATA, 0, 1, bytes(1024)), frame(DATA, 0, 1, bytes(1023))
    for _ in range(FRAMES_MOST + 1):
        guard.admit(long, 0.0)
    with pytest.raises(Excess):
        guard.admit(short * (FRAMES_MOST + 1), 0.0)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\1\0\0\0\0", "compressed"),
        (b"\0\0\0\0\25", "21 bytes; 20 are the most"),
        (framed(b"abc") + b"\0", "more than one message"),
    ],
)
def test_inbox_refuses_at_once(data: bytes, says: str) -> None:
    with pytest.raises(Failed, match=says):
        Inbox(20).add(data)
