"""hpn node without a resource by DRA imports nothing for it."""

import subprocess
import sys

from support.pages import ROOT

LOADED = "import sys, node.main; print(*sorted(one for one in sys.modules if one.startswith('node.dra')))"


def test_most_nodes_need_none_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
