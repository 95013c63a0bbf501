"""The attributes that a returned VF's PF gets, with drivers that refuse some: a stand-in answers like the kernel."""

import errno
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from support import pci
from support.sysfs_tree import Tree

from base.kernel import sysfs, vf
from base.kernel.links import Link, pack_mac
from base.kernel.netlink import attr, attributes
from base.kernel.rtnl import Rtnl
from base.kernel.vf import VfSettings
from cni.kinds.device import Netdev
from cni.kinds.sriov import attributes as kept
from cni.kinds.sriov.attributes import Plan

PF, VF = "0000:3b:00.0", "0000:3b:00.2"
NONE, PODS, OWN = "00:00:00:00:00:00", "02:00:00:00:00:77", "0c:42:a1:00:00:02"
HOME = Netdev("ens1v0", OWN, 1500, 1000, "", 0, (), ())
# For ip link set PF vf 0 mac, cxgb4 answers the first, qede, be2net and liquidio the second.
REFUSALS = [errno.EADDRNOTAVAIL, errno.EINVAL]


class Kernel:
    """A PF with one VF, whose driver answers some messages with an errno."""

    def __init__(self, mac: str, *, spoofchk: bool = False) -> None:
        self.mac, self.spoofchk = mac, spoofchk
        self.answers = dict[bytes, int]()

    def link(self, name: str, **_: Any) -> Link | None:
        one = attr(vf.IFLA_VF_MAC, struct.pack("=I", 0) + pack_mac(self.mac).ljust(32, b"\0"))
        one += attr(vf.IFLA_VF_SPOOFCHK, struct.pack("=II", 0, self.spoofchk))
        return Link(7, name, 0, "0c:42:a1:00:00:00", 1500, vfs=attr(vf.IFLA_VF_INFO, one))

    def set_link(self, _index: int, body: bytes) -> None:
        if number := self.answers.get(body):
            raise OSError(number, os.strerror(number))
        for _ in range(2):  # IFLA_VFINFO_LIST, IFLA_VF_INFO
            (body,) = attributes(body).values()
        ((kind, value),) = attributes(body).items()
        if kind == vf.IFLA_VF_MAC:
            self.mac = value[4:10].hex(":")
        else:
            self.spoofchk = bool(value[4])


def restored(kernel: Kernel, plan: Plan) -> None:
    kept.restore(cast("Rtnl", kernel), plan)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan of a VF that had no MAC on its PF, and got one for a pod."""
    tree = Tree(tmp_path / "sys")
    tree.netdev("ens1", tree.pci(PF))
    tree.pci(VF, pf=PF)
    pci.is_sys(tree.root, monkeypatch)
    before, wanted = VfSettings(NONE, spoofchk=True), {"mac": PODS, "spoofchk": False}
    number = sysfs.incarnation(VF)
    return Plan(
        device=VF,
        incarnation=number,
        pf=PF,
        number=0,
        netdev="ens1v0",
        home=HOME,
        before=before,
        wanted=wanted,
        mac=PODS,
        mtu=0,
        rdma=[],
        rdma_devs=[],
    )


def test_a_driver_that_takes_all(plan: Plan) -> None:
    kernel = Kernel(PODS)
    restored(kernel, plan)
    assert (kernel.mac, kernel.spoofchk) == (NONE, True)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_driver_that_takes_no_zero_mac(plan: Plan, refusal: int) -> None:
    """Then the VF has its own MAC on the PF: neither the pod's, nor another VF's.  The next DEL accepts that."""
    kernel = Kernel(PODS)
    kernel.answers = {vf.set_attribute(0, "mac", NONE): refusal}
    restored(kernel, plan)
    assert (kernel.mac, kernel.spoofchk) == (OWN, True)
    kernel.mac = PODS
    restored(kernel, replace(plan, home=None))
    assert kernel.mac not in (PODS, NONE)
    assert int(kernel.mac[:2], 16) & 3 == 2  # locally administered, of one station


def test_another_mac_that_is_refused(plan: Plan) -> None:
    kernel = Kernel(PODS)
    kernel.answers = {vf.set_attribute(0, "mac", OWN): errno.EINVAL}
    with pytest.raises(OSError, match="Invalid argument"):
        restored(kernel, replace(plan, before=VfSettings(OWN)))


def test_the_mode_of_the_switch_was_changed(plan: Plan) -> None:
    """mlx5 has no spoofchk in switchdev mode.  The pod is still detached, with the rest restored."""
    kernel = Kernel(PODS)
    kernel.answers = {vf.set_attribute(0, "spoofchk", value=True): errno.EOPNOTSUPP}
    restored(kernel, plan)
    assert (kernel.mac, kernel.spoofchk) == (NONE, False)


def test_a_driver_that_fails(plan: Plan) -> None:
    kernel = Kernel(PODS)
    kernel.answers = {vf.set_attribute(0, "spoofchk", value=True): errno.EIO}
    with pytest.raises(OSError, match="Input/output error"):
        restored(kernel, plan)
