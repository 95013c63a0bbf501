"""The lab: tests that need its kernel and its NICs, in the guest's own first namespace, where these are.

Those in shared/ are for RDMA in shared mode, and all others for exclusive.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from guest.kernel_log import KernelLog
from guest.machine import Guest, nics, rdma, set_mode
from guest.node import PF, Node, picture
from support.topology import Pod, until

if TYPE_CHECKING:
    from support.kubelet import Kubelet

HCA = "hcapf"
# Not a tier that is missing outside the guest: tests/test_lab.py goes where it is.
_MODE = Path("/sys/module/ib_core/parameters/netns_mode")  # Y for shared
_SHARED = _MODE.exists() and _MODE.read_text() == "Y\n"
collect_ignore_glob = (["test_*.py", "infiniband"] if _SHARED else ["shared"]) if "HPN_LAB" in os.environ else ["*"]


@pytest.fixture(scope="session")
def kernel_log() -> Iterator[KernelLog]:
    with KernelLog() as log:
        yield log
        # Of tests elsewhere that ran in the guest, and what came late.
        assert log.complaints() == []


@pytest.fixture(autouse=True)
def kernel_is_content(kernel_log: KernelLog) -> Iterator[None]:
    """After every test: the kernel has not warned of anything."""
    yield
    complaints = kernel_log.complaints()
    assert not complaints, "\n".join(complaints)


@pytest.fixture
def guest(tmp_path: Path, nothing_left: None) -> Iterator[Guest]:
    """The guest as a node; after the test its NICs are as before."""

    def picture() -> list[tuple[str, ...]]:
        return nics.table()

    before = picture()
    yield Guest(tmp_path)
    # What is in a namespace that goes comes back a moment later.
    until(lambda: picture() == before)


@pytest.fixture
def node(guest: Guest) -> Iterator[Node]:
    """The guest as a node that attaches VFs, which it finds again as they were, on host and PF."""
    node = Node(guest.tmp_path)
    before = picture()
    yield node
    if node.state_files():  # of a test that failed half-way, which is not to fail all others
        node.call("GC", None, node.conf() | {"cni.dev/valid-attachments": []})
    assert picture() == before


@pytest.fixture
def kubelet(guest: Guest) -> Iterator["Kubelet"]:
    """A kubelet that runs; its directory is the only one in its parent."""
    from support.kubelet import Kubelet  # noqa: PLC0415  # grpcio takes seconds in the guest, and few tests need it

    # A socket's path has 107 bytes at most.
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
    """The kernel in shared mode, which it changes to and from while there is no namespace but the first."""
    until(lambda: set_mode("shared"))
    yield
    until(lambda: set_mode("exclusive"))


@pytest.fixture
def hca(node: Node) -> Iterator[str]:
    """An RDMA device of the PF, and its name."""
    rdma("link", "add", HCA, "type", "testhca", "netdev", PF)
    yield HCA
    rdma("link", "delete", HCA)
