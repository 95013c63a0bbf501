"""The guest as a node of the tests: ``topology.Host`` with NICs in place of a veth."""

import subprocess
import sys
from pathlib import Path

from topology import Host

sys.path.insert(0, str(Path(__file__).parents[2] / "netns-fixtures"))

import hardware

__all__ = ["Guest", "hardware", "rdma"]


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
