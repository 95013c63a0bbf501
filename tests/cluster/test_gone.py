"""No part of a cluster is left on the machine, however the cluster ends."""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import keeper
from cluster.space import CGROUPS, until
from cluster.two_nodes import Cluster

# The sysctls that kubelet sets for the whole machine if they differ.
SYSCTLS = {"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1"}
FIXTURES = Path(keeper.__file__).parents[1]
# A host with one process of its own: it has everything that could be left over, without the wait for Kubernetes.
STARTER = textwrap.dedent(f"""
    import signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
    sys.path.insert(0, {str(FIXTURES)!r})
    from contextlib import ExitStack
    from pathlib import Path
    from cluster.host import Host, Wire, batch
    from cluster.two_nodes import Cluster
    it = Cluster(Path(), Path())
    with ExitStack() as stack:
        switch = it.kept(stack)
        batch(switch, ["link add rail0 type bridge"])
        host = Host("node1", "", switch, it.folder, [Wire("rail0", "rail0")])
        host.boot()
        host.add_service("sleeps", ["sleep", "600"])
        host.service("sleeps").start()
        print(it.folder, switch.pid, host.space.pid, flush=True)
        time.sleep(600)
    """)


@contextmanager
def started() -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """Start a process that runs such a host; yield it with the cluster's folder."""
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as process:  # fmt: skip
        assert process.stdout
        try:
            words = process.stdout.readline().split()
            assert words, process.stderr and process.stderr.read()
            folder, *pids = words
            assert len(left(Path(folder))) > 1
            assert folder not in Path("/proc/self/mounts").read_text()
            assert "node1-rail0" not in Path("/proc/net/dev").read_text()
            yield process, Path(folder)
        finally:
            process.kill()
    until(lambda: not [pid for pid in pids if Path("/proc", pid).exists()], "its processes to go", 120)


def left(folder: Path) -> list[Path]:
    """The remains of the cluster with this folder on the machine."""
    return [path for path in (folder, *CGROUPS.glob(f"*/{folder.name}")) if path.exists()]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_starter_is_ended(whole: Cluster, end: signal.Signals) -> None:
    with started() as (process, folder):
        process.send_signal(end)
        process.wait()
        until(lambda: not left(folder), f"{folder} to go", 120)
    assert left(whole.folder), "another cluster is not touched"


def test_the_keeper_is_killed(whole: Cluster) -> None:
    """The kernel ends all processes, and the next keeper removes the rest."""
    with started() as (process, folder):
        [pid] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        subprocess.run(["kill", "-KILL", pid], check=True)
    assert left(folder)
    with started():
        assert not left(folder)
    assert left(whole.folder), "another cluster is not touched"


def test_kubelet_finds_sysctls_as_it_wants_them(cluster: Cluster) -> None:
    """kubelet finds its wanted values, so it sets no sysctl of the machine."""
    for node in cluster.nodes.values():
        assert "Updating kernel flag" not in node.service("kubelet").log.read_text()
        for name, value in SYSCTLS.items():
            assert node.run("cat", f"/proc/sys/{name}").stdout == f"{value}\n"
