"""hpn node hears the switch ports of its PFs.  A PF here is a veth that a tree in place of /sys gives to a function."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support import lldp_frames as frames
from support.dra_api import serving
from support.kubelet import Kubelet
from support.lldp_frames import VENDORS, announced, framed, tlv
from support.node_process import PROGRAM, RIGHTS, ROOT, NodeProcess
from support.pod_resources import listing
from support.sysfs_tree import Tree
from support.topology import Host, Pod, ip, until

PFS = {"rail0": "0000:3b:00.0", "rail1": "0000:5e:00.0"}
FAR = {"rail0": "fabric", "rail1": "far1"}
RESOURCE: dict[str, Any] = {"name": "example.com/rails", "kind": "pf", "selectors": {"ifNames": ["rail0", "rail1"]}}
STDERR = 2
# With it events of rail0, which is a veth here, count as those of a device.
SOFTWARE: dict[str, Any] = {
    "name": "example.com/soft", "kind": "master", "selectors": {"ifNames": ["rail0"], "kinds": ["netdev"]}
}  # fmt: skip
# With CAP_NET_RAW, as the unit, and as the chart for a file with lldp.
WITH_RAW = [*RIGHTS[:2], "--bounding-set=-all,+net_admin,+net_raw", *RIGHTS[3:]]


@dataclass
class Node:
    """hpn node with two PFs, and its state of neighbors as other commands read it."""

    process: NodeProcess
    tree: Tree
    file: Path

    def neighbor(self, rail: str) -> dict[str, Any]:
        """The last neighbor of the rail; empty without one."""
        there = json.loads(self.file.read_text())["body"]["neighbors"] if self.file.exists() else {}
        return dict(there.get(PFS[rail], {}))

    def ports(self) -> dict[str, tuple[str, str]]:
        return {rail: (one["name"], one["port"]) for rail in PFS if (one := self.neighbor(rail))}

    def hears(self, rail: str, *frames_of_it: bytes, **expected: Any) -> None:
        """Send the frames to a rail until it has a neighbor with these members."""

        def heard() -> bool:
            frames.send(FAR[rail], *frames_of_it)
            time.sleep(0.2)  # time: the next announcement
            return expected.items() <= self.neighbor(rail).items()

        until(heard)

    def reader(self) -> int:
        """The process that reads frames: the only child, once it is confined."""

        def confined() -> int:
            parent = self.process.process.pid
            for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
                with suppress(FileNotFoundError):  # another child, which has ended
                    if self.status(int(pid), "Seccomp") == "2":
                        return int(pid)
            return 0

        return int(until(confined))

    def status(self, pid: int, key: str) -> str:
        return Path(f"/proc/{pid}/status").read_text().partition(f"\n{key}:")[2].split("\n")[0].strip()


@pytest.fixture
def node(host: Host) -> Iterator[Node]:
    ip("link", "add", "rail1", "up", "type", "veth", "peer", "name", "far1")
    ip("link", "set", "far1", "up")
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        process, tree = NodeProcess(Path(folder), [RESOURCE]), Tree(Path(folder, "sys"))
        for rail, address in PFS.items():
            tree.netdev(rail, tree.pci(address), speed=400_000)
        run = Path(folder, "run")
        run.mkdir()
        process.mounts = [f"mount --bind {run} /run", f"mount --bind {tree.root} /sys"]
        process.program = [*WITH_RAW, *process.program]
        process.write([RESOURCE], lldp=True)
        yield Node(process, tree, run / "hpn/node/neighbors.json")


@pytest.mark.parametrize("maker", VENDORS)
def test_each_maker(node: Node, maker: str) -> None:
    with node.process:
        node.hears("rail0", VENDORS[maker], ttl=120, speed=400)
    assert node.neighbor("rail0")["chassis_kind"] == "mac"


def test_from_plugging_to_silence(node: Node) -> None:
    """Each PF has its own port; exchanged cables show; a silent or withdrawn port stays, with its time."""
    one, other = announced("leaf1", "Eth1/1", frames.vlan(101)), announced("leaf2", "Eth1/1", frames.max_frame(9216))
    with node.process:
        node.hears("rail0", one, name="leaf1", vlan=101)
        node.hears("rail1", other, name="leaf2", max_frame=9216)
        # A wrong VLAN of the same port.
        node.hears("rail0", announced("leaf1", "Eth1/1", frames.vlan(999)), vlan=999)
        # The cables change places: the new port speaks twice while the old one is silent.
        frames.send("fabric", other)
        node.hears("rail1", one, name="leaf1")
        node.hears("rail0", other, name="leaf2")
        # A withdrawal, and silence.
        node.hears("rail0", announced("leaf2", "Eth1/1", seconds=0), ttl=0, name="leaf2")
        node.hears("rail0", one, name="leaf1")  # at once: nothing current is there
    assert node.ports() == {"rail0": ("leaf1", "Eth1/1"), "rail1": ("leaf1", "Eth1/1")}
    # A restart of hpn node in the same boot knows them.
    with node.process:
        node.reader()
        assert node.ports() == {"rail0": ("leaf1", "Eth1/1"), "rail1": ("leaf1", "Eth1/1")}
    # Without the key nobody hears, so nothing is shown.
    node.process.write([RESOURCE])
    with node.process:
        until(lambda: not node.file.exists())


def test_hpn_devices_shows_them(node: Node) -> None:
    with node.process:
        node.hears("rail0", VENDORS["junos"], name="qfx-leaf2")
        space = ["nsenter", f"--mount=/proc/{node.process.process.pid}/ns/mnt", "env", "-C", f"{ROOT}"]
        inside = [*space, *PROGRAM, "devices"]
        table = subprocess.run(inside, stdout=subprocess.PIPE, text=True, check=True).stdout
        assert "  qfx-leaf2 et-0/0/5:0  " in table
        document = subprocess.run([*inside, "--json"], stdout=subprocess.PIPE, text=True, check=True).stdout
        wiring = subprocess.run([*space, *PROGRAM, "fabric", "wiring"], stdout=subprocess.PIPE, text=True, check=False)
    assert wiring.returncode == 1
    assert "rail 1 (rail1) has no neighbor, and others have one; check its cable" in wiring.stdout
    shown = {one["netdevs"][0]: one["neighbor"] for one in json.loads(document)["devices"]}
    assert shown["rail1"] is None
    assert (shown["rail0"]["leafPort"], shown["rail0"]["vlan"], shown["rail0"]["current"]) == ("et-0/0/5:0", 100, True)


def test_resource_slices_have_them(node: Node, tmp_path: Path) -> None:
    """A device has its switch port as attributes, also after the link has gone; another one counts later."""
    with serving(tmp_path) as (api, kubeconfig):
        node.process.flags = ("--kubeconfig", str(kubeconfig))
        node.process.write([{**RESOURCE, "by": "dra"}, SOFTWARE], lldp=True, health={"upAfter": 2})
        node.process.registry.mkdir(parents=True)

        def attributes(name: str) -> dict[str, Any]:
            _, device = api.devices().get(PFS["rail0"], ("", {"attributes": {}}))
            return {key: one for key, one in device["attributes"].items() if key.startswith(name)}

        with listing(node.process.kubelet), node.process:
            node.hears("rail0", VENDORS["nx-os"], name="leaf-2.dc1")
            until(lambda: attributes("leaf"))
            assert attributes("leaf") == {
                "leaf": {"string": "leaf-2.dc1"},
                "leafPort": {"string": "Ethernet1/31"},
                "leafVlan": {"int": 102},
                "leafMaxFrame": {"int": 9216},
            }
            assert attributes("speed") | attributes("rail") == {"speed": {"int": 400}, "rail": {"int": 0}}
            ip("link", "set", "fabric", "down")
            until(lambda: any("taints" in one for _, one in api.devices().values()))
            assert attributes("leaf")["leaf"] == {"string": "leaf-2.dc1"}
            ip("link", "set", "fabric", "up")
            node.hears("rail0", VENDORS["junos"], name="qfx-leaf2")
            until(lambda: attributes("leaf")["leaf"] == {"string": "qfx-leaf2"})


def test_the_key_is_turned_off_and_on(node: Node) -> None:
    with node.process:
        node.hears("rail0", VENDORS["eos"], name="leaf2")
        node.process.write([RESOURCE])
        node.process.reload()
        until(lambda: not node.file.exists())
        node.process.write([RESOURCE], lldp=True)
        node.process.reload()
        node.hears("rail0", VENDORS["eos"], name="leaf2")


def test_an_interface_that_was_in_a_pod(node: Node, pod: Pod) -> None:
    """A PF that went into a pod and came back is heard again; meanwhile its last neighbor stays."""
    node.process.write([RESOURCE, SOFTWARE], lldp=True)
    function = node.tree.root / "devices/pci0000:00" / PFS["rail0"]
    with node.process:
        node.hears("rail0", VENDORS["eos"], name="leaf2")
        ip("link", "set", "rail0", "netns", pod.name)
        node.tree.into_a_pod(function)
        node.hears("rail1", announced("leaf7", "Eth7"), name="leaf7")
        assert node.neighbor("rail0")["name"] == "leaf2"
        node.tree.home(function)
        pod.ip("link", "set", "rail0", "netns", str(os.getpid()))
        ip("link", "set", "rail0", "up")
        node.hears("rail0", VENDORS["junos"], name="qfx-leaf2")


def test_frames_that_are_no_lldpdu(node: Node) -> None:
    """The log has one line per PF, and the neighbor stays; frames to other addresses do not count."""
    bad = [framed(tlv(1, b"\x04")), framed(tlv(2, b"\x05x")), b"\x01\x80\xc2\0\0\x0e" + bytes(6) + b"\x88\xcc"]
    with node.process:
        node.hears("rail0", VENDORS["sonic"], name="sonic-leaf2")
        for _ in range(5):
            node.hears("rail0", *bad, framed(*[tlv(126, bytes(400))] * 3), name="sonic-leaf2")
        frames.send("fabric", announced("spoof", "x").replace(b"\x01\x80\xc2\0\0\x0e", b"\xff" * 6))
        node.hears("rail1", VENDORS["eos"], name="leaf2")
        assert node.neighbor("rail0")["name"] == "sonic-leaf2"
        assert node.process.says("lldp: rail0 receives frames that are not LLDPDUs")
    assert len([line for line in node.process.said if "not LLDPDUs" in line]) == 1


def test_the_reader_has_no_rights(node: Node) -> None:
    """The process that reads frames has no capability, few system calls, and no file but its sockets and its log."""
    with node.process:
        reader = node.reader()
        for key, value in {"CapEff": "0" * 16, "CapPrm": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}.items():
            assert node.status(reader, key) == value
        files = [path.readlink() for path in Path(f"/proc/{reader}/fd").iterdir() if int(path.name) > STDERR]
        assert {f"{path}".partition(":")[0] for path in files} <= {"socket", "pipe"}
        # It is started again if it ends.
        os.kill(reader, signal.SIGKILL)
        assert node.process.says("lldp: the process that reads frames has ended")
        node.hears("rail0", VENDORS["eos"], name="leaf2")


def test_without_the_right_to_hear(node: Node) -> None:
    node.process.program = [*RIGHTS, *node.process.program[len(RIGHTS) :]]
    with node.process:
        assert node.process.says("lldp: no neighbor of rail0 can be heard: Operation not permitted; its unit needs")


@pytest.mark.parametrize("is_on", [False, True])
def test_nothing_wakes_it_without_a_frame(node: Node, is_on: bool) -> None:
    """In 20 s without a frame neither hpn node nor its reader wakes up."""
    node.process.write([RESOURCE], lldp=is_on)
    with Kubelet(node.process.kubelet) as kubelet, node.process:
        until(lambda: kubelet.devices("example.com/rails"))
        pids = [node.process.process.pid, *([node.reader()] if is_on else [])]

        def woken() -> list[str]:
            return [node.status(pid, "voluntary_ctxt_switches") for pid in pids]

        def sleeps(seconds: float) -> bool:
            before = woken()
            # time: nothing is to happen
            time.sleep(seconds)
            return woken() == before

        assert until(lambda: sleeps(20), 400)


def test_a_flood(node: Node) -> None:
    """A flood costs hpn node's processes less than 1 % of a processor each; a neighbor is heard after it."""
    with node.process:
        node.hears("rail0", VENDORS["eos"], name="leaf2")
        pids = node.process.process.pid, node.reader()
        before, began, count = [ticks(pid) for pid in pids], time.monotonic(), 0
        storm = [announced("leaf2", f"Eth{number}") for number in range(200)]
        while time.monotonic() < began + 10:
            frames.send("fabric", *storm)
            count += len(storm)
        took = time.monotonic() - began
        shares = [(ticks(pid) - old) / os.sysconf("SC_CLK_TCK") / took for pid, old in zip(pids, before, strict=True)]
        print(f"{count / took:.0f} frames a second: {', '.join(f'{share:.2%}' for share in shares)} of a processor")
        assert all(share < 0.01 for share in shares)
        assert node.neighbor("rail0")["name"] == "leaf2"
        node.hears("rail0", VENDORS["junos"], name="qfx-leaf2")


def ticks(pid: int) -> int:
    """The processor time of a process, in clock ticks."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(numbers[11]) + int(numbers[12])
