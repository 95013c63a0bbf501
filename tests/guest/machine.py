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
    """Where rail0 and rail1 are PFs, with one wire between them."""

    def __post_init__(self) -> None:
        self.state = self.tmp_path / "state"


def rdma(*words: str, netns: str = "") -> list[str]:
    """The lines ``rdma`` prints, asked in that namespace."""
    where = ["ip", "netns", "exec", netns] if netns else []
    done = subprocess.run([*where, "rdma", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"rdma {' '.join(words)}: {done.stderr.strip()}"
    return done.stdout.splitlines()


def set_mode(mode: str) -> bool:
    """Change whether RDMA devices are in one namespace or in all; the kernel refuses while a second one exists."""
    return subprocess.run(["rdma", "system", "set", "netns", mode], capture_output=True, check=False).returncode == 0


def unplug(monitor: Monitor, rail: int) -> str:
    """Pull that NIC out of the running machine; the PCI address its PF had."""
    pf = list(nics.pfs())[rail]
    monitor.command("device_del", id=f"pf{rail}")
    monitor.event("DEVICE_DELETED", device=f"pf{rail}")
    until(lambda: not pf.path.exists())
    return pf.address


def plug(monitor: Monitor, rail: int, address: str) -> None:
    """Put it back where it was, and bring it up as it was."""
    insert(monitor, rail)
    bring_up(rail, address)


def insert(monitor: Monitor, rail: int) -> None:
    """Put it back where it was, and do nothing with it."""
    mac = f"52:54:00:00:00:{rail + 1:02x}"
    monitor.command("device_add", driver="igb", id=f"pf{rail}", bus=f"port{rail}", netdev=f"wire{rail}", mac=mac)


def bring_up(rail: int, address: str) -> None:
    """Give a PF that is without VFs its name, its VFs, and their names and RDMA devices, as at boot."""
    done = subprocess.run(["/run/lab/rail", str(rail), address], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
