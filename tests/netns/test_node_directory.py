"""hpn node while kubelet's directory is full, disappears or is replaced."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.node_process import ROOT, NodeProcess
from support.topology import Host, until

RESOURCE, OTHER = (
    {"name": f"example.com/{name}", "kind": "master", "selectors": {"ifNames": [name], "kinds": ["netdev"]}}
    for name in ("rail0", "rail9")
)


@pytest.fixture
def process(host: Host) -> Iterator[NodeProcess]:
    # A socket's path is limited to 107 bytes.
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        yield NodeProcess(Path(folder), [RESOURCE])


def test_a_directory_that_cannot_be_written(process: NodeProcess) -> None:
    process.registry.mkdir(parents=True)
    mount = f"mount --bind {process.registry} {process.registry}"
    process.mounts += [mount, f"mount -o remount,ro,bind {process.registry}"]
    with process:
        assert process.says("Read-only file system; kubelet gets no resource until it can be written")


def test_a_directory_without_room(process: NodeProcess) -> None:
    """hpn node serves in a full directory: a socket needs no room, and the lock may be empty.  It writes the list for
    the next boot later."""
    process.registry.mkdir(parents=True)
    process.mounts += [f"mount -t tmpfs -o size=4k tmpfs {process.registry}", f"yes > {process.registry}/full || true"]
    with process:
        assert process.says("serves example.com/rail0")
        process.says(f"writing {process.registry}/.hpn-node.json: No space left on device")
        until(lambda: process.sleeps(1))
        inside = Path(f"/proc/{process.process.pid}/root{process.registry}")
        (inside / "full").write_text("")
        until((inside / ".hpn-node.json").exists)
    assert len([line for line in process.said if ".hpn-node.json" in line]) == 1


def test_another_directory_is_mounted_over_kubelets(process: NodeProcess) -> None:
    """hpn node serves in the directory that kubelet sees, and again in the old one once that is back."""
    (process.folder / "other/plugins_registry").mkdir(parents=True)
    process.registry.mkdir(parents=True)
    name = "plugins_registry/hpn-example.com_rail0.sock"
    with process:
        inside = ["nsenter", f"--mount=/proc/{process.process.pid}/ns/mnt"]
        process.says("serves example.com/rail0")
        until(lambda: process.sleeps(0.5))
        old = (process.kubelet / name).stat().st_ctime_ns
        subprocess.run([*inside, "mount", "--bind", f"{process.folder}/other", f"{process.kubelet}"], check=True)
        until((process.folder / "other" / name).is_socket)
        until(lambda: process.sleeps(0.5))
        # The lock in there is open.
        subprocess.run([*inside, "umount", "--lazy", f"{process.kubelet}"], check=True)
        until(lambda: (process.kubelet / name).exists() and (process.kubelet / name).stat().st_ctime_ns != old)


def test_kubelets_directory_is_moved_away(process: NodeProcess) -> None:
    """hpn node does not recreate the directory while devices come and go, and serves in a new one."""
    process.registry.mkdir(parents=True)
    with process:
        process.says("serves example.com/rail0")
        process.kubelet.rename(process.folder / "old")
        process.says("does not exist, so no kubelet has run here")
        process.reload()
        process.says("reloads its configuration")
        process.write([OTHER])
        process.reload()
        process.says("offers example.com/rail9")
        until(lambda: process.sleeps(0.5))
        assert not process.kubelet.exists()
        (process.folder / "new/plugins_registry").mkdir(parents=True)
        (process.folder / "new").rename(process.kubelet)
        until((process.registry / "hpn-example.com_rail9.sock").is_socket)


# kubelet's directory for a user with a single inotify watch, and later more: each user namespace has its own count.
WATCHES = """
import sys
from pathlib import Path
from node.kubelet import directory
import asyncio
most, path, loop = Path("/proc/sys/user/max_inotify_watches"), Path(sys.argv[1]), asyncio.new_event_loop()
directory.AGAIN = 0.01
most.write_text("1")
one = directory.Directory(loop, path, loop.stop)
for _ in range(2):
    loop.run_forever()
assert one.claim()
most.write_text("100")
loop.run_forever()
directory.AGAIN = 3600
(path / "x").touch()
(path / "x").unlink()
loop.run_forever()
"""


def test_no_watch_is_left(process: NodeProcess) -> None:
    """Without a watch hpn node polls, and reports that once."""
    process.registry.mkdir(parents=True)
    words = ["unshare", "--user", "--map-root-user", sys.executable, "-c", WATCHES, f"{process.registry}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    why = "root has no inotify watch left; raise fs.inotify.max_user_watches"
    said = f"hpn node: {process.registry} cannot be watched: {why}; checked every 0.01 s\n"
    assert (done.returncode, done.stderr) == (0, said)
