"""What older kernels do not report is refused before a device is touched."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from base.kernel.links import Link
from base.protocol.errors import LinkUnavailable
from cni.kinds import host_device, sriov
from cni.kinds.device import refuse_unnamed

ADDRESS = "0000:01:10.0"


def test_no_device_is_moved_that_could_not_be_found_again() -> None:
    """Before Linux 5.14 no message about a link has IFLA_PARENT_DEV_NAME."""
    with pytest.raises(LinkUnavailable) as refused:
        refuse_unnamed(Link(5, "rail0v0", 0, "02:00:00:00:00:01", 1500), ADDRESS)
    assert str(refused.value) == (
        f"'rail0v0' of {ADDRESS}: Linux {os.uname().release} does not report in a pod which device an "
        "interface belongs to; use a kernel from 5.14 on, or kind macvlan over it"
    )
    refuse_unnamed(Link(5, "rail0v0", 0, "02:00:00:00:00:01", 1500, device=ADDRESS), ADDRESS)


def test_hardware_is_not_taken_for_software(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a kernel names no link's device."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release="5.10.0-32-amd64"))
    link = Link(5, "rail0v0", 0, "02:00:00:00:00:01", 1500)
    host_device._refuse_unmovable(link, ADDRESS)
    with pytest.raises(LinkUnavailable, match="'rail0v0' is made of software"):
        host_device._refuse_unmovable(link, "")


def test_status_beside_an_add_that_takes_the_vf(monkeypatch: pytest.MonkeyPatch) -> None:
    """A free VF's netdev that has just left the host proves nothing about the kernel."""
    function = SimpleNamespace(netdevs=["rail0v0"], address=ADDRESS)
    monkeypatch.setattr(sriov, "_find", lambda *_: function)
    conf: Any = SimpleNamespace(attach=SimpleNamespace(rdma=SimpleNamespace(mode="off"), pf="rail0"), where=None)
    there = Link(5, "rail0v0", 0, "02:00:00:00:00:01", 1500)
    gone: Any = SimpleNamespace(link=lambda _: None)
    old: Any = SimpleNamespace(link=lambda _: there)
    sriov.status(conf, gone)
    with pytest.raises(LinkUnavailable, match=r"use a kernel from 5\.14 on"):
        sriov.status(conf, old)
