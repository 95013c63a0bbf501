"""Holds the namespaces that all of a cluster is in, and takes everything away when whoever started it has ended.

    keeper.py      starts them, prints {"folder": ..., "pid": ...}, and lives until its standard input ends

Input ends however the starter ends: also by SIGKILL.  If the keeper itself is killed, the kernel ends the processes,
and with them namespaces, mounts and links; the next keeper removes what is left, which are a folder and cgroups.  One
cluster at a time: its cgroups have fixed names.
"""

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cluster.space import CGROUP, Doorbell, Failed, remove_cgroup

LOCK = Path("/run/hpn-cluster.lock")  # it holds the name of the folder
INIT = Path(__file__).parent / "init.py"


@contextmanager
def alone() -> Iterator[int]:
    """The lock's descriptor, once no other cluster is on this machine."""
    said = False
    while (fd := _locked()) < 0:
        if not said:
            print("another cluster is up on this machine: waiting for its end", file=sys.stderr, flush=True)
            said = True
        if select.select([sys.stdin], [], [], 0.2)[0]:
            sys.exit(0)  # whoever wanted one has gone
    try:
        yield fd
    finally:
        LOCK.unlink()
        os.close(fd)


def _locked() -> int:
    """The descriptor, or -1 if another has it."""
    fd = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if LOCK.exists() and os.path.samestat(os.fstat(fd), LOCK.stat()):
            return fd
    except BlockingIOError:
        pass
    os.close(fd)
    return -1


def sweep(folder: str) -> None:
    """Remove what no end of a process removes."""
    remove_cgroup()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def folder(lock: int) -> Iterator[Path]:
    """Where the hosts' disks are.  What a killed keeper left goes first."""
    sweep(os.pread(lock, 4096, 0).decode())
    made = tempfile.mkdtemp(prefix=f"{CGROUP}-")
    os.pwrite(lock, made.encode(), 0)
    try:
        yield Path(made)
    finally:
        sweep(made)


@contextmanager
def namespaces(where: Path) -> Iterator[int]:
    """The PID of the first process in them."""
    bell = Doorbell(where / "doorbell")
    log = where / "switch.log"
    words = [
        *(
            "setpriv",
            "--pdeathsig=KILL",
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--uts",
            "--ipc",
            "--fork",
            "--kill-child",
        ),
        *(sys.executable, str(INIT), str(where / "doorbell")),
    ]
    with log.open("w") as output:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield bell.wait("the switch", log).pid
    finally:
        process.kill()
        process.wait()


def main() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    with ExitStack() as stack:
        where = stack.enter_context(folder(stack.enter_context(alone())))
        pid = stack.enter_context(namespaces(where))
        print(json.dumps({"folder": str(where), "pid": pid}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    try:
        main()
    except Failed as e:
        sys.exit(str(e))
