"""hpn node with shared interfaces: its reports to kubelet, systemd and runtimes.  tests/lab/test_node.py covers
NICs."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.doctor_cases import offering
from support.kubelet import Kubelet
from support.node_process import NodeProcess
from support.sysfs_tree import Tree
from support.topology import Host, Pod, ip, until

from base.state import durable

NAME = "example.com/rail0"
RESOURCE: dict[str, Any] = {
    "name": NAME, "kind": "master", "count": 2, "selectors": {"ifNames": ["rail0"], "kinds": ["netdev"]}
}  # fmt: skip
OTHER = RESOURCE | {"name": "example.com/rail9", "selectors": {"ifNames": ["rail9"], "kinds": ["netdev"]}}
UP, DOWN = ({"rail0-0": healthy, "rail0-1": healthy} for healthy in (True, False))
SOON = {"health": {"downAfter": 0.5, "upAfter": 1}}


@pytest.fixture
def process(host: Host) -> Iterator[NodeProcess]:
    # A socket's path is limited to 107 bytes.
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        yield NodeProcess(Path(folder), [RESOURCE])


def test_a_link_goes_and_comes(process: NodeProcess) -> None:
    process.write([RESOURCE], **SOON)
    with Kubelet(process.kubelet) as kubelet, process:
        kubelet.until(NAME, UP)
        began = time.monotonic()
        ip("link", "set", "fabric", "down")
        kubelet.until(NAME, DOWN)
        assert time.monotonic() - began > 0.5
        assert process.says("unhealthy: rail0 of example.com/rail0: rail0 has no carrier since 0.5 s")
        began = time.monotonic()
        ip("link", "set", "fabric", "up")
        kubelet.until(NAME, UP)
        assert time.monotonic() - began > 1
        assert process.says("healthy again: rail0 of example.com/rail0")
        ip("link", "set", "rail0", "down")
        kubelet.until(NAME, DOWN)
        assert process.says("rail0 is set down (ip link set rail0 up) since 0.5 s")
    assert len([line for line in process.said if "healthy" in line]) == 3
    assert list(process.registry.glob("*.sock")) == []


def test_a_device_goes_and_comes(process: NodeProcess) -> None:
    with Kubelet(process.kubelet) as kubelet, process:
        kubelet.until(NAME, UP)
        ip("link", "delete", "rail0")
        kubelet.until(NAME, DOWN)
        assert process.says("unhealthy: rail0 of example.com/rail0: it is gone")
        ip("link", "add", "rail0", "up", "type", "veth", "peer", "name", "fabric")
        kubelet.until(NAME, UP)


def test_pods_of_the_clusters_network(process: NodeProcess, pod: Pod) -> None:
    """hpn node reads no device when a pod's interface comes and goes, by the kernel's count of its reads."""

    def read(pods: int) -> int:
        """The reads of the process while so many pods come and go."""
        counted = Path(f"/proc/{process.process.pid}/io")
        before = int(counted.read_text().partition("syscr: ")[2].split()[0])
        for number in range(pods):
            ip("link", "add", f"cali{number}", "type", "veth", "peer", "name", f"eth{number}", "netns", pod.name)
            ip("link", "set", f"cali{number}", "up")
            pod.ip("link", "set", f"eth{number}", "up")
        for number in range(pods):
            ip("link", "delete", f"cali{number}")
        until(lambda: process.sleeps(1), 120)
        return int(counted.read_text().partition("syscr: ")[2].split()[0]) - before

    with Kubelet(process.kubelet) as kubelet, process:
        kubelet.until(NAME, UP)
        until(lambda: process.sleeps(1), 120)
        assert (read(1), read(20)) == (0, 0)
        ip("link", "delete", "rail0")
        kubelet.until(NAME, DOWN)
        assert process.says("unhealthy: rail0 of example.com/rail0: it is gone")


@pytest.mark.parametrize("name", ["odd\udcff", "odd\x1b[31m"])
def test_an_interface_whose_name_is_no_text(process: NodeProcess, name: str) -> None:
    """An interface with a name that is not printable text is no device, and the others stay."""
    process.write([RESOURCE | {"selectors": {"kinds": ["netdev"]}}])
    with Kubelet(process.kubelet) as kubelet, process:
        there = UP | {"fabric-0": True, "fabric-1": True}
        kubelet.until(NAME, there)
        ip("link", "add", name, "type", "veth", "peer", "name", "far9")
        kubelet.until(NAME, there | {"far9-0": True, "far9-1": True})


def test_a_name_that_a_pod_gave_a_vf(process: NodeProcess) -> None:
    """hpn node prints a pod's name for a VF without control characters."""
    process.write([{"name": "example.com/pf", "kind": "pf", "selectors": {"ifNames": ["no"]}}])
    tree = Tree(process.folder / "sys")
    tree.netdev("odd\udcff\x1b[31m", tree.pci("0000:3b:00.0"))
    check = f"exec {sys.executable} -m ctl node --check {process.file}"
    script = f"mount --bind {process.folder}/sys /sys && {check}"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"odd\udcff\x1b[31m" in done.stdout
    assert b"\x1b" not in done.stdout


