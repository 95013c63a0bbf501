"""InfiniBand VFs in pods: stock ib_ipoib over an HCA of our own making, so no carrier and no traffic."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import hca
from lab.guest import Guest, rdma
from lab.hca import NAME, PF, RDMA
from lab.node import pci, rdma_devs
from topology import Pod, ip, until

GUID = "00:11:22:33:44:55:66:77"
OTHER = "02:00:00:00:00:00:00:05"


@pytest.fixture(scope="module", autouse=True)
def plugged() -> Iterator[None]:
    with hca.plugged():
        yield


def test_an_hca_with_vfs(guest: Guest) -> None:
    (link,) = ip("-d", "link", "show", "dev", PF)
    assert link["linkinfo"]["info_kind"] == "ipoib"
    assert [vf["vf"] for vf in link["vfinfo_list"]] == list(range(hca.VFS))
    for number in range(hca.VFS + 1):
        assert hca.netdev(f"ib{number}")["linkinfo"]["info_kind"] == "ipoib"
        layer = Path(f"/sys/class/infiniband/testib{number}/ports/1/link_layer")
        assert layer.read_text().strip() == "InfiniBand"
        assert hca.driver(pci(f"ib{number}")).name == "testib"


def test_a_guid_takes_another_bind(guest: Guest) -> None:
    device, own = pci(NAME), hca.guids(pci(NAME))
    tell(node_guid=GUID, port_guid=OTHER)
    try:
        assert hca.guids(device) == own
        hca.drive(device, "testib")
        assert hca.guids(device) == (GUID, OTHER)
    finally:
        tell(node_guid=hca.NONE, port_guid=hca.NONE)
        hca.drive(device, "testib")
    assert hca.guids(device) == own


def test_the_netdev_is_another_one_when_the_rdma_device_moved(guest: Guest, pod: Pod) -> None:
    """Born on the host, or since Linux 7 in the pod."""
    device, before = pci(NAME), Path(f"/sys/class/net/{NAME}/ifindex").read_text()
    rdma("dev", "set", RDMA, "netns", pod.name)
    here = Path(f"/sys/bus/pci/devices/{device}/net")
    assert [p.name for p in here.glob("*")] == ([] if int(os.uname().release.split(".")[0]) >= 7 else [NAME])
    assert pod.links() == (set() if any(here.glob("*")) else {"ib0"})
    pod.gone()
    until(lambda: RDMA in rdma_devs() and (here / NAME).exists())
    assert (here / NAME / "ifindex").read_text() != before


def tell(**guids: str) -> None:
    """Set these of the VF on its PF."""
    for what, guid in guids.items():
        ip("link", "set", PF, "vf", "0", what, guid)
