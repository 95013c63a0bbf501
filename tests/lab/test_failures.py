"""Hardware disappears, and other hardware comes back in its place: DEL succeeds and touches no other owner's device,
and the hardware serves the next pod."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from guest.machine import bring_up, plug, unplug
from guest.node import MAC, NAME, PF, RDMA, Node, netdev, pci, rdma_devs, vf
from guest.processes import held
from guest.qmp import Monitor
from support.topology import Pod, ip, until

BUS = Path("/sys/bus/pci")
CHANGES = {"vlan": 7, "spoofchk": "off", "trust": "on", "mtu": 1400}
BUSY, NOT_THERE, REFUSED, GONE = 11, 101, 105, 107


@dataclass(frozen=True)
class Way:
    """A way in which a PF loses its VFs, and the steps before it can have new ones."""

    name: str
    breaks: Callable[[str], object]
    mends: Callable[[str], object]


def write(path: str, text: str) -> None:
    (BUS / path).write_text(text)


def pulled(_address: str) -> None:
    with Monitor() as monitor:
        unplug(monitor, 0)


def put_back(address: str) -> None:
    with Monitor() as monitor:
        plug(monitor, 0, address)


def scanned(address: str) -> None:
    write("rescan", "1")
    bring_up(0, address)


def bound(address: str) -> None:
    write("drivers/igb/bind", address)
    bring_up(0, address)


WAYS = [
    Way("no VFs", lambda address: write(f"devices/{address}/sriov_numvfs", "0"), lambda address: bring_up(0, address)),
    Way("unbound", lambda address: write("drivers/igb/unbind", address), bound),
    Way("removed", lambda address: write(f"devices/{address}/remove", "1"), scanned),
    Way("pulled", pulled, put_back),
]


@dataclass
class Loss:
    """A PF that a test may break."""

    way: Way
    address: str
    mac: str
    broken: bool = False

    def breaks(self) -> None:
        self.way.breaks(self.address)
        self.broken = True

    def mends(self) -> None:
        """Create VFs again: other devices at the same addresses."""
        self.way.mends(self.address)
        # A VF without a MAC from its PF has a random one.
        ip("link", "set", NAME, "address", self.mac)
        self.broken = False


@pytest.fixture
def loss(node: Node, request: pytest.FixtureRequest) -> Iterator[Loss]:
    loss = Loss(request.param, pci(PF), netdev()["address"])
    yield loss
    if loss.broken:  # by a test that failed
        loss.mends()


def by(*ways: Way) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("loss", ways, indirect=True, ids=lambda way: way.name)


@by(*WAYS)
def test_the_vf_of_a_pod_goes(node: Node, make_pod: Callable[[], Pod], loss: Loss) -> None:
    pod, bystander = make_pod(), make_pod()
    elsewhere = node.conf(deviceID=pci("rail1v0"))
    stays = node.ok("ADD", bystander, elsewhere)
    result = node.ok("ADD", pod, node.conf(**CHANGES))
    addresses = node.leases()
    loss.breaks()
    until(lambda: not pod.links())
    error = json.loads(node.checked(pod, node.conf(**CHANGES), result).stdout)
    assert (error["code"], node.device in error["msg"]) == (GONE, True)
    assert node.refused("ADD", make_pod(), node.conf())["code"] == NOT_THERE
    node.ok("DEL", pod, node.conf(**CHANGES))
    assert (len(addresses), len(node.leases())) == (4, 2)
    assert not node.record(pod).exists()
    node.ok("DEL", pod, node.conf(**CHANGES))
    assert node.checked(bystander, elsewhere, stays).exit_code == 0
    loss.mends()
    node.serves(pod)
    node.ok("DEL", bystander, elsewhere)
    assert node.state_files() == set()


@by(WAYS[0], WAYS[-1])
def test_another_vf_came_in_its_place(node: Node, make_pod: Callable[[], Pod], loss: Loss) -> None:
    """DEL resets no other VF at the first VF's address, whether another pod or the host has it."""
    pod, other = make_pod(), make_pod()
    node.ok("ADD", pod, node.conf(**CHANGES))
    loss.breaks()
    loss.mends()
    # The first attachment has lost its VF, although no DEL has come for it yet.
    keys = {"vlan": 9, "mac": MAC, "trust": "on"}
    result = node.ok("ADD", other, node.conf(**keys))
    before = other.link(), vf()
    node.ok("DEL", pod, node.conf(**CHANGES))
    assert (other.link(), vf()) == before
    assert node.checked(other, node.conf(**keys), result).exit_code == 0
    node.ok("DEL", other)
    assert node.state_files() == set()


