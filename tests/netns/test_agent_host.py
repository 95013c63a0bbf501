"""hpn agent --host enters the mounts of the host's first process from a container, or reports a missing condition."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENTER = """
import os
from base.kernel import host_mounts
try:
    host_mounts.enter()
except host_mounts.NotEntered as e:
    print(e)
else:
    print(os.stat("/proc/self/ns/mnt").st_ino, os.getcwd())
"""


APART = ("unshare", "--mount", "--pid", "--fork", "--mount-proc")
HOST = (*APART, "sh", "-c", 'stat -L -c "%i /" /proc/1/ns/mnt; "$@"; :', "")
CONTAINER = ("unshare", "--mount")


def entered(*container: str) -> list[str]:
    """The mount namespace and the working directory of the host's first process, and of a process in its container."""
    done = subprocess.run(
        [*HOST, *container, sys.executable, "-c", ENTER],
        capture_output=True, text=True, check=True, timeout=60, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return done.stdout.splitlines()


def test_it_has_the_hosts_mounts() -> None:
    host, container = entered(*CONTAINER)
    assert container == host


@pytest.mark.parametrize(
    ("container", "why"),
    [
        (APART, "process 1 has the same mounts"),
        ((*CONTAINER, "setpriv", "--bounding-set=-sys_chroot"), "setns: Operation not permitted"),
    ],
    ids=["no hostPID", "a capability is missing"],
)
def test_what_is_missing(container: tuple[str, ...], why: str) -> None:
    _, said = entered(*container)
    assert why in said
    assert said.endswith("the container the capabilities SYS_ADMIN, SYS_CHROOT and SYS_PTRACE")
