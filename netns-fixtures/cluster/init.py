"""The first process of a host of the cluster: it makes the host's view of the machine, reports that, and reaps.

    init.py DOORBELL                        the switch: namespaces alone
    init.py DOORBELL NAME DISK              a host: with a disk, which survives a power cut
    init.py DOORBELL NAME DISK systemd      the same, which becomes systemd after SIGUSR1

The view is the machine's own root with its programs and the tree, with these differences:

    /run                             empty at every boot
    /etc /opt /var                   the machine's; changes disappear at the next boot
    /etc/cni /etc/kubernetes ...     from the disk (KEPT)
    /sys, /proc, cgroups             the host's own
    boot_id                          another at every boot
    sysctls that kubelet wants       read with kubelet's values, because kubelet would set them for the whole machine
"""

import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cluster.space import CGROUPS, PATH, hierarchies, ring

# With systemd also its units, and what they use.
UNITS = "etc/systemd/system"
KEPT_BY_SYSTEMD = (UNITS, "etc/hpn", "usr/local/sbin")
KEPT = ("etc/cni", "etc/kubernetes", "opt/cni/bin", "var/lib/cni", "var/lib/kubelet", "var/lib/containerd", "var/log")
# The values that kubelet's container manager would otherwise set (setupKernelTunables).
WANTED = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
# What systemd would set for the whole machine.
BUMPED = ("fs/file-max", "fs/nr_open")
SYSTEMD = ["/lib/systemd/systemd", "--system", "--unit=multi-user.target", "--log-target=journal", "--show-status=0"]
BOOT_ID = "kernel/random/boot_id"
RUN = Path("/run")


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


def instead(path: str, text: str) -> None:
    """Replace the content of that file of /proc/sys, for all readers."""
    file = RUN / "instead" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")
    mount("--bind", file, f"/proc/sys/{path}")


def see(name: str, disk: Path, *, systemd: bool) -> None:
    """Make the view of a host.  The machine does not see it, because our mounts are private."""
    mount("-t", "sysfs", "sysfs", "/sys")
    own_cgroups()
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", RUN)
    for directory in ("lock", "netns", "services", "tmp", "home", "proc"):
        (RUN / directory).mkdir()
    # An uncovered /proc: a user namespace may mount /proc only where a complete one is visible already (Linux,
    # mount_too_revealing).
    mount("-t", "proc", "proc", RUN / "proc")
    for top in ("etc", "opt", "var"):
        upper, work = RUN / "written" / top, RUN / "written" / f".{top}"
        upper.mkdir(parents=True)
        work.mkdir()
        mount("-t", "overlay", "-o", f"lowerdir=/{top},upperdir={upper},workdir={work}", "overlay", f"/{top}")
    if systemd:
        apart()
    for directory in (*KEPT, *(KEPT_BY_SYSTEMD if systemd else ())):
        Path("/", directory).mkdir(parents=True, exist_ok=True)
        (disk / directory).mkdir(parents=True, exist_ok=True)
        mount("--bind", disk / directory, f"/{directory}")
    Path("/etc/resolv.conf").unlink(missing_ok=True)
    Path("/etc/resolv.conf").touch()
    for path, value in WANTED.items():
        instead(path, value)
    instead(BOOT_ID, str(uuid.uuid4()))
    # Kubelet's volumes must reach containers.
    mount("--make-rshared", "/")
    subprocess.run(["hostname", name], check=True)


def apart() -> None:
    """Keep the machine's units from this host's systemd, and systemd's writes from the machine."""
    for path in BUMPED:
        instead(path, Path("/proc/sys", path).read_text().strip())
    for directory in (*Path("/lib/systemd/system").glob("*.wants"), Path("/lib/systemd/system-generators")):
        mount("-t", "tmpfs", "tmpfs", directory)
    devices, upper, work = RUN / "dev", RUN / "written/dev", RUN / "written/.dev"
    for directory in (devices, upper, work):
        directory.mkdir()
    mount("--rbind", "/dev", devices)
    mount("-t", "overlay", "-o", f"lowerdir={devices},upperdir={upper},workdir={work}", "overlay", "/dev")
    for name in ("pts", "shm"):
        mount("--bind", devices / name, f"/dev/{name}")


def own_cgroups() -> None:
    """Mount the host's cgroups: this process is in them and has a cgroup namespace, so its mounts begin there."""
    names = [path.name for path in hierarchies()]
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", CGROUPS)
    for name in names:
        (CGROUPS / name).mkdir()
        kind = "none,name=systemd" if name == "systemd" else name
        mount("-t", "cgroup", "-o", kind, "cgroup", CGROUPS / name)
        if "cpu" in name.split(","):
            (CGROUPS / name / "system.slice").mkdir(exist_ok=True)  # for the daemons


def reap() -> None:
    """Reap orphans, for which no other process waits."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigwait([signal.SIGCHLD])


def main(doorbell: str, name: str = "", disk: str = "", first: str = "") -> None:
    mount("-t", "proc", "proc", "/proc")
    if name:
        see(name, Path(disk), systemd=bool(first))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    ring(doorbell)
    if first:
        signal.sigwait([signal.SIGUSR1])  # the host has its wires
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        os.execve(SYSTEMD[0], SYSTEMD, {"container": "test", "PATH": PATH})
    reap()


if __name__ == "__main__":
    main(*sys.argv[1:])
