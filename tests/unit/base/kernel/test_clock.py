"""Whether a program synchronizes the clock, if the kernel refuses to answer."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
# Machine -> the numbers of adjtimex and clock_adjtime: libraries have used either.
NUMBERS = {"x86_64": (159, 305), "aarch64": (171, 266)}
# man 2 seccomp: these two system calls answer EPERM, all others are allowed.
FORBIDDEN = """
import ctypes, struct, sys
from base.kernel import syscalls
load, equal, answer = 0x20, 0x15, 0x06
one, other = map(int, sys.argv[1:])
answers = (answer, 0, 0, 0x50001), (answer, 0, 0, 0x7FFF0000)
program = [(load, 0, 0, 0), (equal, 1, 0, one), (equal, 0, 1, other), *answers]
filters = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("@HP", len(program), ctypes.addressof(filters)), 0, 0) == 0
assert libc.adjtimex(ctypes.create_string_buffer(512)) == -1
print(syscalls.is_clock_synchronized())
"""


@pytest.mark.skipif(platform.machine() not in NUMBERS, reason="the numbers of these calls are not known here")
def test_who_may_not_ask_believes_no_clock() -> None:
    numbers = map(str, NUMBERS[platform.machine()])
    printed = subprocess.check_output([sys.executable, "-c", FORBIDDEN, *numbers], cwd=ROOT, text=True)
    assert printed == "False\n"
