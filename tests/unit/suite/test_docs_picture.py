"""docs/blocks.py draws the picture of docs/user/cluster-addresses.md."""

from xml.etree import ElementTree as ET

from docs import blocks
from ipam.cluster.rules.documents import SIZE


def test_it_is_what_the_program_draws() -> None:
    assert blocks.PICTURE.read_text() == blocks.picture(), "run: make docs"


def test_it_is_svg_with_the_programs_numbers() -> None:
    root = ET.fromstring(blocks.picture())
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert f"{blocks.SHOWN * SIZE}-{blocks.SHOWN * SIZE + SIZE - 1}" in words
    assert "10.1.0.32 - 10.1.0.47" in words
    assert "fd00:2::20 - fd00:2::2f" in words
