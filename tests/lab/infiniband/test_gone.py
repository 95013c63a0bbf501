"""An InfiniBand VF when its pod, driver or plugin ends at a bad moment."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from guest import hca
from guest.hca import GUID, NAME, OTHER_GUID, RDMA, Node
from guest.node import pci, rdma_devs
from guest.recovery import recovered
from support.topology import Pod, ip, until

from base.kernel import budget
from cni.kinds.sriov import infiniband

REMOVE_MS, FILES_MS, BARE = (Path("/sys/module/testib/parameters", name) for name in ("remove_ms", "files_ms", "bare"))


@pytest.mark.parametrize("keys", [{}, {"guid": GUID}], ids=repr)
def test_the_namespace_died(node: Node, pod: Pod, keys: dict[str, Any]) -> None:
    node.ok("ADD", pod, node.conf(**keys))
    pod.gone()
    node.ok("DEL", pod, node.conf(**keys))
    assert node.state_files() == set()


@pytest.mark.parametrize("keys", [{}, {"guid": GUID}], ids=["own", "given"])
def test_its_rdma_driver_is_no_more(node: Node, pod: Pod, keys: dict[str, Any]) -> None:
    """DEL succeeds without the RDMA device and resets the GUID on the PF: a failed DEL would not restore the device."""
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
        hca.tell(**{key.replace(" ", "_"): value for key, value in before.items() if "guid" in key})


def test_ipoib_is_no_more(node: Node, pod: Pod) -> None:
    functions = {f"ib{number}": Path("/sys/bus/pci/devices", pci(f"ib{number}")) for number in range(hca.VFS + 1)}
    node.ok("ADD", pod)
    subprocess.run(["modprobe", "-r", "ib_ipoib"], check=True)
    try:
        node.ok("DEL", pod)
        assert (rdma_devs(pod.name), node.state_files()) == (set(), set())
    finally:
        subprocess.run(["modprobe", "ib_ipoib"], check=True)
        for suffix in ("-", ""):  # ib_ipoib numbers them anew
            for name, function in functions.items():
                (now,) = (function / "net").iterdir()
                ip("link", "set", now.name, "name", name + suffix)


def test_a_dead_owner_is_replaced(node: Node, make_pod: Callable[[], Pod]) -> None:
    owner, other = make_pod(), make_pod()
    node.ok("ADD", owner, node.conf(guid=GUID))
    owner.gone()
    node.ok("ADD", other, node.conf(guid=OTHER_GUID))
    assert hca.vf()["port guid"] == OTHER_GUID
    assert rdma_devs(other.name) == {RDMA}
    node.ok("GC", None, node.conf() | {"cni.dev/valid-attachments": []})
    assert other.links() == set()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A netdev that exists for two seconds without the files of ib_ipoib."""
    monkeypatch.setattr(budget, "REQUEST", 120.0)
    FILES_MS.write_text("2000")
    yield
    FILES_MS.write_text("0")


@pytest.mark.parametrize("mode", ["datagram", "connected"])
def test_the_netdev_returns_without_its_files(node: Node, pod: Pod, late: None, mode: str) -> None:
    """DEL waits for the file with the netdev's mode."""
    there = Path(f"/sys/class/net/{NAME}/mode")
    there.write_text(f"{mode}\n")
    node.ok("ADD", pod)
    pod.gone()
    node.ok("DEL", pod)
    assert (there.read_text(), node.state_files()) == (f"{mode}\n", set())
    there.write_text("datagram\n")


@pytest.fixture
def slow() -> Iterator[None]:
    """A driver that takes three seconds to release a VF."""
    REMOVE_MS.write_text("3000")
    yield
    REMOVE_MS.write_text("0")


def test_a_driver_that_does_not_let_go(node: Node, pod: Pod, slow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADD gives up in time, and so does its undo; a DEL that waits longer undoes the rest."""
    with monkeypatch.context() as patch:
        patch.setattr(infiniband, "_REBIND_TIMEOUT", 0.3)
        error = node.refused("ADD", pod, node.conf(guid=GUID))
    assert (error["code"], "has not released it" in error["msg"]) == (11, True)
    assert "could not undo" in error["details"]
    node.ok("DEL", pod)
    assert node.state_files() == set()
    os.wait()


def test_killed_while_the_driver_lets_go(node: Node, pod: Pod, slow: None) -> None:
    """The next command waits until the driver has finished."""
    plugin = os.fork()
    if not plugin:
        node.call("ADD", pod, node.conf(guid=GUID))
        os._exit(0)
    until(lambda: Path(f"/proc/{plugin}/task/{plugin}/children").read_text(), 120)
    # time: so that it is in the midst of it; any moment is right
    time.sleep(0.5)
    os.kill(plugin, signal.SIGKILL)
    os.waitpid(plugin, 0)
    REMOVE_MS.write_text("0")
    node.ok("DEL", pod)
    assert node.state_files() == set()


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_killed_between_steps(node: Node, pod: Pod, command: str) -> None:
    conf = node.conf(guid=GUID, link_state="disable", mtu=2000)
    before = node.picture()
    for where in recovered(node, pod, command, conf):
        assert node.picture() == before, f"not as it was {where}"
