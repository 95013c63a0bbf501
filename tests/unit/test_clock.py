"""Whether something keeps the clock right, where the kernel may not be asked."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# man 2 seccomp: the two system calls that libraries have used for it answer EPERM, all others are allowed.
FORBIDDEN = """
import ctypes, struct
from cni.kernel import clock
load, equal, answer = 0x20, 0x15, 0x06
program = [(load, 0, 0, 0), (equal, 1, 0, 159), (equal, 0, 1, 305), (answer, 0, 0, 0x50001), (answer, 0, 0, 0x7FFF0000)]
filters = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("@HP", len(program), ctypes.addressof(filters)), 0, 0) == 0
assert libc.adjtimex(ctypes.create_string_buffer(512)) == -1
print(clock.is_synchronized())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of these calls are x86-64's")
def test_who_may_not_ask_believes_no_clock() -> None:
    said = subprocess.check_output([sys.executable, "-c", FORBIDDEN], cwd=ROOT, text=True)
    assert said == "False\n"
