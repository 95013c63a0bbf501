"""The benchmark of TCP through pods' interfaces still works."""

import os
import shutil
import subprocess
import sys

from conftest import require
from system.machine import ROOT, Tools


def test_it_measures(tools: Tools) -> None:
    if not shutil.which("sockperf") or not shutil.which("iperf3"):
        require("system", "sockperf and iperf3; run: netns-fixtures/setup traffic")
    words = [sys.executable, ROOT / "bench" / "traffic.py", "--only", "this machine", "--rounds", "1"]
    env = {**os.environ, "HPN_BINARY": str(tools.binary)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert [name for name, *_ in rows] == ["host", "bridge + veth", "macvlan"]
    assert all(float(figure) > 0 for _, *figures in rows for figure in figures), rows
    assert rows[0][-3:] == ["1.00"] * 3
