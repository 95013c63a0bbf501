"""Leases that were imported, of pods whose DEL never comes: they end with the pod's namespace."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.ipam_calls import Net
from support.namespaces import needs_cookies
from support.processes import await_inside
from support.topology import Pod

from base.kernel import netns
from ctl.main import main
from ipam import sandboxes
from ipam.stores import access

CGROUPS = [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")]
LIVING, ENDED, GONE = ("a" * 63 + "1", "b" * 63 + "2", "c" * 63 + "3")
Run = Callable[[str, Pod | None], "subprocess.Popen[bytes]"]


@pytest.fixture
def run() -> Iterator[Run]:
    """Return a function that starts a process in a cgroup like a container's, and in the pod's namespace."""
    base = next(path for path in CGROUPS if (path / "cgroup.procs").exists()) / f"hpn-test-{os.getpid()}"
    started = list[subprocess.Popen[bytes]]()

    def start(name: str, pod: Pod | None) -> "subprocess.Popen[bytes]":
        inside = ["nsenter", f"--net=/run/netns/{pod.name}"] if pod else []
        process = subprocess.Popen([*inside, "sleep", "inf"])
        started.append(process)
        if pod:
            await_inside(process, pod.inode())
        (base / name).mkdir(parents=True, exist_ok=True)
        (base / name / "cgroup.procs").write_text(f"{process.pid}")
        return process

    yield start
    for process in started:
        end(process)
    for folder in filter(Path.is_dir, base.iterdir()):
        folder.rmdir()
    base.rmdir()


def end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


@needs_cookies
def test_an_imported_lease_ends_with_its_pod(make_pod: Callable[[], Pod], run: Run, tmp_path: Path) -> None:
    """Multus sends the DEL to the former IPAM.  The lease of a living pod, and of an unknown one, stays."""
    there = tmp_path / "networks" / "net"
    there.mkdir(parents=True)
    living, ended = make_pod(), make_pod()
    run(f"cri-containerd-{LIVING}.scope", living)
    process = run(ENDED, ended)
    run(f"crio-conmon-{ENDED}.scope", None)  # a monitor in the host's namespace
    for number, container in enumerate((LIVING, ENDED, GONE), 2):
        (there / f"10.0.0.{number}").write_bytes(f"{container}\r\nnet1".encode())
    net = Net(tmp_path, {"subnet": "10.0.0.0/24"})
    hpn = ["hpn", "ipam", "import", "--data-dir", f"{net.dir.parent}", "--from", "host-local", f"{there}"]
    assert main(hpn) == 0
    store = access.open_in(net.dir.parent, "net", [], sandboxes.gone)
    assert store.collect(None) == 0
    end(process)
    assert store.collect(None) == 0, "a mount still holds the namespace"
    ended.gone()
    assert store.collect(None) == 1
    assert set(net.leases()) == {f"{LIVING}:net1", f"{GONE}:net1"}


@needs_cookies
def test_a_second_import_completes_the_first(make_pod: Callable[[], Pod], run: Run, tmp_path: Path) -> None:
    there = tmp_path / "networks" / "net"
    there.mkdir(parents=True)
    (there / "10.0.0.2").write_bytes(f"{ENDED}\r\nnet1".encode())
    net = Net(tmp_path, {"subnet": "10.0.0.0/24"})
    hpn = ["hpn", "ipam", "import", "--data-dir", f"{net.dir.parent}", "--from", "host-local", f"{there}"]
    assert main(hpn) == 0
    assert "sandbox" not in net.body(ENDED)
    pod = make_pod()
    run(ENDED, pod)
    assert main(hpn) == 0
    assert net.body(ENDED)["sandbox"]["inode"] == os.stat(f"/run/netns/{pod.name}").st_ino
    assert net.agrees()


def test_a_container_with_several_namespaces(make_pod: Callable[[], Pod], run: Run) -> None:
    """Nothing is known of it, because either may be the pod's."""
    run(ENDED, make_pod())
    run(ENDED, make_pod())
    run(GONE, None)
    assert netns.by_cgroup([ENDED, GONE, LIVING]) == {}


def test_another_cgroup_whose_name_is_no_text(make_pod: Callable[[], Pod], run: Run) -> None:
    """A pod chooses the names of the cgroups below its own."""
    pod = make_pod()
    run(os.fsdecode(b"of-\xff"), None)
    run(LIVING, pod)
    assert set(netns.by_cgroup([LIVING])) == {LIVING}
