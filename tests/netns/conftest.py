"""A host and its pods: each test runs in a fresh network namespace, which acts as the host.  Pods are named namespaces
beside it, and the machine's own interfaces stay invisible."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import require
from support import pci
from support.topology import Host, Pod, ip

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def host(tmp_path: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """The namespace of the plugin, with a veth pair rail0 (a master, MTU 1500) - fabric; both ends are up."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    monkeypatch.setenv("HPN_STATE_DIR", "")  # the host's, until the test ends
    try:
        if _libc.unshare(CLONE_NEWNET):
            require("netns", f"may not make a network namespace ({os.strerror(ctypes.get_errno())}); run as root")
        yield Host(tmp_path)
    finally:
        assert _libc.setns(own, CLONE_NEWNET) == 0
        os.close(own)


@pytest.fixture(autouse=True)
def pods(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind of the pods, from HPN_PODS: "userns" gives each pod its own user namespace, in all tests."""
    if kind := getattr(request, "param", ""):
        monkeypatch.setenv("HPN_PODS", kind)


@pytest.fixture
def make_pod(host: Host) -> Iterator[Callable[[], Pod]]:
    """Make pods on demand; they are removed after the test."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Pod.made())


@pytest.fixture
def pod(make_pod: Callable[[], Pod]) -> Pod:
    return make_pod()


@pytest.fixture
def ipvlan(host: Host) -> str:
    """The name of the kind, if the kernel supports it."""
    tried = subprocess.run(
        ["ip", "link", "add", "link", "rail0", "name", "probe", "type", "ipvlan"], capture_output=True, check=False
    )
    if tried.returncode:
        pytest.skip("this kernel has no ipvlan; runs in the lab")
    ip("link", "delete", "probe")
    return "ipvlan"


@pytest.fixture(params=["macvlan", "ipvlan"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("ipvlan")) if request.param == "ipvlan" else "macvlan"


@pytest.fixture
def sys_tree(host: Host, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The PF of rail0, and one of its VFs."""
    root = host.tmp_path / "sys"
    pci.function(root, pci.PF, netdev="rail0")
    pci.function(root, pci.VF, pf=pci.PF)
    pci.is_sys(root, monkeypatch)
    return root


@pytest.fixture
def two_vfs(host: Host, sys_tree: Path) -> None:
    """The VF of the tree and another one, both with interfaces that are down."""
    devices = sys_tree / "bus/pci/devices"
    (devices / pci.PF / "virtfn0").symlink_to(f"../{pci.VF}")
    (devices / pci.PF / "virtfn1").symlink_to(f"../{pci.ANOTHER}")
    pci.function(sys_tree, pci.ANOTHER, netdev="vf1", pf=pci.PF)
    (devices / pci.VF / "net/vf0").mkdir(parents=True)
    for number in range(2):
        ip("link", "add", f"vf{number}", "type", "veth", "peer", "name", f"far{number}")
        ip("link", "set", f"far{number}", "up")
