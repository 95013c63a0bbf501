"""The lab: tests that need its kernel and its NICs.  They run in the guest's first namespace, which contains the NICs.

Tests in shared/ run in RDMA's shared mode, all others in exclusive mode.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from guest.kernel_log import KernelLog
from guest.machine import Guest, nics, rdma, set_mode
from guest.node import PF, Node, picture
from support.topology import Pod, until

from base.state import journal, numbers
from cni.features import granted
from cni.kinds import device, ipoib

if TYPE_CHECKING:
    from support.kubelet import Kubelet

HCA = "hcapf"
# This tier is not missing outside the guest: tests/test_lab.py boots the guest for it.
_MODE = Path("/sys/module/ib_core/parameters/netns_mode")  # Y for shared
_SHARED = _MODE.exists() and _MODE.read_text() == "Y\n"
collect_ignore_glob = (["test_*.py", "infiniband"] if _SHARED else ["shared"]) if "HPN_LAB" in os.environ else ["*"]


@pytest.fixture(scope="session")
def kernel_log() -> Iterator[KernelLog]:
    with KernelLog() as log:
        yield log
        # Complaints from tests of other tiers in the guest, and late ones.
        assert log.complaints() == []


@pytest.fixture(autouse=True)
def kernel_is_content(kernel_log: KernelLog) -> Iterator[None]:
    """After every test: the kernel has logged no warning."""
    yield
    complaints = kernel_log.complaints()
    assert not complaints, "\n".join(complaints)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the time limits for others: in a loaded guest a slow driver, plugin or hpn node is not lost."""
    monkeypatch.setattr(granted, "_WRITTEN", 120.0)
    monkeypatch.setattr(journal, "LOCK_TIMEOUT", 120.0)
    monkeypatch.setattr(numbers, "_MOMENT", 60.0)
    for kind, name in ((device, "HOME_TIMEOUT"), (ipoib, "_HOME_TIMEOUT")):
        monkeypatch.setattr(kind, name, 60.0)


@pytest.fixture
def guest(tmp_path: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guest]:
    """The guest as a node; after the test its NICs are as before."""

    def picture() -> list[tuple[str, ...]]:
        return nics.table()

    before = picture()
    monkeypatch.setenv("HPN_STATE_DIR", "")  # the guest's, until the test ends
    yield Guest(tmp_path)
    # Devices of a deleted namespace return a moment later.
    until(lambda: picture() == before)


@pytest.fixture
def node(guest: Guest) -> Iterator[Node]:
    """The guest as a node that attaches VFs; after the test they are as before, on the host and on the PF."""
    node = Node(guest.tmp_path)
    before = picture()
    yield node
    if node.state_files():  # a test that failed half-way must not fail all others
        node.call("GC", None, node.conf() | {"cni.dev/valid-attachments": []})
    # A veth leaves a moment after its peer's namespace.
    with suppress(AssertionError):
        until(lambda: picture() == before)
    assert picture() == before


@pytest.fixture
def kubelet(guest: Guest) -> Iterator["Kubelet"]:
    """A running kubelet; its directory is the only one in its parent."""
    from support.kubelet import Kubelet  # noqa: PLC0415  # grpcio takes seconds in the guest, and few tests need it

    # A socket's path has at most 107 bytes.
    with TemporaryDirectory(prefix="hpn-test-") as folder, Kubelet(Path(folder, "kubelet")) as kubelet:
        yield kubelet


@pytest.fixture
def make_pod(guest: Guest) -> Iterator[Callable[[], Pod]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Pod.made())


@pytest.fixture
def pod(make_pod: Callable[[], Pod]) -> Pod:
    return make_pod()


@pytest.fixture
def shared(node: Node) -> Iterator[None]:
    """The kernel in shared mode; it can change the mode only while the first namespace is the only one."""
    until(lambda: set_mode("shared"))
    yield
    until(lambda: set_mode("exclusive"))


@pytest.fixture
def exclusive(guest: Guest) -> Iterator[None]:
    """The kernel in exclusive mode and free to change it; it removes earlier tests' namespaces in its own time."""
    until(lambda: set_mode("shared"))
    until(lambda: set_mode("exclusive"))
    yield
    until(lambda: set_mode("exclusive"))


@pytest.fixture
def hca(node: Node) -> Iterator[str]:
    """The name of an RDMA device of the PF."""
    rdma("link", "add", HCA, "type", "testhca", "netdev", PF)
    yield HCA
    rdma("link", "delete", HCA)
