"""Runs before the program does: a one-file program is two processes, and must end as one.

The runtime starts and kills the loader; the work is done by the loader's child.  A loader killed with SIGKILL
(a runtime's deadline) would leave a child that goes on attaching while the runtime already sends DEL.
"""

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1

ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
try:
    # A loader that died before the line above told nobody; then our parent is some other program.
    if Path(f"/proc/{os.getppid()}/exe").readlink() != Path("/proc/self/exe").readlink():
        os.kill(os.getpid(), signal.SIGKILL)
except FileNotFoundError:
    pass  # no /proc, or the loader died between two lines and the signal is on its way
