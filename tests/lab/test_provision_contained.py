"""hpn node of a DaemonSet configures PFs: a root process with NET_ADMIN only, and a container's mounts."""

from pathlib import Path

import pytest
from guest.machine import rdma
from guest.node import PF
from lab.test_provision import OPTION, RAIL0, VFS, address, count, mtus, process, trusted, vfs
from support.kubelet import Kubelet
from support.node_process import PROGRAM, RIGHTS, NodeProcess
from support.topology import until

__all__ = ["address", "process"]
LONG = 180.0  # seconds: the emulated machine may be busy
IMAGE = "mount -t tmpfs tmpfs /etc"  # the image has only the program
REMEDY = "mount the host's there, as the chart does with provision: true"


@pytest.fixture
def contained(process: NodeProcess, address: str) -> NodeProcess:
    count(address, 0)
    process.program = [*RIGHTS, *PROGRAM]
    # As a runtime mounts it.
    process.mounts = ["mount -o remount,bind,ro /sys", IMAGE]
    return process


def test_without_mounts_of_the_host(contained: NodeProcess, address: str) -> None:
    """hpn node reports what it cannot do, and does the rest."""
    rule = {"selectors": {"pciAddresses": [address]}, "numVfs": 3, "mtu": 2000}
    contained.write([VFS], pfs=[rule], rdmaNamespaces="exclusive")
    with contained:
        contained.says(f"numVfs 3: {PF} ({address}) has 0, and /sys is read-only in this container; {REMEDY}", LONG)
        contained.says(f"netns_mode=N: /etc/modprobe.d does not exist; make it, or {REMEDY}", LONG)
        until(lambda: mtus(address) == {2000}, LONG)
    assert (count(address), OPTION.exists()) == (0, False)


@pytest.mark.usefixtures("exclusive")
def test_with_mounts_of_the_host(kubelet: Kubelet, contained: NodeProcess, address: str, tmp_path: Path) -> None:
    """Those of `provision: true` in packaging/helm/hpn; no further right is necessary."""
    kept = tmp_path / "modprobe.d"
    kept.mkdir()
    folder = OPTION.parent
    again = f"mkdir {folder} && mount --bind {kept} {folder}"
    contained.mounts = [f"mount --bind {folder} {kept}", IMAGE, again]
    rule = {"selectors": {"pciAddresses": [address]}, "numVfs": 3, "mtu": 2000, "trust": True}
    contained.write([VFS], pfs=[rule], rdmaNamespaces="shared")
    try:
        with contained:
            until(lambda: len(kubelet.devices(RAIL0)) == 3, LONG)
            kubelet.until(RAIL0, vfs(address))
            contained.says("made ready: rdmaNamespaces exclusive -> shared", LONG)
        assert (trusted(PF), mtus(address)) == ([True] * 3, {2000})
        assert rdma("system", "show")[0].startswith("netns shared")
        assert OPTION.read_text().splitlines()[-1] == "options ib_core netns_mode=Y"
    finally:
        OPTION.unlink(missing_ok=True)
