"""GUIDs of InfiniBand VFs: set on the PF, adopted by the VF when its driver binds again, and restored."""

from typing import Any

import pytest
from guest import hca
from guest.hca import GUID, NAME, OTHER_GUID, RDMA, Node
from guest.machine import Guest, rdma
from guest.node import pci
from support.topology import Pod


def test_a_guid_takes_another_bind(guest: Guest) -> None:
    device, own = pci(NAME), hca.guids(pci(NAME))
    hca.tell(node_guid=GUID, port_guid=OTHER_GUID)
    try:
        assert hca.guids(device) == own
        hca.drive(device, "testib")
        assert hca.guids(device) == (GUID, OTHER_GUID)
    finally:
        hca.tell(node_guid=hca.NONE, port_guid=hca.NONE)
        hca.drive(device, "testib")
    assert hca.guids(device) == own


def test_an_address_of_its_guid(node: Node, pod: Pod) -> None:
    ranges = [[{"subnet": "fd00:56::/64", "eui64": True}]]
    node.ok("ADD", pod, node.conf(guid="00:11:22:33:44:55:66:77", ipam={"type": "hpn-ipam", "ranges": ranges}))
    assert pod.addresses() == {"fd00:56::211:2233:4455:6677/64"}
    node.ok("DEL", pod)


@pytest.mark.parametrize(
    "keys",
    [
        {"guid": GUID},
        {"guid": "0011223344556677"},
        {
            "runtimeConfig": {"infinibandGUID": GUID},
            "args": {"cni": {"guid": OTHER_GUID}},
            "ibKubernetesEnabled": True,
            "guid": OTHER_GUID,
        },
        {
            "args": {"cni": {"guid": GUID, "mellanox.infiniband.app": "configured"}},
            "ibKubernetesEnabled": True,
            "guid": OTHER_GUID,
        },
    ],
    ids=repr,
)
def test_guid(node: Node, pod: Pod, keys: dict[str, Any]) -> None:
    """ADD sets the GUID on the PF, and another bind makes it the VF's own in the pod; DEL restores both."""
    conf, own = node.conf(**keys), hca.guids(node.device)
    result = node.ok("ADD", pod, conf)
    assert (hca.vf()["node guid"], hca.vf()["port guid"]) == (GUID, GUID)
    link = pod.link()
    assert link
    assert link["address"][-23:] == GUID
    assert pod.run("cat", f"/sys/class/infiniband/{RDMA}/node_guid").stdout.strip() == "0011:2233:4455:6677"
    assert node.checked(pod, conf, result).exit_code == 0
    node.ok("DEL", pod, conf)
    assert hca.guids(node.device) == own


def test_guid_by_cni_args(node: Node, pod: Pod) -> None:
    node.ok("ADD", pod, node.conf(guid=OTHER_GUID), CNI_ARGS=f"GUID={GUID}")
    assert hca.vf()["port guid"] == GUID
    node.ok("DEL", pod)


def test_guids_that_were_set_before(node: Node, pod: Pod) -> None:
    """Node GUID and port GUID may differ, and DEL restores each."""
    before = {"node_guid": OTHER_GUID, "port_guid": "02:00:00:00:00:00:00:06"}
    hca.tell(**before)
    try:
        node.ok("ADD", pod, node.conf(guid=GUID))
        node.ok("DEL", pod)
        assert [hca.vf()["node guid"], hca.vf()["port guid"]] == list(before.values())
        assert list(hca.guids(node.device)) == list(before.values())
    finally:
        hca.tell(node_guid=hca.NONE, port_guid=hca.NONE)
        hca.drive(node.device, "testib")


def test_bound_again_only_where_the_guid_is_another(node: Node, pod: Pod) -> None:
    before = rdma_index()
    node.ok("ADD", pod, node.conf(guid=hca.guids(node.device)[1]))
    node.ok("DEL", pod)
    assert rdma_index() == before
    node.ok("ADD", pod, node.conf(guid=GUID))
    node.ok("DEL", pod)
    assert rdma_index() != before


def rdma_index() -> str:
    return next(line for line in rdma("dev") if RDMA in line).split(":")[0]


def test_a_guid_for_an_ethernet_vf(node: Node, pod: Pod) -> None:
    conf = node.conf(deviceID=pci("rail0v0"), runtimeConfig={"infinibandGUID": GUID})
    error = node.refused("ADD", pod, conf)
    assert (error["code"], "is Ethernet" in error["msg"]) == (7, True)


def test_a_vf_that_the_pod_drives(node: Node, pod: Pod) -> None:
    """ADD sets the GUID on the PF, from which the pod's driver reads it.  The host cannot read the VF's earlier
    GUID."""
    hca.tell(node_guid=hca.NONE, port_guid=hca.NONE)
    hca.drive(node.device, "vfio-pci")
    try:
        result = node.ok("ADD", pod, node.conf(guid=GUID))
        assert result["interfaces"][0]["pciID"] == node.device
        assert (hca.vf()["node guid"], hca.vf()["port guid"]) == (GUID, GUID)
        assert node.checked(pod, node.conf(guid=GUID), result).exit_code == 0
        node.ok("DEL", pod)
        assert (hca.vf()["node guid"], hca.vf()["port guid"]) == ("ff:ff:ff:ff:ff:ff:ff:ff",) * 2
    finally:
        hca.tell(node_guid=hca.NONE, port_guid=hca.NONE)
        hca.drive(node.device, "testib")
