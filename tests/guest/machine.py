"""The guest as a node of the tests: ``topology.Host`` with NICs in place of a veth."""

import subprocess
import sys
from pathlib import Path

from guest.qmp import Monitor
from support.topology import Host, until

sys.path.insert(0, str(Path(__file__).parents[2] / "netns-fixtures"))

import jobs
import nics
import verbs

__all__ = ["Guest", "bring_up", "insert", "jobs", "nics", "plug", "rdma", "set_mode", "unplug", "verbs"]


class Guest(Host):
    """A host with the PFs rail0 and rail1, which share one wire."""

    def __post_init__(self) -> None:
        self.state = self.tmp_path / "state"


def rdma(*words: str, netns: str = "") -> list[str]:
    """The lines that ``rdma`` prints in that namespace."""
    where = ["ip", "netns", "exec", netns] if netns else []
    done = subprocess.run([*where, "rdma", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"rdma {' '.join(words)}: {done.stderr.strip()}"
    return done.stdout.splitlines()


def set_mode(mode: str) -> bool:
    """Set whether RDMA devices are in one namespace or in all; the kernel refuses while a second namespace exists."""
    return subprocess.run(["rdma", "system", "set", "netns", mode], capture_output=True, check=False).returncode == 0


def unplug(monitor: Monitor, rail: int) -> str:
    """Unplug that NIC from the running machine; return the PCI address of its PF."""
    pf = list(nics.pfs())[rail]
    monitor.command("device_del", id=f"pf{rail}")
    monitor.event("DEVICE_DELETED", device=f"pf{rail}")
    until(lambda: not pf.path.exists())
    return pf.address


def plug(monitor: Monitor, rail: int, address: str) -> None:
    """Plug the NIC in where it was, and bring it up as before."""
    insert(monitor, rail)
    bring_up(rail, address)


def insert(monitor: Monitor, rail: int) -> None:
    """Plug the NIC in where it was, without configuring it."""
    mac = f"52:54:00:00:00:{rail + 1:02x}"
    monitor.command("device_add", driver="igb", id=f"pf{rail}", bus=f"port{rail}", netdev=f"wire{rail}", mac=mac)


def bring_up(rail: int, address: str) -> None:
    """Configure a PF without VFs as at boot: its name, its VFs, and their names and RDMA devices."""
    done = subprocess.run(["/run/lab/rail", str(rail), address], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
