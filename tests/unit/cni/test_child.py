"""Recognition of our link over a master."""

import pytest

from base.kernel.links import Link
from cni.kinds.child import Plan

OURS = "02:00:00:00:00:01"


@pytest.mark.parametrize(("mac", "is_ours"), [(OURS, True), ("02:00:00:00:00:02", False)])
def test_by_its_mac_where_an_older_version_left_the_index_to_the_kernel(mac: str, is_ours: bool) -> None:
    plan = Plan("macvlan", "rail0", 2, OURS, 0, "", True, [], "")
    assert plan.is_ours(Link(7, "hpn0", 0, mac, 1500, "macvlan")) is is_ours
