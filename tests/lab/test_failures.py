"""Hardware that goes away, and what comes back late or as another: DEL succeeds, nothing that is another's is touched,
and the hardware serves the next pod."""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from guest.machine import bring_up, plug, unplug
from guest.node import MAC, NAME, PF, RDMA, Node, netdev, pci, picture, rdma_devs, vf
from guest.processes import at_once, held
from guest.qmp import Monitor
from topology import Pod, ip, until

from cni.kinds.sriov import choose

BUS = Path("/sys/bus/pci")
CHANGES = {"vlan": 7, "spoofchk": "off", "trust": "on", "mtu": 1400}
BUSY, NOT_THERE, REFUSED, GONE, OWNED = 11, 101, 105, 107, 109


@dataclass(frozen=True)
class Way:
    """One in which a PF loses its VFs, and what has to be done before it can have new ones."""

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
        """VFs are there again: others, at the same addresses."""
        self.way.mends(self.address)
        # A VF that its PF gives no MAC has a random one.
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


def serves(node: Node, pod: Pod) -> None:
    """The VF can be attached and works."""
    result = node.ok("ADD", pod, CNI_IFNAME="again0")
    link = pod.link("again0")
    assert link
    assert link["parentdev"] == node.device
    assert rdma_devs(pod.name) == {RDMA}
    assert node.checked(pod, node.conf(), result, CNI_IFNAME="again0").exit_code == 0
    node.ok("DEL", pod, CNI_IFNAME="again0")


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
    serves(node, pod)
    node.ok("DEL", bystander, elsewhere)
    assert node.state_files() == set()


@by(WAYS[0], WAYS[-1])
def test_another_vf_came_in_its_place(node: Node, make_pod: Callable[[], Pod], loss: Loss) -> None:
    """What was done to the first is undone to no other: not while another pod has it, nor while the host does."""
    pod, other = make_pod(), make_pod()
    node.ok("ADD", pod, node.conf(**CHANGES))
    loss.breaks()
    loss.mends()
    # The first attachment has lost it, although nobody has deleted that yet.
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
    """No DEL came between; what its first ADD left is undone, which is the addresses."""
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


def is_away(node: Node, _pod: Pod) -> bool:
    return is_recorded(node, _pod) and not list((BUS / "devices" / node.device / "net").glob("*"))


def is_home(node: Node, _pod: Pod) -> bool:
    return any((BUS / "devices" / node.device / "net").glob("*"))


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
    serves(node, pod)


def test_a_vf_is_reset_in_the_pod(node: Node, pod: Pod) -> None:
    """It stays, and what was attached is what was attached; the link comes back with the next pod at the latest."""
    result = node.ok("ADD", pod)
    write(f"devices/{node.device}/reset", "1")
    assert node.checked(pod, node.conf(), result).exit_code == 0
    node.ok("DEL", pod)
    node.ok("ADD", pod)
    until(lambda: "LOWER_UP" in (pod.link() or {})["flags"], 20)
    node.ok("DEL", pod)


@contextmanager
def lingering(pod: Pod) -> Iterator[Callable[[], None]]:
    """Its namespace is deleted and lives on, held by a descriptor, with nobody in it; let go by what is yielded."""
    with ExitStack() as stack:
        fd = os.open(pod.path, os.O_RDONLY)
        stack.callback(os.close, fd)
        pod.gone()
        yield stack.pop_all().close


def test_the_vf_comes_back_late(node: Node, make_pod: Callable[[], Pod], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "HOME_TIMEOUT", 0.5)
    pod, other = make_pod(), make_pod()
    node.ok("ADD", pod, node.conf(vlan=7))
    with lingering(pod) as let_go:
        for _ in range(2):
            error = node.refused("DEL", pod)
            assert (error["code"], node.device in error["msg"]) == (BUSY, True)
            assert (is_recorded(node, pod), len(node.leases())) == (True, 2)
        error = node.refused("ADD", other)
        assert error["code"] == BUSY
        let_go()
    until(lambda: is_home(node, pod))
    node.ok("DEL", pod)
    assert node.state_files() == set()
    serves(node, other)


