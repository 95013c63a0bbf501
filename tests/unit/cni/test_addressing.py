"""The mode of duplicate address detection, by configuration and link."""

from typing import Any

import pytest
from support.configurations import conf

from base.kernel.links import ARPHRD_INFINIBAND, Link
from cni import config
from cni.features import addressing

ETHERNET = Link(7, "hpn0", 0, "02:00:00:00:00:01", 1500)
INFINIBAND = Link(7, "hpn0", 0, ":".join(["00"] * 20), 2044, hardware=ARPHRD_INFINIBAND)


@pytest.mark.parametrize(
    ("keys", "link", "expected"),
    [
        ({}, ETHERNET, "quick"),
        ({"dadTime": 50}, ETHERNET, "quick"),
        ({}, INFINIBAND, "optimistic"),  # the solicitation leaves when the subnet manager has answered
        ({"dad": "quick"}, INFINIBAND, "optimistic"),
        ({"dadTime": 500}, INFINIBAND, "quick"),  # whoever says for how long knows the subnet manager
        ({"dad": "wait"}, INFINIBAND, "wait"),
        ({"dad": "off"}, INFINIBAND, "off"),
    ],
)
def test_which_detection(keys: dict[str, Any], link: Link, expected: str) -> None:
    assert addressing.detection_on(link, config.load(conf(**keys), "").attach) == expected
