"""The frames that probe for an address, byte by byte, and the frames that answer."""

import select
import socket
import time
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.base.kernel.test_announce import ones_complement_sum

from base.kernel import neighbors, probe

OURS, THEIRS = "02:00:00:00:00:2a", "02:00:00:00:00:99"
FOUR, SIX = IPv4Address("10.56.0.2"), IPv6Address("fd00:56::12:3456")


def test_arp_probe() -> None:
    """RFC 5227, section 2.1.1, written out."""
    assert probe.arp_probe(OURS, FOUR).hex(" ", 2) == " ".join([
        "ffff ffff ffff", "0200 0000 002a", "0806",  # to everyone, from us, ARP
        "0001 0800 0604 0001",  # Ethernet, IPv4, their lengths, request
        "0200 0000 002a", "0000 0000",  # sender: our MAC, and no address that anybody could learn
        "0000 0000 0000", "0a38 0002",  # target
    ])  # fmt: skip


def test_dad_solicitation() -> None:
    """RFC 4861 section 4.3 and RFC 4862 section 5.4.2, written out.

    Pseudo-header: ff02+0001+ff12+3456 (destination) + 0018 (length) + 003a (next header)
    Message:       8700 + fd00+0056+0012+3456 (target)
    Sum:           ff02+1 = ff03; + ff12 = 1fe15; + 3456 = 2326b; + 52 = 232bd; + 8700 = 2b9bd; + fd00 = 3b6bd;
                   + 56+12 = 3b725; + 3456 = 3eb7b; folded eb7e; complemented 1481
    """
    assert probe.dad_solicitation(OURS, SIX).hex(" ", 2) == " ".join([
        "3333 ff12 3456", "0200 0000 002a", "86dd",  # the group's MAC (RFC 2464 section 7), from us, IPv6
        "6000 0000", "0018", "3aff",  # version 6; 24 bytes: no option; ICMPv6, hop limit 255
        "0000 0000 0000 0000 0000 0000 0000 0000",  # from nobody
        "ff02 0000 0000 0000 0000 0001 ff12 3456",  # to the solicited-node group
        "8700 1481", "0000 0000",  # solicitation
        "fd00 0056 0000 0000 0000 0000 0012 3456",
    ])  # fmt: skip


@given(st.binary(min_size=16, max_size=16))
def test_checksum_verifies(packed: bytes) -> None:
    frame = probe.dad_solicitation(OURS, IPv6Address(packed))
    pseudo = frame[22:54] + bytes([0, 0, 0, len(frame) - 54, 0, 0, 0, 58])
    assert ones_complement_sum(pseudo + frame[54:]) == 0xFFFF


def arp(operation: int, sender: str, target: str, mac: str = THEIRS) -> bytes:
    packed = bytes.fromhex(mac.replace(":", ""))
    head = b"\xff" * 6 + packed + bytes.fromhex("0806 0001 0800 0604") + operation.to_bytes(2)
    return head + packed + IPv4Address(sender).packed + bytes(6) + IPv4Address(target).packed


def nd(kind: int, source: str, target: str, *, hops: int = 255) -> bytes:
    head = bytes.fromhex("333300000001") + bytes.fromhex(THEIRS.replace(":", "")) + bytes.fromhex("86dd60000000001b3a")
    packed = IPv6Address(source).packed + IPv6Address("ff02::1").packed
    return head[:18] + b"\0\x18\x3a" + bytes([hops]) + packed + bytes([kind, *bytes(7)]) + IPv6Address(target).packed


@pytest.mark.parametrize(
    ("frame", "claimed", "mac"),
    [
        (arp(2, "10.56.0.2", "0.0.0.0"), "10.56.0.2", THEIRS),  # the answer to a probe
        (arp(1, "10.56.0.2", "10.56.0.9"), "10.56.0.2", THEIRS),  # requests another host's MAC, and so reveals its own
        (arp(1, "0.0.0.0", "10.56.0.2"), "10.56.0.2", THEIRS),  # probes for the same address (RFC 5227 2.1.1)
        (arp(1, "10.56.0.2", "10.56.0.2"), "10.56.0.2", THEIRS),  # announces it
        (arp(2, "10.56.0.2", "0.0.0.0", OURS), "10.56.0.2", OURS),  # its sender has it, with any MAC
        (neighbors.gratuitous_arp(THEIRS, FOUR), str(FOUR), THEIRS),
        (nd(136, "fd00:56::2", "fd00:56::2"), "fd00:56::2", THEIRS),  # its owner's answer
        (nd(135, "::", "fd00:56::2"), "fd00:56::2", THEIRS),  # detects duplicates of the same address (RFC 4862 5.4.3)
        (neighbors.unsolicited_na(THEIRS, SIX), str(SIX), THEIRS),
    ],
)
def test_claims(frame: bytes, claimed: str, mac: str) -> None:
    assert probe.parse_claim(frame, OURS) == (ip_address(claimed), mac)
    assert probe.parse_claim(frame + bytes(18), OURS) == (ip_address(claimed), mac)  # padded to Ethernet's minimum


@pytest.mark.parametrize(
    "frame",
    [
        probe.arp_probe(OURS, FOUR),  # returned to us by the NIC
        probe.dad_solicitation(OURS, SIX),
        arp(2, "0.0.0.0", "10.56.0.2"),  # no sender's address
        arp(3, "10.56.0.2", "0.0.0.0"),  # RARP's
        arp(2, "10.56.0.2", "0.0.0.0")[:41],  # cut off
        arp(2, "10.56.0.2", "0.0.0.0").replace(bytes.fromhex("0800 0604"), bytes.fromhex("0800 0610")),
        nd(135, "fd00:56::9", "fd00:56::2"),  # requests its owner's MAC, to reach it
        nd(136, "fd00:56::2", "fd00:56::2", hops=254),  # from beyond the link
        nd(134, "fe80::1", "fd00:56::2"),  # a router's advertisement
        nd(136, "fd00:56::2", "fd00:56::2")[:77],
        b"",
    ],
)
def test_claims_nothing(frame: bytes) -> None:
    assert probe.parse_claim(frame, OURS) is None


@given(st.binary(max_size=100), st.sampled_from([b"\x08\x06", b"\x86\xdd", b"\x08\x00"]))
def test_whatever_comes_is_no_error(noise: bytes, kind: bytes) -> None:
    probe.parse_claim(noise[:12].ljust(12, b"\0") + kind + noise, OURS)


def test_a_flood_after_the_last_moment() -> None:
    """A sender that is faster than this process cannot keep it reading."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    poll, read = select.poll(), 0
    with ours, theirs:
        poll.register(ours, select.POLLIN)
        theirs.send(b"frame")
        for read, _ in enumerate(probe._receive(poll, {ours.fileno(): ours}, time.monotonic()), 1):
            assert read <= probe._QUEUE
            theirs.send(b"frame")
    assert read == probe._QUEUE