@by(WAYS[0])
def test_the_host_has_another_vf_in_its_place(node: Node, pod: Pod, loss: Loss) -> None:
    node.ok("ADD", pod, node.conf(**CHANGES))
    loss.breaks()
    loss.mends()
    ip("link", "set", NAME, "name", "mine", "mtu", "1300", "up")
    ip("link", "property", "add", "dev", "mine", "altname", "also-mine")
    ip("link", "set", PF, "vf", "0", "spoofchk", "off")
    try:
        before = netdev("mine"), vf()
        node.ok("DEL", pod, node.conf(**CHANGES))
        assert (netdev("mine"), vf()) == before
    finally:
        ip("link", "property", "del", "dev", "mine", "altname", "also-mine")
        ip("link", "set", "mine", "down", "name", NAME, "mtu", "1500")
        ip("link", "set", PF, "vf", "0", "spoofchk", "on")
    assert node.state_files() == set()


@by(WAYS[0])
def test_the_same_pod_gets_the_vf_that_came_in_its_place(node: Node, pod: Pod, loss: Loss) -> None:
    """ADD without a DEL before it undoes the first ADD: it releases the addresses."""
    node.ok("ADD", pod, node.conf(**CHANGES))
    loss.breaks()
    loss.mends()
    node.ok("ADD", pod)
    assert vf()["vlan_list"] == [{}]
    assert len(node.leases()) == 2
    node.ok("DEL", pod)
    assert node.state_files() == set()


def is_recorded(node: Node, pod: Pod) -> bool:
    return node.record(pod).exists()


def is_away(node: Node, pod: Pod) -> bool:
    return is_recorded(node, pod) and not node.is_home()


def is_home(node: Node, _: Pod) -> bool:
    return node.is_home()


@by(WAYS[0])
@pytest.mark.parametrize(
    ("command", "when"),
    [("ADD", is_recorded), ("ADD", is_away), ("DEL", is_away), ("DEL", is_home)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_vf_goes_while_a_command_runs(
    node: Node, pod: Pod, loss: Loss, command: str, when: Callable[[Node, Pod], bool]
) -> None:
    conf = node.conf(**CHANGES)
    if command == "DEL":
        node.ok("ADD", pod, conf)
    with held(node.request(command, pod, conf), lambda: when(node, pod)) as process:
        loss.breaks()
        reply = process.goes_on()
    assert pod.links() == set()
    if command == "ADD":
        assert json.loads(reply.stdout)["code"] in (BUSY, NOT_THERE, REFUSED)
    else:
        assert (reply.exit_code, reply.stdout) == (0, "")
    assert node.state_files() == set()
    loss.mends()
    node.serves(pod)


def test_a_vf_is_reset_in_the_pod(node: Node, pod: Pod) -> None:
    """The VF and the attachment stay; the link comes back with the next pod at the latest."""
    result = node.ok("ADD", pod)
    write(f"devices/{node.device}/reset", "1")
    assert node.checked(pod, node.conf(), result).exit_code == 0
    node.ok("DEL", pod)
    node.ok("ADD", pod)
    until(lambda: "LOWER_UP" in (pod.link() or {})["flags"], 120)
    node.ok("DEL", pod)


def test_a_record_that_cannot_be_read(node: Node, make_pod: Callable[[], Pod]) -> None:
    """The VF goes home with its RDMA device and can be attached again, but its earlier state is unknown."""
    pod, before = make_pod(), netdev()
    node.ok("ADD", pod)
    assert (RDMA in rdma_devs(), pod.links()) == (False, {"hpn0"})
    node.record(pod).write_bytes(b"")
    assert node.refused("DEL", pod)["code"] == 108
    assert (pod.links(), node.leases()) == (set(), set())
    assert RDMA in rdma_devs()
    (home,) = os.listdir(f"/sys/bus/pci/devices/{node.device}/net")
    node.ok("DEL", pod)
    result = node.ok("ADD", pod)
    assert node.checked(pod, node.conf(), result).exit_code == 0
    node.ok("DEL", pod)
    ip("link", "set", home, "name", NAME)
    assert netdev() == before