def test_kubelet_comes_later_and_is_restarted(process: NodeProcess) -> None:
    kubelet = Kubelet(process.kubelet)
    with process:
        process.says("does not exist, so no kubelet has run here")
        for _ in range(2):
            with kubelet:
                kubelet.until(NAME, UP)


def test_the_configuration_is_read_anew(process: NodeProcess) -> None:
    with Kubelet(process.kubelet) as kubelet, process:
        kubelet.until(NAME, UP)
        process.file.write_text("{}")
        process.reload()
        assert process.says("the previous configuration stays in force")
        assert kubelet.devices(NAME) == UP
        process.write([OTHER])
        process.reload()
        kubelet.until(NAME, None)
        kubelet.until("example.com/rail9", {})
        ip("link", "add", "rail9", "type", "veth", "peer", "name", "far9")
        kubelet.until("example.com/rail9", {"rail9-0": True, "rail9-1": True})


def test_kubelet_refuses(process: NodeProcess) -> None:
    kubelet = Kubelet(process.kubelet)
    kubelet.refuses = "no such luck"
    with kubelet, process:
        assert process.says("kubelet refuses example.com/rail0: no such luck")


def test_two_at_once(process: NodeProcess) -> None:
    with Kubelet(process.kubelet) as kubelet, process:
        kubelet.until(NAME, UP)
        second = NodeProcess(process.folder, [RESOURCE])
        second.status = 1
        with second:
            assert second.says(f"another hpn node (process {process.process.pid}) serves there; stop one of them")
            until(lambda: second.process.poll() == 1, 120)
        assert len(second.said) == 2
        assert kubelet.devices(NAME) == UP


def test_a_handover(process: NodeProcess) -> None:
    """The second one waits for the end of the first, and serves then."""
    with Kubelet(process.kubelet) as kubelet:
        second = NodeProcess(process.folder, [RESOURCE])
        with process:
            kubelet.until(NAME, UP)
            second.__enter__()
            second.says(f"another hpn node (process {process.process.pid}) serves there")
        kubelet.until(NAME, UP)
        second.__exit__()


def signal_child(process: NodeProcess, number: signal.Signals) -> int:
    """Send a signal to the child process that reads the configuration, and return its number."""
    listed = Path(f"/proc/{process.process.pid}/task/{process.process.pid}/children")
    child = int(until(lambda: listed.read_text().split())[0])
    os.kill(child, number)
    return child


def test_the_kernel_kills_the_reader_of_the_configuration(process: NodeProcess) -> None:
    """hpn node reads it again, at its start and after SIGHUP."""
    with Kubelet(process.kubelet) as kubelet, process:
        until(lambda: Path(f"/proc/{process.process.pid}/comm").read_text() == "hpn-node\n")
        signal_child(process, signal.SIGKILL)  # as the kernel does for memory
        assert process.says("reading the configuration ended with status -9")
        kubelet.until(NAME, UP)
        process.write([OTHER])
        process.reload()
        signal_child(process, signal.SIGKILL)  # as the kernel does for memory
        assert process.says("the previous configuration stays in force")
        kubelet.until("example.com/rail9", {})


