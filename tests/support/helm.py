"""The chart, the Helm that the tests build, and the commands that docs/user/kubernetes.md gives for both."""

import subprocess
from pathlib import Path

from conftest import require
from support.pages import ROOT

CHART = ROOT / "packaging" / "helm" / "hpn"


def built(tier: str) -> Path:
    """The program; the first call builds it, for minutes.  Skips the test if that is impossible."""
    done = subprocess.run([ROOT / "netns-fixtures" / "helm"], capture_output=True, text=True, check=False)
    if done.returncode:
        require(tier, done.stderr.strip())
    return Path(done.stdout.strip())
