"""What a switch announces, and frames that are no LLDPDU."""

from random import Random

import pytest
from support import lldp_frames as frames
from support.lldp_frames import VENDORS, announced, chassis, framed, port, tlv, ttl

from hardware import neighbors
from hardware.neighbors import Neighbor
from node.lldp import lldpdu
from node.lldp.lldpdu import Malformed

MUTATIONS = 100_000


def shown(one: Neighbor) -> tuple[str, str, str, str, int, int]:
    return one.leaf, one.leaf_port, one.chassis, one.port_kind, one.vlan, one.max_frame


@pytest.mark.parametrize(
    ("maker", "expected"),
    [
        ("nx-os", ("leaf-2.dc1", "Ethernet1/31", "00:de:ad:be:00:31", "ifname", 102, 9216)),
        ("eos", ("leaf2", "Ethernet5/1", "44:4c:a8:aa:bb:cc", "ifname", 0, 9236)),
        ("sonic", ("sonic-leaf2", "etp5a", "e8:9e:49:01:02:03", "local", 0, 0)),
        ("cumulus", ("cumulus2", "swp5s0", "9c:05:91:5a:5b:5c", "ifname", 1, 9216)),
        ("junos", ("qfx-leaf2", "et-0/0/5:0", "f4:b5:2f:11:22:33", "local", 100, 9216)),
    ],
)
def test_what_makers_announce(maker: str, expected: tuple[str, str, str, str, int, int]) -> None:
    found = lldpdu.read(VENDORS[maker])
    assert shown(found) == expected
    assert found.ttl == 120


ID, PORT, TTL = chassis("0200000000aa"), port("Eth1"), ttl()


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"", "destination"),
        (framed(ID, PORT, TTL, to="ffffffffffff"), "destination"),
        (framed(ID, PORT, TTL).replace(b"\x88\xcc", b"\x88\xcd"), "EtherType"),
        (framed(ID, PORT, TTL)[:14], "does not begin with"),
        (framed(PORT, ID, TTL), "does not begin with"),
        (framed(ID, PORT), "does not begin with"),
        (framed(ID, PORT, TTL, PORT), "twice"),
        (framed(ID, PORT, tlv(3, b"\x01")), "TLV 3 (Time To Live) is shorter"),
        (framed(tlv(1, b"\x04"), PORT, TTL), "TLV 1 (Chassis ID) is shorter"),
        (framed(tlv(1, b"\x04" + bytes(5)), PORT, TTL), "TLV 1 (Chassis ID) is not a valid mac"),
        (framed(tlv(1, b"\x00x"), PORT, TTL), "reserves"),
        (framed(ID, tlv(2, b"\x08x"), TTL), "TLV 2 (Port ID) has a subtype"),
        (framed(ID, tlv(2, b"\x05\0\0"), TTL), "TLV 2 (Port ID) is not a valid ifname"),
        (framed(ID, tlv(2, b"\x05" + b"x" * 256), TTL), "longer than 255 bytes"),
        (framed(ID, PORT, TTL, tlv(4, b"x" * 100))[:100], "TLV 4 is longer than the rest"),
        (framed(ID, PORT, TTL, b"\x00\x01x"), "TLV 0 (End Of LLDPDU) is not empty"),
        (framed(ID, PORT, TTL).rstrip(b"\0") + b"\0", "no length"),
        (framed(ID, PORT, TTL, *[tlv(126, bytes(500))] * 3), "longer than 1514 bytes"),
    ],
)
def test_what_is_no_lldpdu(frame: bytes, why: str) -> None:
    with pytest.raises(Malformed) as caught:
        lldpdu.read(frame)
    assert why in f"{caught.value}"


def test_what_is_ignored() -> None:
    """A TLV that is unknown, or of another length, hides nothing; of an optional one the first counts."""
    odd = [tlv(100, b"?"), tlv(127, b"\0"), tlv(127, bytes.fromhex("0080c201") + b"\1"), tlv(127, b"")]
    twice = [tlv(5, b"first"), tlv(5, b"second"), frames.vlan(7), frames.vlan(8)]
    found = lldpdu.read(framed(ID, PORT, TTL, *odd, *twice))
    assert (found.name, found.vlan) == ("first", 7)
    assert lldpdu.read(framed(ID, PORT, TTL) + b"padding").port == "Eth1"
    assert lldpdu.read(framed(ID, PORT, TTL)[:14] + ID + PORT + TTL).port == "Eth1"  # the end may be missing


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (b"\x04" + bytes([1, 192, 0, 2, 1]), "ip", "192.0.2.1"),
        (b"\x04\x02" + bytes(15) + b"\1", "ip", "::1"),
        (b"\x04\x07ab", "ip", "076162"),
        (b"\x03" + bytes(6), "mac", "00:00:00:00:00:00"),
        (b"\x05 Eth1\0", "ifname", "Eth1"),
        (b"\x05a\x1b[31m\xffb", "ifname", "a?[31m?b"),
    ],
)
def test_identities(value: bytes, kind: str, text: str) -> None:
    found = lldpdu.read(framed(ID, tlv(2, value), TTL))
    assert (found.port_kind, found.port) == (kind, text)


def test_a_port_by_its_description() -> None:
    for value, described, expected in (
        (b"\x03" + bytes(6), b"Eth9", "Eth9"),
        (b"\x07531", b"", "531"),
        (b"\x05Eth1", b"to node7", "Eth1"),
    ):
        assert lldpdu.read(framed(ID, tlv(2, value), TTL, tlv(4, described))).leaf_port == expected
    assert lldpdu.read(framed(ID, PORT, TTL)).leaf == "02:00:00:00:00:aa"


def test_mutated_frames() -> None:
    """No frame raises another error than Malformed, and each neighbor can be kept and read again."""
    random, accepted, longest = Random(20161), 0, 0
    seeds = [*VENDORS.values(), announced("leaf", "Eth1/1")]
    for _ in range(MUTATIONS):
        frame = mutated(random, random.choice(seeds))
        try:
            found = lldpdu.read(frame)
        except Malformed as e:
            longest = max(longest, len(f"{e}"))
            continue
        accepted += 1
        assert neighbors.parsed(neighbors.document(found)) == found
        assert found.leaf
        assert found.leaf_port
    assert longest < 100
    assert MUTATIONS // 20 < accepted < MUTATIONS


def mutated(random: Random, frame: bytes) -> bytes:
    """The frame with one to four changes: bytes, bits, lengths, pieces moved, cut or repeated."""
    data = bytearray(frame)
    for _ in range(random.randint(1, 4)):
        at, size = random.randrange(len(data) or 1), random.randrange(1, 40)
        match random.randrange(7):
            case 0 if data:
                data[at] = random.randrange(256)
            case 1 if data:
                data[at] ^= 1 << random.randrange(8)
            case 2:
                del data[at : at + size]
            case 3:
                data[at:at] = random.randbytes(size)
            case 4:
                data[at:at] = data[at : at + size] * random.randint(1, 30)
            case 5:
                data = data[:at]
            case _:
                data[14:14] = tlv(random.randrange(128), random.randbytes(random.randrange(512)))
    return bytes(data)
