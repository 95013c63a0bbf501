"""GC as a runtime calls it, and hpn gc as a person does."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from support.topology import Host, Pod

ROOT = Path(__file__).parents[2]
LISTS = ("cni.dev/valid-attachments", "cni.dev/attachments")


def listed(*pods: Pod, ifname: str = "hpn0") -> list[dict[str, str]]:
    return [{"containerID": pod.name, "ifname": ifname} for pod in pods]


def collect(host: Host, conf: dict[str, Any] | None = None, **keys: Any) -> None:
    """Run GC, and assert that it succeeds without output."""
    reply = host.call("GC", None, (conf or host.conf()) | keys, CNI_IFNAME="")
    assert (reply.exit_code, reply.stdout) == (0, ""), reply


def hpn_gc(host: Host, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run hpn gc on this host's state, with only these variables in the environment."""
    (none := host.tmp_path / "none").mkdir(exist_ok=True)
    folders = ("--state-dir", str(host.state), "--data-dir", str(none))
    command = [sys.executable, "-m", "ctl", "gc", *folders, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60, env=environ)
