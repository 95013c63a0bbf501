"""Holds a cluster's namespaces, and removes everything when the process that started it has ended.

    keeper.py      makes them, prints {"folder": ..., "pid": ...}, and lives until its standard input ends

The input ends with the starter, even after SIGKILL.  If the keeper itself is killed, the kernel ends the processes, and
with them namespaces, mounts and links; the next keeper removes the rest, which is a folder and cgroups of the folder's
name.  A keeper holds a lock on its folder.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cluster.space import Doorbell, Failed, remove_cgroup

PREFIX = "hpn-cluster-"
INIT = Path(__file__).parent / "init.py"


@contextmanager
def folder() -> Iterator[Path]:
    """A new folder, for the disks of the hosts."""
    while not (fd := locked(made := Path(tempfile.mkdtemp(prefix=PREFIX)))):
        pass  # another keeper treated it as left over
    try:
        yield made
    finally:
        remove(made)
        os.close(fd)


def locked(path: Path) -> int:
    """A descriptor that locks the folder; 0 if another keeper has it or it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), path.stat()):
            return fd
    except OSError:
        pass
    os.close(fd)
    return 0


def remove(path: Path) -> None:
    """Remove the files and cgroups that outlive all processes."""
    remove_cgroup(path.name)
    shutil.rmtree(path, ignore_errors=True)


def sweep() -> None:
    """Remove the folders and cgroups of killed keepers."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if path.lstat().st_uid == os.geteuid() and (fd := locked(path)):
            remove(path)
            os.close(fd)


@contextmanager
def namespaces(where: Path) -> Iterator[int]:
    """Make them; yields the PID of their first process."""
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
        sweep()
        where = stack.enter_context(folder())
        pid = stack.enter_context(namespaces(where))
        print(json.dumps({"folder": str(where), "pid": pid}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    try:
        main()
    except Failed as e:
        sys.exit(str(e))
