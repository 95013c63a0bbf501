"""The two frames that announce an address on a link, byte by byte."""

from ipaddress import IPv4Address, IPv6Address

import pytest

from base.kernel import neighbors

MAC = "02:00:00:00:00:2a"


def test_gratuitous_arp() -> None:
    """RFC 826 and RFC 5227 section 3, written out."""
    assert neighbors.gratuitous_arp(MAC, IPv4Address("10.56.0.2")).hex(" ", 2) == " ".join([
        "ffff ffff ffff", "0200 0000 002a", "0806",  # to everyone, from us, ARP
        "0001 0800 0604 0001",  # Ethernet, IPv4, their lengths, request
        "0200 0000 002a", "0a38 0002",  # sender
        "0000 0000 0000", "0a38 0002",  # target: nobody's MAC, the same address
    ])  # fmt: skip


def ones_complement_sum(data: bytes) -> int:
    """RFC 1071's sum without shortcuts: carry by carry, byte pair by byte pair."""
    total = 0
    for at in range(0, len(data), 2):
        total += data[at] * 256 + data[at + 1]
        if total > 0xFFFF:
            total = total - 0x10000 + 1
    return total


def test_unsolicited_na() -> None:
    """RFC 4861 section 4.4, written out; the checksum worked out by hand below.

    Pseudo-header: fd00+0056+0002 (source) + ff02+0001 (destination) + 0020 (length) + 003a (next header)
    Message:       8800 + 2000 (override) + fd00+0056+0002 (target) + 0201+0200+0000+002a (option)
    Sum:           fd00+0056+0002 = fd58; + ff03 = 1fc5b; + 005a = 1fcb5; + a800 = 2a4b5; + fd58 = 3a20d;
                   + 042b = 3a638; folded a638 + 3 = a63b; complemented 59c4
    """
    assert neighbors.unsolicited_na(MAC, IPv6Address("fd00:56::2")).hex(" ", 2) == " ".join([
        "3333 0000 0001", "0200 0000 002a", "86dd",  # all nodes' MAC (RFC 2464 section 7), from us, IPv6
        "6000 0000", "0020", "3aff",  # version 6; 32 bytes; ICMPv6, hop limit 255 as receivers demand
        "fd00 0056 0000 0000 0000 0000 0000 0002",
        "ff02 0000 0000 0000 0000 0000 0000 0001",
        "8800 59c4", "2000 0000",  # advertisement; override, neither router nor solicited
        "fd00 0056 0000 0000 0000 0000 0000 0002",  # target
        "0201", "0200 0000 002a",  # its link-layer address, one unit of 8 bytes
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("mac", "address"),
    [
        (MAC, "fd00:56::2"),
        ("fe:ff:ff:ff:ff:ff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"),  # carries in every addition
        ("02:00:00:00:00:00", "::1"),
        ("02:12:34:56:78:9a", "2001:db8::8a2e:370:7334"),
        ("06:9b:ef:00:00:00", "fe80::1"),
    ],
)
def test_checksum_verifies(mac: str, address: str) -> None:
    """As a receiver computes it: pseudo-header and message, with the checksum, sum up to all ones."""
    frame = neighbors.unsolicited_na(mac, IPv6Address(address))
    source, destination, message = frame[22:38], frame[38:54], frame[54:]
    pseudo = source + destination + bytes([0, 0, 0, len(message), 0, 0, 0, 58])
    assert ones_complement_sum(pseudo + message) == 0xFFFF
    assert int.from_bytes(frame[18:20], "big") == len(message) == 32
    assert source == message[8:24] == IPv6Address(address).packed
    assert frame[6:12].hex(":") == message[26:32].hex(":") == mac
