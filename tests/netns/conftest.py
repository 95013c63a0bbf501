"""A host and pods of our own: every test runs in a fresh network namespace that is "the host" to it, so the
machine's own interfaces are never seen, and pods are named namespaces beside it."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import require
from topology import Host, Pod, ip

from cni.state import places

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def host(tmp_path: Path, nothing_left: None) -> Iterator[Host]:
    """The namespace the plugin runs in: a veth pair rail0 (a master, MTU 1500) - fabric, both up."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    elsewhere, places.ELSEWHERE = places.ELSEWHERE, f"{tmp_path}/elsewhere"
    try:
        if _libc.unshare(CLONE_NEWNET):
            require("netns", f"may not make a network namespace ({os.strerror(ctypes.get_errno())}); run as root")
        yield Host(tmp_path)
    finally:
        places.ELSEWHERE = elsewhere
        assert _libc.setns(own, CLONE_NEWNET) == 0
        os.close(own)


@pytest.fixture(autouse=True)
def pods(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which kind pods are: HPN_PODS, which "userns" gives a user namespace of their own, says it of all tests."""
    if kind := getattr(request, "param", ""):
        monkeypatch.setenv("HPN_PODS", kind)


@pytest.fixture
def make_pod(host: Host) -> Iterator[Callable[[], Pod]]:
    """Make as many pods as the test needs; they are gone after it."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Pod.made())


@pytest.fixture
def pod(make_pod: Callable[[], Pod]) -> Pod:
    return make_pod()


@pytest.fixture
def ipvlan(host: Host) -> str:
    """The name of the kind, where the kernel has it."""
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
