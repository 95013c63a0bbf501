"""What older kernels do not say, refused before a device is touched."""

import os

import pytest

from cni.kernel.links import Link
from cni.kinds.device import refuse_unnamed
from cni.protocol.errors import LinkUnavailable

ADDRESS = "0000:01:10.0"


def test_no_device_is_moved_that_could_not_be_found_again() -> None:
    """Before Linux 5.14 no message about a link has IFLA_PARENT_DEV_NAME."""
    with pytest.raises(LinkUnavailable) as refused:
        refuse_unnamed(Link(5, "rail0v0", 0, "02:00:00:00:00:01", 1500), ADDRESS)
    assert str(refused.value) == (
        f"'rail0v0' of {ADDRESS}: Linux {os.uname().release} does not say in a pod which device an interface is of; "
        "use a kernel from 5.14 on, or kind macvlan over it"
    )
    refuse_unnamed(Link(5, "rail0v0", 0, "02:00:00:00:00:01", 1500, device=ADDRESS), ADDRESS)
