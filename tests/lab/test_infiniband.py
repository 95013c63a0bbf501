"""InfiniBand VFs in pods: stock ib_ipoib over an HCA of our own making, so no carrier and no traffic."""

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from guest import hca
from guest.hca import NAME, PF, RDMA, Node
from guest.machine import Guest, rdma
from guest.node import pci, rdma_devs
from killing import killed_at
from topology import Pod, ip, until

from cni.kinds.sriov import infiniband

GUID = "00:11:22:33:44:55:66:77"
OTHER = "02:00:00:00:00:00:00:05"
REMOVE_MS, BARE = (Path("/sys/module/testib/parameters", name) for name in ("remove_ms", "bare"))


@pytest.fixture(scope="module", autouse=True)
def plugged() -> Iterator[None]:
    with hca.plugged():
        yield


@pytest.fixture
def node(guest: Guest) -> Iterator[Node]:
    """The guest as a node that attaches InfiniBand VFs, which it finds again as they were, on host and PF."""
    node = Node(guest.tmp_path)
    before = node.picture()
    yield node
    if node.state_files():  # of a test that failed half-way, which is not to fail all others
        node.call("GC", None, node.conf() | {"cni.dev/valid-attachments": []})
    assert node.picture() == before


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


def test_attaches_and_detaches(node: Node, pod: Pod) -> None:
    result = node.ok("ADD", pod)
    link = pod.link()
    assert link
    assert (link["link_type"], link["parentdev"]) == ("infiniband", node.device)
    assert "UP" in link["flags"]
    assert result["interfaces"][0]["mac"] == link["address"]
    assert pod.addresses() == {"10.56.0.2/24", "fd00:56::2/64"}
    assert rdma_devs(pod.name) == {RDMA}
    assert RDMA not in rdma_devs()
    assert node.checked(pod, node.conf(), result).exit_code == 0
    node.ok("DEL", pod)
    assert pod.links() == set()
    assert node.state_files() == set()


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
        {"runtimeConfig": {"infinibandGUID": GUID}, "args": {"cni": {"guid": OTHER}}, "guid": OTHER},
        {"args": {"cni": {"guid": GUID, "mellanox.infiniband.app": "configured"}}, "guid": OTHER},
    ],
    ids=repr,
)
def test_guid(node: Node, pod: Pod, keys: dict[str, Any]) -> None:
    """Told to the PF, and the VF's own in the pod, which takes another bind; both as before afterwards."""
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
    node.ok("ADD", pod, node.conf(guid=OTHER), CNI_ARGS=f"GUID={GUID}")
    assert hca.vf()["port guid"] == GUID
    node.ok("DEL", pod)


def test_guids_that_were_set_before(node: Node, pod: Pod) -> None:
    """Node's and port's may differ, and each is put back."""
    before = {"node_guid": OTHER, "port_guid": "02:00:00:00:00:00:00:06"}
    tell(**before)
    try:
        node.ok("ADD", pod, node.conf(guid=GUID))
        node.ok("DEL", pod)
        assert [hca.vf()["node guid"], hca.vf()["port guid"]] == list(before.values())
        assert list(hca.guids(node.device)) == list(before.values())
    finally:
        tell(node_guid=hca.NONE, port_guid=hca.NONE)
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


def test_attributes_and_names(node: Node, pod: Pod) -> None:
    """What the pod changed is not there any more, and what the host had is: the interface is another one."""
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
        ({"args": {"cni": {"guid": "zz:11:22:33:44:55:66:77"}}}, 7, "requested guid 'zz:"),
        ({"runtimeConfig": {"infinibandGUID": hca.NONE}}, 7, "requested infinibandGUID '00:00"),
        ({"max_tx_rate": 50}, 105, "max_tx_rate"),
        ({"kind": "macvlan", "master": PF}, 101, "master 'ib0' is InfiniBand"),
        ({"kind": "ipvlan", "master": PF}, 101, "use kind sriov"),
        ({"deviceID": ..., "pf": PF, "pfOnly": True, "runtimeConfig": {"infinibandGUID": GUID}}, 7, "is a PF"),
    ],
    ids=repr,
)
def test_what_cannot_be(node: Node, pod: Pod, keys: dict[str, Any], code: int, says: str) -> None:
    error = node.refused("ADD", pod, node.conf(**({"deviceID": ...} if "kind" in keys else {}) | keys))
    assert (error["code"], says in error["msg"]) == (code, True), error
    assert pod.links() == set()
    assert node.state_files() == set()


def test_a_guid_for_an_ethernet_vf(node: Node, pod: Pod) -> None:
    conf = node.conf(deviceID=pci("rail0v0"), runtimeConfig={"infinibandGUID": GUID})
    error = node.refused("ADD", pod, conf)
    assert (error["code"], "is Ethernet" in error["msg"]) == (7, True)


def test_any_free_vf_of_a_pf(node: Node, make_pod: Callable[[], Pod]) -> None:
    """Each with its own RDMA device."""
    conf, pods = node.conf(deviceID=..., pf=PF), [make_pod(), make_pod()]
    node.ok("STATUS", None, conf)
    for number, pod in enumerate(pods, 1):
        node.ok("ADD", pod, conf | {"guid": f"{GUID[:-2]}{number:02x}"})
        assert rdma_devs(pod.name) == {f"testib{number}"}
    for pod in pods:
        node.ok("DEL", pod, conf)


@pytest.mark.parametrize("keys", [{}, {"guid": GUID}], ids=repr)
def test_the_namespace_died(node: Node, pod: Pod, keys: dict[str, Any]) -> None:
    node.ok("ADD", pod, node.conf(**keys))
    pod.gone()
    node.ok("DEL", pod, node.conf(**keys))
    assert node.state_files() == set()


