"""Processes that tests start in a pod's namespace."""

import subprocess
from pathlib import Path
from typing import Any

from support.topology import until


def await_inside(process: "subprocess.Popen[Any]", inode: int) -> None:
    """Wait until a started process is in the namespace; nsenter and ``ip netns exec`` enter it some time later."""
    until(lambda: Path(f"/proc/{process.pid}/ns/net").stat().st_ino == inode)
