"""A benchmark in the lab's guest."""

import os
import subprocess
import sys
from pathlib import Path

LAB = Path(__file__).parents[1] / "netns-fixtures" / "lab", "--processors", "2"
BROKEN = 125


def run_in_guest(words: list[str | Path], seconds: int = 900) -> None:
    """Run that in a guest of two processors, with these options of the lab before it, for at most that many seconds.

    A lab that broke itself is booted once more: its emulated processors sometimes stop.  The guest's only output mixes
    log and results, so it is shown only after a failure, which ends this program.
    """
    env = {**os.environ, "HPN_LAB_TIMEOUT": str(seconds)}
    for is_last in (False, True):
        done = subprocess.run([*LAB, *words], stdout=subprocess.PIPE, text=True, env=env, check=False)
        if done.returncode == 0:
            return
        if is_last or done.returncode != BROKEN:
            sys.exit(f"{done.stdout}the lab ended with {done.returncode}")