def test_a_reload_during_the_start(process: NodeProcess) -> None:
    """hpn node reads the file again, also if it cannot notice the signal before it serves."""
    with Kubelet(process.kubelet) as kubelet, process:
        until(lambda: Path(f"/proc/{process.process.pid}/comm").read_text() == "hpn-node\n")
        # The start waits for its reader.
        reader = signal_child(process, signal.SIGSTOP)
        process.write([OTHER])
        process.reload()
        os.kill(reader, signal.SIGCONT)
        process.says("reloads its configuration")
        kubelet.until("example.com/rail9", {})


def test_a_reload_before_the_node_is_ready(process: NodeProcess) -> None:
    """hpn node reads the file again when it serves."""
    process.write([RESOURCE], pfs=[{"selectors": {"ifNames": ["absent"]}, "numVfs": 1}])
    with Kubelet(process.kubelet) as kubelet, process:
        until(lambda: Path(f"/proc/{process.process.pid}/comm").read_text() == "hpn-node\n")
        reader = signal_child(process, signal.SIGCONT)
        until(lambda: not Path(f"/proc/{reader}").exists())
        # The start waits for the child that makes the node ready.
        child = signal_child(process, signal.SIGSTOP)
        process.write([OTHER])
        process.reload()
        until(lambda: process.sleeps(0.2))  # it has noticed the signal
        os.kill(child, signal.SIGCONT)
        process.says("reloads its configuration")
        kubelet.until("example.com/rail9", {})


def test_another_device_plugin_has_the_resource(process: NodeProcess) -> None:
    """hpn node does not replace it, and offers the resource when that one has ended."""
    process.write([RESOURCE, OTHER])
    process.registry.mkdir(parents=True)
    socket_of_other, ours = process.registry / "other.sock", process.registry / "hpn-example.com_rail0.sock"
    with offering(socket_of_other, NAME), process:
        process.says("serves example.com/rail9")
        assert process.says(f"{NAME}: {socket_of_other} is another device plugin that offers it, so hpn node does not")
        assert not ours.exists()
        process.reload()
        process.says("reloads its configuration")
        assert not ours.exists()
        end_of_other = process.folder / "ended"
        socket_of_other.rename(end_of_other)
        process.says("serves example.com/rail0")


def test_another_driver_has_the_name(process: NodeProcess) -> None:
    """hpn node does not register beside it, and the device plugin goes on."""
    process.write([RESOURCE, OTHER | {"by": "dra"}])
    process.registry.mkdir(parents=True)
    socket_of_other, ours = process.registry / "other.sock", process.registry / "hpn-hpn-cni.io.sock"
    with offering(socket_of_other, "hpn-cni.io"), process:
        process.says(f"serves {NAME}")
        assert process.says(
            f"hpn-cni.io: {socket_of_other} is another driver with that name, so hpn node does not, until"
        )
        assert not ours.exists()
        socket_of_other.rename(process.folder / "ended")
        process.says("serves hpn-cni.io")


def test_files_that_cannot_be_written_for_a_time(process: NodeProcess) -> None:
    """hpn node waits until it can write: sockets without an inode in kubelet's directory, and CDI files without room in
    /run."""
    process.write([RESOURCE | {"cdi": True, "vhostNet": True}])
    process.registry.mkdir(parents=True)
    registry = f"mount -t tmpfs -o nr_inodes=3 tmpfs {process.registry}"
    room = "mount -o remount,size=4k /run && { yes > /run/full || true; }"
    process.mounts += [registry, f"touch {process.registry}/full", room]
    with process:
        inside = Path(f"/proc/{process.process.pid}/root")
        process.says("containers get no device by CDI until it can be written")
        process.says("kubelet gets no resource until it can be written")
        (inside / "run/full").unlink()
        (inside / f"{process.registry}"[1:] / "full").unlink()
        process.says("serves example.com/rail0")
        cdi = inside / "run/cdi/hpn-example.com_rail0.json"
        until(lambda: cdi.exists() and "/dev/vhost-net" in cdi.read_text())
        until(lambda: process.sleeps(1))


