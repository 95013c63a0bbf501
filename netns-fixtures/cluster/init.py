"""The first process of a host of the cluster: it makes the host's view of the machine, says so, and reaps.

    init.py DOORBELL                 the switch: namespaces alone
    init.py DOORBELL NAME DISK       a host: with a disk, which is what of it survives a power cut

The view is the machine's own root, so that programs and the tree are there, with these differences:

    /run                             empty at every boot
    /etc /opt /var                   the machine's, and what is written there is gone at the next boot
    /etc/cni /etc/kubernetes ...     from the disk (KEPT)
    /sys, /proc, cgroups             the host's own
    boot_id                          another at every boot
    sysctls that kubelet wants       as kubelet wants them, for whoever reads: it would set them for the whole machine
"""

import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cluster.space import CGROUPS, hierarchies, ring

KEPT = ("etc/cni", "etc/kubernetes", "opt/cni/bin", "var/lib/cni", "var/lib/kubelet", "var/lib/containerd", "var/log")
# What kubelet's container manager sets where it finds other values (setupKernelTunables).
WANTED = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
BOOT_ID = "kernel/random/boot_id"
RUN = Path("/run")


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


def instead(path: str, text: str) -> None:
    """Let whoever reads that file of /proc read this."""
    file = RUN / "instead" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")
    mount("--bind", file, f"/proc/sys/{path}")


def see(name: str, disk: Path) -> None:
    """Make the view of a host.  Nothing of it reaches the machine, for our mounts are private."""
    mount("-t", "sysfs", "sysfs", "/sys")
    own_cgroups()
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", RUN)
    for directory in ("lock", "netns", "services", "tmp", "home", "proc"):
        (RUN / directory).mkdir()
    # With nothing over it, for a user namespace may mount /proc only where all of one is in sight already (Linux,
    # mount_too_revealing).
    mount("-t", "proc", "proc", RUN / "proc")
    for top in ("etc", "opt", "var"):
        upper, work = RUN / "written" / top, RUN / "written" / f".{top}"
        upper.mkdir(parents=True)
        work.mkdir()
        mount("-t", "overlay", "-o", f"lowerdir=/{top},upperdir={upper},workdir={work}", "overlay", f"/{top}")
    for directory in KEPT:
        Path("/", directory).mkdir(parents=True, exist_ok=True)
        (disk / directory).mkdir(parents=True, exist_ok=True)
        mount("--bind", disk / directory, f"/{directory}")
    Path("/etc/resolv.conf").unlink(missing_ok=True)
    Path("/etc/resolv.conf").touch()
    for path, value in WANTED.items():
        instead(path, value)
    instead(BOOT_ID, str(uuid.uuid4()))
    # Kubelet's volumes have to reach containers.
    mount("--make-rshared", "/")
    subprocess.run(["hostname", name], check=True)


def own_cgroups() -> None:
    """This process is in the host's cgroups and has a cgroup namespace: what it mounts begins there."""
    names = [path.name for path in hierarchies()]
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", CGROUPS)
    for name in names:
        (CGROUPS / name).mkdir()
        kind = "none,name=systemd" if name == "systemd" else name
        mount("-t", "cgroup", "-o", kind, "cgroup", CGROUPS / name)


def reap() -> None:
    """Nobody else waits for what is left to this process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigwait([signal.SIGCHLD])


def main(doorbell: str, *host: str) -> None:
    mount("-t", "proc", "proc", "/proc")
    if host:
        see(host[0], Path(host[1]))
    ring(doorbell)
    reap()


if __name__ == "__main__":
    main(*sys.argv[1:])