def test_the_vf_comes_back_while_del_waits(node: Node, pod: Pod) -> None:
    node.ok("ADD", pod, node.conf(vlan=7))
    with lingering(pod) as let_go:
        timer = threading.Timer(1.0, let_go)
        timer.start()
        node.ok("DEL", pod)
        timer.join()
    assert node.state_files() == set()


@pytest.fixture
def pf_elsewhere(node: Node, make_pod: Callable[[], Pod]) -> Iterator[Callable[[], Callable[[], None]]]:
    """Moves the PF's netdev into a namespace; what that returns moves it back."""
    there = make_pod()

    def back() -> None:
        if there.link(PF):
            there.run("ip", "link", "set", PF, "netns", "lab-host").check_returncode()
            ip("link", "set", PF, "up")
            # It was down, and forgot the MAC that the VF had told it.
            ip("link", "set", NAME, "up")
            ip("link", "set", NAME, "down")

    def away() -> Callable[[], None]:
        ip("link", "set", PF, "netns", there.name)
        return back

    ip("netns", "attach", "lab-host", str(os.getpid()))
    yield away
    back()
    ip("netns", "delete", "lab-host")


def test_the_pf_is_elsewhere(
    node: Node, make_pod: Callable[[], Pod], pf_elsewhere: Callable[[], Callable[[], None]]
) -> None:
    """What only the PF can put back waits for it, and so does the next pod."""
    pod = make_pod()
    node.ok("ADD", pod, node.conf(vlan=7))
    back = pf_elsewhere()
    for _ in range(2):
        error = node.refused("DEL", pod)
        assert (error["code"], "bring it back" in error["msg"]) == (NOT_THERE, True)
        assert is_recorded(node, pod)
    # The VF itself is home.
    assert pod.links() == set()
    assert netdev()["ifname"] == NAME
    assert node.refused("ADD", make_pod())["code"] == OWNED
    back()
    node.ok("DEL", pod)
    assert vf()["vlan_list"] == [{}]
    assert node.state_files() == set()


def test_the_pf_is_elsewhere_and_has_nothing_of_ours(
    node: Node, pod: Pod, pf_elsewhere: Callable[[], Callable[[], None]]
) -> None:
    node.ok("ADD", pod)
    back = pf_elsewhere()
    node.ok("DEL", pod)
    assert node.state_files() == set()
    back()


def test_two_pods_want_one_vf(node: Node, make_pod: Callable[[], Pod]) -> None:
    """One gets it, each time, and the other is told so; whichever way they ask."""
    pods = [make_pod(), make_pod()]
    asked = (node.conf(vlan=7), node.conf(vlan=8)), (node.conf(), node.conf(deviceID=..., pf=PF, vf=0))
    won = set[int]()
    for n in range(20):
        confs = asked[n % 2]
        order = list(zip(pods, confs, strict=True))[:: 1 if n % 4 < 2 else -1]
        replies = at_once([node.request("ADD", pod, conf) for pod, conf in order])
        assert sorted(reply.exit_code for reply in replies) == [0, 1], replies
        (refused,) = (json.loads(reply.stdout) for reply in replies if reply.exit_code)
        assert refused["code"] in (OWNED, BUSY)
        (winner,) = (pod for pod, _ in order if pod.links())
        won.add(pods.index(winner))
        result = next(json.loads(reply.stdout) for reply in replies if not reply.exit_code)
        conf = confs[pods.index(winner)]
        assert node.checked(winner, conf, result).exit_code == 0
        assert len(node.leases()) == 2
        for pod in pods:
            node.ok("DEL", pod, conf)
        assert (vf()["vlan_list"], node.state_files()) == ([{}], set())
    assert won == {0, 1}


