"""PFs configured beside others that must stay untouched: one in a pod, and one in Open vSwitch."""

from collections.abc import Callable
from pathlib import Path

from guest import ovs
from guest.machine import insert, nics, unplug
from guest.node import PF
from guest.qmp import Monitor
from lab.test_provision import RAIL0, VFS, address, count, dry_run, inodes, mtus, process, write
from support.kubelet import Kubelet
from support.node_process import NodeProcess
from support.topology import Pod, ip, until

__all__ = ["address", "process", "write"]
OTHER = "rail1"
LONG = 120.0  # seconds: VFs are made anew, in an emulated machine that may be busy


def test_a_pf_pulled_beside_one_that_a_pod_has(kubelet: Kubelet, process: NodeProcess, address: str, pod: Pod) -> None:
    """hpn node configures the PF that returns, and changes nothing of the other."""
    other = next(pf.address for pf in nics.pfs() if pf.address != address)
    before = inodes(other)
    rules = [{"selectors": {"pciAddresses": [one]}, "numVfs": vfs} for one, vfs in ((address, 3), (other, 4))]
    process.write([VFS], pfs=rules)
    ip("link", "set", OTHER, "netns", pod.name)
    try:
        with process:
            until(lambda: len(kubelet.devices(RAIL0)) == 3, LONG)
            with Monitor() as monitor:
                unplug(monitor, 0)
                until(lambda: not any(kubelet.devices(RAIL0).values()), LONG)
                insert(monitor, 0)
            until(lambda: sum(kubelet.devices(RAIL0).values()) == 3, LONG)
            assert (count(address), inodes(other)) == (3, before)
            assert OTHER in pod.links()
    finally:
        pod.ip("link", "set", OTHER, "netns", "1")
        ip("link", "set", OTHER, "up")


def test_a_port_of_open_vswitch(process: NodeProcess, write: Callable[..., None], address: str) -> None:
    """The port may carry the host's traffic, so hpn node changes nothing of it."""
    write(numVfs=2, mtu=2000)
    before = inodes(address)
    with ovs.ports(PF):
        assert Path(f"/sys/class/net/{PF}/master").resolve().name == ovs.DATAPATH
        (line,), status = dry_run(process)
        assert status == 3
        assert "refused, Open vSwitch owns its interface and may carry the host's traffic through it" in line
        with process:
            process.says("refused, Open vSwitch owns its interface", LONG)
        assert (inodes(address), mtus(address)) == (before, {1500})
    assert len(dry_run(process)[0]) == 2  # MTU and VFs