def test_what_runtimes_read_stays_over_a_stop(process: NodeProcess) -> None:
    """CDI files stay after a stop, because a runtime may restart a container without hpn node.  The next start removes
    stale ones."""
    (process.folder / "run").mkdir()
    process.mounts[0] = f"mount --bind {process.folder}/run /run"
    cdi = process.folder / "run/cdi/hpn-example.com_rail0.json"
    process.write([RESOURCE | {"cdi": True, "vhostNet": True}])
    process.registry.mkdir(parents=True)
    with process:
        process.says("serves example.com/rail0")
    assert "/dev/vhost-net" in cdi.read_text()
    process.write([OTHER])
    with process:
        process.says("serves example.com/rail9")
        assert not cdi.exists()


def test_devices_that_come_late_after_a_boot(process: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """hpn node stays unready for kubelet and systemd until the devices from before the boot are back."""
    file, sockets = process.registry / ".hpn-node.json", process.registry.glob
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"{process.folder}/notify")
        monkeypatch.setenv("NOTIFY_SOCKET", f"{process.folder}/notify")
        process.registry.mkdir(parents=True)
        with process:
            assert systemd.recv(100) == b"READY=1"
            until(file.exists)
        assert systemd.recv(100) == b"STOPPING=1"
        ip("link", "delete", "rail0")
        body = durable.read(file)
        durable.write(file, {**(body or {}), "boot": "the one before"})
        before = file.read_bytes()
        with process:
            process.says("waits up to 60 s for devices offered before the boot: rail0 of example.com/rail0")
            # time: nothing is to come
            systemd.settimeout(5)
            with pytest.raises(TimeoutError):
                systemd.recv(100)
            assert (list(sockets("*.sock")), file.read_bytes()) == ([], before)
            ip("link", "add", "rail0", "up", "type", "veth", "peer", "name", "fabric")
            systemd.settimeout(60)
            assert systemd.recv(100) == b"READY=1"
            assert list(sockets("*.sock")) == [process.registry / "hpn-example.com_rail0.sock"]
            until(lambda: durable.read(file) == body)


# hpn node with a kernel that reports failed firmware for the devices listed in a file.
FAILED = """
import runpy, sys
from pathlib import Path
from node.health.watch import Watch
file = Path(sys.argv.pop(1))
Watch.failed = property(lambda _: frozenset(file.read_text().split()), lambda *_: None)
runpy.run_module("ctl", run_name="__main__", alter_sys=True)
"""


def test_firmware_that_recovers_after_a_boot(process: NodeProcess) -> None:
    """kubelet gets the devices at once when their firmware recovers, although no device comes or goes."""
    file, failed = process.registry / ".hpn-node.json", process.folder / "failed"
    process.registry.mkdir(parents=True)
    with process:
        until(file.exists)
    durable.write(file, {**(durable.read(file) or {}), "boot": "the one before"})
    failed.write_text("rail0")
    process.program = [sys.executable, "-c", FAILED, f"{failed}"]
    with process:
        process.says("waits up to 60 s for devices offered before the boot: rail0 of example.com/rail0")
        failed.write_text("")
        ip("link", "set", "fabric", "down")
        process.says("all devices offered before the boot are there")
        process.says("serves example.com/rail0")


def test_sockets_of_one_that_was_killed(process: NodeProcess) -> None:
    process.registry.mkdir(parents=True)
    for name in ("hpn-example.com_gone.sock", ".hpn-example.com_gone.sock", "other.sock"):
        (process.registry / name).touch()
    with process:
        process.says("serves example.com/rail0")
        assert {path.name for path in process.registry.iterdir()} == {
            "hpn-example.com_rail0.sock", "other.sock", ".hpn-node.lock", ".hpn-node.json"
        }  # fmt: skip


def test_a_socket_that_somebody_removed(process: NodeProcess) -> None:
    with Kubelet(process.kubelet) as kubelet, process:
        kubelet.until(NAME, UP)
        path = process.registry / "hpn-example.com_rail0.sock"
        before = path.stat().st_ctime_ns  # the next file may have the same inode number
        path.unlink()
        until(lambda: path.exists() and path.stat().st_ctime_ns != before)
        kubelet.until(NAME, UP)


def test_it_sleeps(process: NodeProcess) -> None:
    """hpn node has one thread and does not wake up without an event."""
    with Kubelet(process.kubelet) as kubelet, process:
        kubelet.until(NAME, UP)
        assert os.listdir(f"/proc/{process.process.pid}/task") == [str(process.process.pid)]
        until(lambda: process.sleeps(2), 120)