@pytest.mark.parametrize("keys", [{}, {"guid": GUID}], ids=["own", "given"])
def test_its_rdma_driver_is_no_more(node: Node, pod: Pod, keys: dict[str, Any]) -> None:
    """A pod that could not be deleted would not bring it back; its PF is told all the same."""
    before = hca.vf()
    node.ok("ADD", pod, node.conf(**keys))
    BARE.write_text("Y")
    try:
        hca.drive(node.device, "testib")
        node.ok("DEL", pod, node.conf(**keys))
        assert (hca.vf()["port guid"] == GUID, node.state_files()) == (False, set())
    finally:
        BARE.write_text("N")
        hca.drive(node.device, "testib")
        tell(**{key.replace(" ", "_"): value for key, value in before.items() if "guid" in key})


def test_ipoib_is_no_more(node: Node, pod: Pod) -> None:
    functions = {f"ib{number}": Path("/sys/bus/pci/devices", pci(f"ib{number}")) for number in range(hca.VFS + 1)}
    node.ok("ADD", pod)
    subprocess.run(["modprobe", "-r", "ib_ipoib"], check=True)
    try:
        node.ok("DEL", pod)
        assert (rdma_devs(pod.name), node.state_files()) == (set(), set())
    finally:
        subprocess.run(["modprobe", "ib_ipoib"], check=True)
        for suffix in ("-", ""):  # it numbers them anew
            for name, function in functions.items():
                (now,) = (function / "net").iterdir()
                ip("link", "set", now.name, "name", name + suffix)


def test_a_dead_owner_is_replaced(node: Node, make_pod: Callable[[], Pod]) -> None:
    owner, other = make_pod(), make_pod()
    node.ok("ADD", owner, node.conf(guid=GUID))
    owner.gone()
    node.ok("ADD", other, node.conf(guid=OTHER))
    assert hca.vf()["port guid"] == OTHER
    assert rdma_devs(other.name) == {RDMA}
    node.ok("GC", None, node.conf() | {"cni.dev/valid-attachments": []})
    assert other.links() == set()


@pytest.mark.parametrize("keys", [{}, {"guid": GUID}], ids=repr)
def test_shared_mode(node: Node, make_pod: Callable[[], Pod], keys: dict[str, Any]) -> None:
    """The netdev moves alone, the same one all the time but for what binding does."""
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
        # Refused as long as there is a namespace, and one that is deleted is there a moment longer.
        until(lambda: subprocess.run(["rdma", "system", "set", "netns", "exclusive"], check=False).returncode == 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda _: ip("link", "set", PF, "vf", "0", "port_guid", OTHER), "port_guid"),
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


def test_a_vf_that_the_pod_drives(node: Node, pod: Pod) -> None:
    """Its GUID is told to the PF; who drives it reads it there.  What it had nobody on this side can ask it."""
    tell(node_guid=hca.NONE, port_guid=hca.NONE)
    hca.drive(node.device, "vfio-pci")
    try:
        result = node.ok("ADD", pod, node.conf(guid=GUID))
        assert result["interfaces"][0]["pciID"] == node.device
        assert (hca.vf()["node guid"], hca.vf()["port guid"]) == (GUID, GUID)
        assert node.checked(pod, node.conf(guid=GUID), result).exit_code == 0
        node.ok("DEL", pod)
        assert (hca.vf()["node guid"], hca.vf()["port guid"]) == ("ff:ff:ff:ff:ff:ff:ff:ff",) * 2
    finally:
        tell(node_guid=hca.NONE, port_guid=hca.NONE)
        hca.drive(node.device, "testib")


@pytest.fixture
def slow() -> Iterator[None]:
    """A driver that takes three seconds to let go of a VF."""
    REMOVE_MS.write_text("3000")
    yield
    REMOVE_MS.write_text("0")


def test_a_driver_that_does_not_let_go(node: Node, pod: Pod, slow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADD gives up in time, and so does what undoes it; a DEL that waits longer undoes the rest."""
    with monkeypatch.context() as patch:
        patch.setattr(infiniband, "_REBIND_TIMEOUT", 0.3)
        error = node.refused("ADD", pod, node.conf(guid=GUID))
    assert (error["code"], "has not let go" in error["msg"]) == (11, True)
    assert "could not undo" in error["details"]
    node.ok("DEL", pod)
    assert node.state_files() == set()
    os.wait()


def test_killed_while_the_driver_lets_go(node: Node, pod: Pod, slow: None) -> None:
    """Who comes next waits until the driver is done."""
    plugin = os.fork()
    if not plugin:
        node.call("ADD", pod, node.conf(guid=GUID))
        os._exit(0)
    until(lambda: Path(f"/proc/{plugin}/task/{plugin}/children").read_text(), 20)
    time.sleep(0.5)
    os.kill(plugin, signal.SIGKILL)
    os.waitpid(plugin, 0)
    REMOVE_MS.write_text("0")
    node.ok("DEL", pod)
    assert node.state_files() == set()


STRIDE = 5


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_killed_between_steps(node: Node, pod: Pod, command: str) -> None:
    conf = node.conf(guid=GUID, link_state="disable", mtu=2000)
    before = node.picture()
    for n in itertools.count():
        step = n * STRIDE
        if command == "DEL":
            node.ok("ADD", pod, conf)
        killed = killed_at(step, node.request(command, pod, conf))
        if n % 2:
            pod.remade()
        node.ok("DEL", pod, conf, CNI_NETNS="" if n % 2 else pod.path)
        assert pod.links() == set(), f"VF left in the pod after step {step}"
        assert node.state_files() == set(), f"files left after step {step}"
        assert node.picture() == before, f"not as it was after step {step}"
        if not killed:
            break
    assert step > 20
