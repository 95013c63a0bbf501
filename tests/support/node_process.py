"""hpn node as a process in the tests' network namespace, with its own /sys and /run."""

import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any, Self

from support.daemons import Daemon
from support.topology import until

ROOT = Path(__file__).parents[2]
# The lab's guest uses the frozen program if there is one: it starts in a third of the time.
_FROZEN = os.environ.get("HPN_BINARY") if "HPN_LAB" in os.environ else None
PROGRAM = [_FROZEN] if _FROZEN else [sys.executable, "-m", "ctl"]
# A DaemonSet's container has only these (packaging/kubernetes/daemonset.yaml).
RIGHTS = ["setpriv", "--no-new-privs", "--bounding-set=-all,+net_admin", "--inh-caps=-all"]
# It keeps its state in /run; /sys shows the network namespace in which it was mounted.
_RUN, _SYS = "mount -t tmpfs tmpfs /run", "mount -t sysfs sysfs /sys"


class NodeProcess(Daemon):
    """A process that runs until its ``with`` ends."""

    def __init__(self, folder: Path, resources: list[dict[str, Any]], *flags: str) -> None:
        super().__init__()
        self.folder, self.flags = folder, flags
        self.file, self.kubelet = folder / "node.json", folder / "kubelet"
        self.registry = self.kubelet / "plugins_registry"
        self.program = PROGRAM
        self.mounts = [_RUN, _SYS]
        self.status = 0  # the expected exit status
        self.namespaces = ["--mount"]
        self.write(resources)

    def write(self, resources: list[dict[str, Any]], **keys: Any) -> None:
        self.file.write_text(json.dumps({"resources": resources, **keys}))

    def __enter__(self) -> Self:
        words = [*self.program, "node", "--config", str(self.file), "--kubelet-dir", str(self.kubelet), *self.flags]
        script = " && ".join([*self.mounts, f"exec {shlex.join(words)}"])
        argv = ["unshare", *self.namespaces, "sh", "-c", script] if self.mounts else words
        self.start(argv, ROOT)
        return self

    def __exit__(self, *_: object) -> None:
        status = self.end()
        assert status == self.status, "\n".join(self.said)

    def says(self, words: str, seconds: float = 60.0) -> str:
        """Wait for a line that contains these words."""
        return str(until(lambda: next((line for line in self.said if words in line), ""), seconds))

    def show(self, tree: Path) -> None:
        """Mount this tree in place of /sys."""
        self.mounts = [_RUN, f"mount --bind {tree} /sys"]

    def status_of(self, key: str) -> int:
        """Return a number of the kernel's status of the process: VmRSS in KiB, voluntary_ctxt_switches."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition(f"\n{key}:")[2].split()[0])

    def sleeps(self, seconds: float) -> bool:
        """Return True if nothing wakes the process for so long."""
        before = self.status_of("voluntary_ctxt_switches")
        # time: nothing is to happen
        time.sleep(seconds)
        return self.status_of("voluntary_ctxt_switches") == before
