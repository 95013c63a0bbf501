"""Lists and masks of processors, in the kernel's spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from base.kernel import cpus

SETS = some.sets(some.integers(0, cpus.MOST - 1), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("0", "00000001"), ("0-3", "0000000f"), ("1,3", "0000000a"), ("31", "80000000"), ("32", "1,00000000"),
        ("0-3,64-67", "f,00000000,0000000f"), ("63", "80000000,00000000"),
    ],
)  # fmt: skip
def test_masks(text: str, mask: str) -> None:
    """With or without leading zeros; bitmap_parse accepts both."""
    assert cpus.mask(cpus.parse(text)).lstrip("0") == mask.lstrip("0")


@given(SETS)
def test_there_and_back(chosen: set[int]) -> None:
    assert set(cpus.parse(cpus.spell(chosen))) == chosen
    groups = cpus.mask(chosen).split(",")
    assert all(len(group) == 8 for group in groups[1:])
    number = int("".join(groups), 16)
    assert {bit for bit in range(number.bit_length()) if number >> bit & 1} == chosen


@pytest.mark.parametrize("text", ["", "a", "3-1", "0-", "-3", "1,,2", "8192", "0-99999", "0 1", "0x3", "1\n", "٣"])
def test_no_list(text: str) -> None:
    with pytest.raises(ValueError, match="write 0-3,8"):
        cpus.parse(text)
