"""hpn devices and hpn devinfo on soft-RoCE, compared with the output of ibv_devinfo."""

from collections.abc import Iterator

import pytest
from guest.machine import rdma
from guest.node import Node
from guest.texts import devinfo_lacks, ours
from support.topology import ip

VETHS = ("soft0", "soft1")


@pytest.fixture
def rxe(node: Node) -> Iterator[str]:
    """A soft-RoCE device over a veth that is up."""
    ip("link", "add", VETHS[0], "type", "veth", "peer", "name", VETHS[1])
    for name in VETHS:
        ip("link", "set", name, "up")
    rdma("link", "add", "rxe_veth", "type", "rxe", "netdev", VETHS[0])
    yield "rxe_veth"
    rdma("link", "delete", "rxe_veth")
    ip("link", "delete", VETHS[0])


@pytest.mark.parametrize("mtu", [1500, 1024, 4500, 9000])
def test_devinfo(rxe: str, mtu: int) -> None:
    for name in VETHS:
        ip("link", "set", name, "mtu", str(mtu))
    assert devinfo_lacks(rxe) == {"fw_ver"}


def test_gids_in_full(rxe: str) -> None:
    lacks = devinfo_lacks(rxe, "-v")
    assert not lacks & {"device_cap_flags", "sm_sl", "pkey_tbl_len", "gid_tbl_len", "phys_state"}
    assert not {line for line in lacks if line.startswith("GID[")}


def test_an_interface_of_software(rxe: str) -> None:
    """hpn devices lists a software interface because of its RDMA device."""
    text = ours("devices", "-v", rxe)
    (row,) = (line for line in text.splitlines() if line.startswith("soft0 "))
    assert f" {rxe}/1 " in row
    assert f"\n{rxe} port 1 ==> soft0 (Up)\n" in text
    assert "\nRDMA devices are shared: every network namespace sees all\n" in text
