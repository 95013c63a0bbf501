"""Numbers and addresses as Go reads them."""

import pytest
from unit.test_spellings import ADDRESSES, CIDRS, NUMBERS

from base.protocol import written


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("24", 24), ("024", 24)])
def test_a_number(text: str, number: int) -> None:
    assert written.number(text) == number


@pytest.mark.parametrize(
    ("text", "cidr"),
    [
        ("10.0.0.5/24", "10.0.0.5/24"),
        ("10.0.0.0/024", "10.0.0.0/24"),  # as in Go
        ("FD00::/64", "fd00::/64"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("1:2:3:4:5:6:7::/128", "1:2:3:4:5:6:7:0/128"),
    ],
)
def test_an_address_with_its_length(text: str, cidr: str) -> None:
    assert str(written.cidr(text)) == cidr
    assert str(written.host(text)) == str(written.address(text.partition("/")[0])) == cidr.partition("/")[0]


@pytest.mark.parametrize(
    ("text", "key"), [("0x8001", 0x8001), ("0X8001", 0x8001), ("0x1", 1), ("32769", 0x8001), ("00001", 1)]
)
def test_a_partition_key(text: str, key: int) -> None:
    assert written.partition_key(text) == key


@pytest.mark.parametrize("text", [*NUMBERS, "", "0x", "0x80_1", "0b11", "0o17", "x8001", "8001h", "0x18001", "123456"])
def test_no_partition_key(text: str) -> None:
    with pytest.raises(ValueError, match="is not a partition key; write it as 0x8001"):
        written.partition_key(text)


@pytest.mark.parametrize("text", [*NUMBERS, ""])
def test_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number; write digits"):
        written.number(text)


@pytest.mark.parametrize("text", [*ADDRESSES, ""])
def test_no_address(text: str) -> None:
    for parse in (written.address, written.host):
        with pytest.raises(ValueError, match=r"scope; write|does not appear to be"):
            parse(text)


@pytest.mark.parametrize("text", [*CIDRS, "10.0.0.0", ""])
def test_no_address_with_its_length(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address with its length; write it as in"):
        written.cidr(text)
