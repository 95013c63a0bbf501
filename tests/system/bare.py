"""A machine with nothing installed: a Debian release's essential packages, in its own namespaces.

The release's files lie below an overlay, so all changes disappear with the machine.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.topology import until

FIXTURES = Path(__file__).parents[2] / "netns-fixtures"
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}
# The mounts are in the first process's own namespace, and end with it.
_START = """
mount -t tmpfs tmpfs "$2"
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
cd "$2/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
ip link set lo up
ip link add rail0 type veth peer name port0
ip link set rail0 up
ip link set port0 up
echo up
"""
_SLEEP = "exec chroot . sleep infinity"
# systemd starts only requested units, and changes nothing of the host machine: it has its own control group and cannot
# write to /proc/sys and /sys.
_BOOT = """
rm -rf usr/lib/systemd/system/*.target.wants etc/systemd/system/*.target.wants
[ -z "$4" ] || tar --extract --file="$4"
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -o remount,bind,ro sys
mkdir "$2/cgroups"
mount -t cgroup2 cgroup2 "$2/cgroups"
mkdir "$2/cgroups/$3"
echo 0 >"$2/cgroups/$3/cgroup.procs"
umount "$2/cgroups"
# The root of the namespace too becomes the machine's, as where an initramfs switched to it.
exec unshare --cgroup sh -euc '
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount --move . /
    container=test exec chroot . /lib/systemd/systemd --system --unit="$1" --log-target=console --show-status=0' sh "$5"
"""
# The devices that DevicePolicy=closed admits, and the one of TUN.
_DEVICES = """
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/net dev/pts dev/shm
mount -t devpts -o ptmxmode=666 devpts dev/pts
for name in null zero full random urandom tty net/tun; do
    [ ! -e "/dev/$name" ] || cp --archive "/dev/$name" "dev/$name"
done
ln -s pts/ptmx dev/ptmx
for path in $6; do
    mkdir -p ".$path"
    mount --bind "$path" ".$path"
done
"""
_REMOVE = 'mount -t cgroup2 cgroup2 "$1" && cd "$1" && find "$2" -depth -type d -exec rmdir {} +'


@dataclass
class Pod:
    """A process with its own network namespace; ``pid`` is its number in the test's machine."""

    process: "subprocess.Popen[str]"
    pid: str

    @property
    def netns(self) -> str:
        return f"/proc/{self.pid}/ns/net"


class Bare:
    """The machine, identified by its first process."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.pods = list[Pod]()
        self.root = Path(f"/proc/{first}/root")

    def command(self, *argv: str | Path) -> list[str]:
        """The command that runs argv there."""
        spaces = ["--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--root", "--wdns=/"]
        return ["nsenter", f"--target={self.first}", *spaces, "--", *map(str, argv)]

    def run(self, *argv: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run argv there, with any exit status."""
        argv = tuple(self.command(*argv))
        return subprocess.run(
            argv, env=ENVIRONMENT | env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    def ok(self, *argv: str | Path, **env: str) -> str:
        """Run argv there, which must succeed; return its output."""
        done = self.run(*argv, **env)
        assert done.returncode == 0, f"{argv}: exit {done.returncode}: {done.stderr}{done.stdout}"
        return done.stdout

    def write(self, path: str, content: bytes | str, mode: int = 0o644) -> None:
        """Write a file there; the path has no first slash."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        target.chmod(mode)

    def files(self) -> set[str]:
        """All files on its disk and in /run, except dpkg's own."""
        dpkgs = ("/var/lib/dpkg/", "/var/log/dpkg.log")
        return {path for path in self.ok("find", "/", "/run", "-xdev").splitlines() if not path.startswith(dpkgs)}

    def pod(self) -> Pod:
        script = "echo $$; exec sleep infinity"
        argv = self.command("unshare", "--net", "sh", "-c", script)
        process = subprocess.Popen(argv, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        pod = Pod(process, process.stdout.readline().strip())
        self.pods.append(pod)
        return pod

    def end(self, pod: Pod) -> None:
        """End the pod as if it had crashed, without detaching it."""
        self.ok("sh", "-c", f"kill -KILL {pod.pid}")
        pod.process.communicate()
        self.pods.remove(pod)

    def addresses(self, pod: Pod) -> dict[str, list[str]]:
        """Each interface of the pod except lo, with its global addresses, from the outer machine's `ip`."""
        namespace = f"--net={self.root}{pod.netns}"
        shown: list[dict[str, Any]] = json.loads(
            subprocess.check_output(["nsenter", namespace, "ip", "-json", "address"])
        )
        return {
            link["ifname"]: [a["local"] for a in link["addr_info"] if a["scope"] == "global"]
            for link in shown
            if link["ifname"] != "lo"
        }


@contextmanager
def bare(scratch: Path, suite: str, *packages: str) -> Iterator[Bare]:
    """The machine for the time of the block; ``scratch`` is an empty directory."""
    with _started(_START + _SLEEP, _release(suite, packages), str(scratch)) as it:
        yield it


@contextmanager
def booted(scratch: Path, suite: str, *packages: str, disk: str = "", unit: str = "basic.target") -> Iterator[Bare]:
    """As ``bare``, with systemd as the first process, which must be one of the packages.  It starts the unit.  ``disk``
    is an archive of files that are there from the beginning."""
    with _under_systemd(scratch, _START + _BOOT, _release(suite, packages), disk, unit) as it:
        yield it


@contextmanager
def this_machine(scratch: Path, *paths: Path) -> Iterator[Bare]:
    """As ``booted``, with the files of this machine, so that its Python can run there.  The paths are directories that
    may be mounts of their own; they are not below the overlay."""
    with _under_systemd(scratch, _START + _DEVICES + _BOOT, "/", "", "basic.target", " ".join(map(str, paths))) as it:
        yield it


@contextmanager
def _under_systemd(scratch: Path, script: str, lower: str, *words: str) -> Iterator[Bare]:
    cgroup = f"hpn-test-{os.getpid()}"
    try:
        with _started(script, lower, str(scratch), cgroup, *words) as it:
            until(lambda: it.run("systemctl", "is-system-running").stdout == "running\n", 120)
            yield it
    finally:
        remove = ["unshare", "--mount", "sh", "-c", _REMOVE, "sh", str(scratch), cgroup]
        # The last process was killed, but may still exist.
        until(lambda: subprocess.run(remove, capture_output=True, check=False).returncode == 0, 120)


def _release(suite: str, packages: Sequence[str]) -> str:
    return subprocess.check_output([FIXTURES / "bare", suite, *packages], text=True).strip()


@contextmanager
def _started(script: str, lower: str, *words: str) -> Iterator[Bare]:
    spaces = ["--mount", "--propagation=private", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
    argv = ["unshare", *spaces, "sh", "-euc", script, "sh", lower, *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        it = None
        try:
            assert process.stdout
            assert process.stdout.readline() == "up\n"
            (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            it = Bare(int(first))
            yield it
        finally:
            if it:
                os.kill(it.first, signal.SIGKILL)
                for pod in it.pods:
                    pod.process.communicate()