@pytest.fixture
def crowd(node: Node, make_pod: Callable[[], Pod]) -> Callable[[int], list[Pod]]:
    """So many pods with any VF of the PF."""

    def attached(count: int) -> list[Pod]:
        pods = [make_pod() for _ in range(count)]
        for pod in pods:
            node.ok("ADD", pod, any_vf(node, vlan=7))
        return pods

    return attached


def any_vf(node: Node, **keys: Any) -> dict[str, Any]:
    return node.conf(deviceID=..., pf=PF, **keys)


def devices(pods: list[Pod]) -> list[str]:
    return [link["parentdev"] for pod in pods if (link := pod.link())]


def test_two_pods_want_the_last_vf(node: Node, make_pod: Callable[[], Pod], crowd: Callable[[int], list[Pod]]) -> None:
    others, pods = crowd(3), [make_pod(), make_pod()]
    for _ in range(5):
        replies = at_once([node.request("ADD", pod, any_vf(node)) for pod in pods])
        assert sorted(reply.exit_code for reply in replies) == [0, 1], replies
        (refused,) = (json.loads(reply.stdout) for reply in replies if reply.exit_code)
        assert (refused["code"], "no free VF" in refused["msg"]) == (NOT_THERE, True)
        assert len(set(devices(pods + others))) == 4
        for pod in pods:
            node.ok("DEL", pod)
    for pod in others:
        node.ok("DEL", pod)
    assert node.state_files() == set()


def test_dead_pods_give_way(node: Node, make_pod: Callable[[], Pod], crowd: Callable[[int], list[Pod]]) -> None:
    """All VFs are attached, and two of the pods died without a DEL: two can be served, and a third cannot."""
    *dying, one, other = crowd(4)
    conf = any_vf(node)
    error = node.refused("ADD", make_pod(), conf)
    assert (error["code"], "no free VF" in error["msg"]) == (NOT_THERE, True)
    assert node.refused("STATUS", None, conf)["code"] == 50
    for pod in dying:
        pod.gone()
    node.ok("STATUS", None, conf)
    new = [make_pod(), make_pod()]
    replies = at_once([node.request("ADD", pod, conf) for pod in new])
    assert [reply.exit_code for reply in replies] == [0, 0], replies
    assert len(set(devices([*new, one, other]))) == 4
    numbers = {d: n for n, d in enumerate(choose.vfs_of(PF))}
    assert [vf(numbers[device])["vlan_list"] for device in devices(new)] == [[{}], [{}]]
    assert node.refused("ADD", make_pod(), conf)["code"] == NOT_THERE
    for pod in (*dying, *new, one, other):
        node.ok("DEL", pod, conf)
    assert node.state_files() == set()


def test_a_record_that_cannot_be_read(node: Node, make_pod: Callable[[], Pod]) -> None:
    """The VF goes home, with its RDMA device, and can be attached again; how it was, nobody knows any more."""
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


def test_a_pod_that_hides_its_vf(node: Node, make_pod: Callable[[], Pod]) -> None:
    """Netdev and RDMA device are in a namespace of the pod's own, and a link was made over it: they come home, and it
    goes."""
    subprocess.run(["modprobe", "tun"], check=True)
    before = picture()
    for over in ("pod", "child"):
        pod, child = make_pod(), make_pod()
        node.ok("ADD", pod)
        pod.ip("link", "add", "link", "hpn0", "name", "over0", "type", "macvlan", "mode", "bridge")
        if over == "child":
            pod.ip("link", "set", "over0", "netns", child.name)
        pod.ip("link", "set", "hpn0", "netns", child.name)
        child.ip("link", "set", "hpn0", "name", "data0", "address", "02:00:00:00:00:07")
        pod.run("rdma", "dev", "set", RDMA, "netns", child.name)
        assert (rdma_devs(child.name), child.link("data0") is not None) == ({RDMA}, True)
        node.ok("DEL", pod)
        assert pod.links() == child.links() == set()
        assert picture() == before
        assert node.state_files() == set()
        serves(node, pod)
