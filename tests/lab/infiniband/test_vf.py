"""InfiniBand VFs in pods: stock ib_ipoib over a simulated HCA, so no carrier and no traffic."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guest import hca
from guest.hca import GUID, NAME, OTHER_GUID, PF, RDMA, Node
from guest.machine import Guest, rdma
from guest.node import pci, rdma_devs
from lab.test_node_claims import ARGS, ASKED, UID, claim, offering
from support import chained
from support.dra_api import serving
from support.node_dra import dra_kubelet
from support.topology import Pod, ip, until

from base.state import claims


def test_an_hca_with_vfs(guest: Guest) -> None:
    (link,) = ip("-d", "link", "show", "dev", PF)
    assert link["linkinfo"]["info_kind"] == "ipoib"
    assert [vf["vf"] for vf in link["vfinfo_list"]] == list(range(hca.VFS))
    for number in range(hca.VFS + 1):
        assert hca.netdev(f"ib{number}")["linkinfo"]["info_kind"] == "ipoib"
        layer = Path(f"/sys/class/infiniband/testib{number}/ports/1/link_layer")
        assert layer.read_text().strip() == "InfiniBand"
        assert hca.driver(pci(f"ib{number}")).name == "testib"


def test_the_netdev_is_another_one_when_the_rdma_device_moved(guest: Guest, pod: Pod) -> None:
    """The new netdev appears on the host, or since Linux 7 in the pod."""
    device, before = pci(NAME), Path(f"/sys/class/net/{NAME}/ifindex").read_text()
    rdma("dev", "set", RDMA, "netns", pod.name)
    here = Path(f"/sys/bus/pci/devices/{device}/net")
    assert [p.name for p in here.glob("*")] == ([] if int(os.uname().release.split(".")[0]) >= 7 else [NAME])
    assert pod.links() == (set() if any(here.glob("*")) else {"ib0"})
    pod.gone()
    until(lambda: RDMA in rdma_devs() and (here / NAME).exists())
    assert (here / NAME / "ifindex").read_text() != before


def test_attaches_and_detaches(node: Node, pod: Pod) -> None:
    result = node.ok("ADD", pod)
    link = pod.link()
    assert link
    assert (link["link_type"], link["parentdev"]) == ("infiniband", node.device)
    assert "UP" in link["flags"]
    assert result["interfaces"][0]["mac"] == link["address"]
    node.detaches(pod, result)


def test_attributes_and_names(node: Node, pod: Pod) -> None:
    """The pod's changes disappear and the host's settings return, because the interface is another one."""
    queue = str(hca.netdev()["txqlen"])
    ip("link", "set", NAME, "txqueuelen", "77", "alias", "mine")
    ip("link", "property", "add", "dev", NAME, "altname", "other")
    Path(f"/sys/class/net/{NAME}/mode").write_text("connected\n")
    ip("link", "set", NAME, "mtu", "9000")
    before = node.picture()
    try:
        result = node.ok("ADD", pod, node.conf(link_state="enable", mtu=2000, guid=GUID))
        assert hca.vf()["link_state"] == "enable"
        link = pod.link()
        assert link
        assert link["mtu"] == 2000
        assert node.checked(pod, node.conf(link_state="enable"), result).exit_code == 0
        pod.ip("link", "set", "hpn0", "alias", "the pod's")
        node.ok("DEL", pod)
        assert node.picture() == before
    finally:
        Path(f"/sys/class/net/{NAME}/mode").write_text("datagram\n")
        ip("link", "property", "del", "dev", NAME, "altname", "other")
        ip("link", "set", NAME, "mtu", "4092", "txqueuelen", queue, "alias", "")


@pytest.mark.parametrize(
    ("keys", "code", "says"),
    [
        ({"vlan": 5}, 7, "vlan 5: 0000:"),
        ({"vlan": 5, "vlanQoS": 3}, 7, "pkeys"),
        ({"mac": "02:00:00:00:00:07"}, 7, "set guid"),
        ({"runtimeConfig": {"mac": "02:00:00:00:00:07"}}, 7, "set guid"),
        ({"spoofchk": "on"}, 7, "spoofchk"),
        ({"trust": "on"}, 7, "trust"),
        ({"guid": "00:11:22:33:44:55:66"}, 7, "0011223344556677"),
        ({"rdma": {"name": "mlx5_0"}}, 7, "rdma.name 'mlx5_0'"),
        ({"rdma": {"mode": "rxe"}}, 7, "rdma.mode rxe: 0000:"),
        ({"args": {"cni": {"guid": "zz:11:22:33:44:55:66:77"}}, "ibKubernetesEnabled": True}, 7, "requested guid 'zz:"),
        ({"runtimeConfig": {"infinibandGUID": hca.NONE}}, 7, "requested infinibandGUID '00:00"),
        ({"max_tx_rate": 50}, 105, "max_tx_rate"),
        ({"kind": "macvlan", "master": PF}, 101, "master 'ib0' is InfiniBand"),
        ({"kind": "ipvlan", "master": PF}, 101, "use kind ipoib"),
        ({"deviceID": ..., "pf": PF, "pfOnly": True, "runtimeConfig": {"infinibandGUID": GUID}}, 7, "is a PF"),
    ],
    ids=repr,
)
def test_what_cannot_be(node: Node, pod: Pod, keys: dict[str, Any], code: int, says: str) -> None:
    error = node.refused("ADD", pod, node.conf(**({"deviceID": ...} if "kind" in keys else {}) | keys))
    assert (error["code"], says in error["msg"]) == (code, True), error
    assert pod.links() == set()
    assert node.state_files() == set()


def test_the_hca_itself(node: Node, pod: Pod) -> None:
    """A whole function that kubelet chose, as in a virtual machine: the errors of other kinds name the one that takes
    it."""
    wanted = node.conf(deviceID=pci(PF))
    for kind, code in (("sriov", 7), ("host-device", 101)):
        error = node.refused("ADD", pod, wanted | {"kind": kind})
        assert (error["code"], "pfOnly: true" in error["msg"]) == (code, True), error
    result = node.ok("ADD", pod, wanted | {"pfOnly": True})
    assert rdma_devs(pod.name) == {"testib0"}
    assert node.checked(pod, wanted | {"pfOnly": True}, result).exit_code == 0
    node.ok("DEL", pod, wanted | {"pfOnly": True})
    until(lambda: "testib0" in rdma_devs() and Path(f"/sys/class/net/{PF}").exists())


def test_a_claims_hca(node: Node, make_pod: Callable[[], Pod], tmp_path: Path) -> None:
    """A whole function by a claim: by Multus with the same key as from the device plugin, and in chain mode without."""
    whole, of_chain = pci(PF), {"attach": "chain"}
    by_multus = node.conf(deviceID=whole, pfOnly=True)
    resource = {"name": "example.com/hca", "kind": "pf", "selectors": {"ifNames": [PF]}}
    with (
        serving(tmp_path) as (api, kubeconfig),
        offering(resource, kubeconfig) as socket,
        dra_kubelet(socket) as kubelet,
    ):
        until(lambda: whole in api.devices(), 120)
        pool, device = api.devices()[whole]
        assert device["attributes"]["linkType"] == {"string": "infiniband"}
        for keys, conf in (({}, by_multus), (of_chain, chained.conf(node))):
            pod, api.claim = make_pod(), claim((pool, device["name"]), **keys)
            until(lambda: not kubelet.prepare(ASKED)[UID].error, 120)
            result = node.ok("ADD", pod, conf, CNI_ARGS=ARGS)
            (told,) = json.loads(Path(claims.gate(UID, 0)).read_text().partition("\n")[0])["requests"][0]["devices"]
            link = pod.link(told["networkData"]["interfaceName"]) or {}
            assert (link["parentdev"], told["attributes"]["rdmaDevice"]) == (whole, {"string": "testib0"})
            assert rdma_devs(pod.name) == {"testib0"}
            assert node.call("CHECK", pod, conf | {"prevResult": result}, CNI_ARGS=ARGS).exit_code == 0
            node.ok("DEL", pod, conf, CNI_ARGS=ARGS)
            until(lambda: "testib0" in rdma_devs() and Path(f"/sys/class/net/{PF}").exists())
            assert kubelet.unprepare(ASKED) == {UID: ""}
    assert claims.all_claims() == []


def test_any_free_vf_of_a_pf(node: Node, make_pod: Callable[[], Pod]) -> None:
    """Each pod gets a VF with its own RDMA device."""
    conf, pods = node.conf(deviceID=..., pf=PF), [make_pod(), make_pod()]
    node.ok("STATUS", None, conf)
    for number, pod in enumerate(pods, 1):
        node.ok("ADD", pod, conf | {"guid": f"{GUID[:-2]}{number:02x}"})
        assert rdma_devs(pod.name) == {f"testib{number}"}
    for pod in pods:
        node.ok("DEL", pod, conf)


@pytest.mark.parametrize("keys", [{}, {"guid": GUID}], ids=repr)
def test_shared_mode(node: Node, make_pod: Callable[[], Pod], keys: dict[str, Any]) -> None:
    """Only the netdev moves, and it stays the same one unless the driver binds again."""
    rdma("system", "set", "netns", "shared")
    try:
        for ends in (Pod.gone, lambda _: None):
            pod, everywhere = make_pod(), rdma_devs()
            result = node.ok("ADD", pod, node.conf(**keys))
            assert (pod.link() or {})["parentdev"] == node.device
            assert rdma_devs() == everywhere
            assert node.checked(pod, node.conf(**keys), result).exit_code == 0
            ends(pod)
            node.ok("DEL", pod, node.conf(**keys))
            if ends is not Pod.gone:
                pod.gone()
    finally:
        # The kernel refuses while another namespace exists, and a deleted one still exists for a moment.
        until(lambda: subprocess.run(["rdma", "system", "set", "netns", "exclusive"], check=False).returncode == 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda _: ip("link", "set", PF, "vf", "0", "port_guid", OTHER_GUID), "port_guid"),
        (lambda pod: pod.run("rdma", "dev", "set", RDMA, "netns", "lab-init").check_returncode(), "is not 0000:"),
    ],
    ids=["guid", "rdma"],
)
def test_check_sees(node: Node, pod: Pod, change: Callable[[Pod], Any], says: str) -> None:
    conf = node.conf(guid=GUID)
    result = node.ok("ADD", pod, conf)
    subprocess.run(["ip", "netns", "attach", "lab-init", str(os.getpid())], check=True)
    try:
        change(pod)
        reply = node.checked(pod, conf, result)
        assert '"code":107' in reply.stdout
        assert says in reply.stdout
    finally:
        subprocess.run(["ip", "netns", "delete", "lab-init"], check=True)
    node.ok("DEL", pod, conf)
