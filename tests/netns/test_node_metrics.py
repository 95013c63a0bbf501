"""hpn node --metrics with real commands, a real journal and real leases, read by Prometheus' own client library."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.metrics_page import Samples, samples
from support.node_process import ROOT, NodeProcess
from support.topology import Host, Pod, ip, until

PORT = 19617
NAME = "example.com/rail0"
RESOURCE = {
    "name": NAME, "kind": "master", "count": 2, "selectors": {"ifNames": ["rail0"], "kinds": ["netdev"]}
}  # fmt: skip
SOON = {"health": {"downAfter": 0.1, "upAfter": 0.1}}


@pytest.fixture
def process(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeProcess]:
    monkeypatch.delenv("HPN_STATE_DIR")  # its commands and the daemon have a /run of their own
    # A socket's path is limited to 107 bytes.
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        process = NodeProcess(Path(folder), [RESOURCE], "--metrics", f"127.0.0.1:{PORT}")
        process.write([RESOURCE], **SOON)
        process.registry.mkdir(parents=True)
        process.mounts += ["mount -t tmpfs tmpfs /var/lib", "ip link set lo up"]
        yield process


def awaited(is_so: Callable[[Samples], bool]) -> Samples:
    """The first page that meets the condition."""
    return until(lambda: next(filter(is_so, [scrape()]), None), 120)


def scrape() -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=60) as answer:
        return samples(answer.read().decode())


def call(process: NodeProcess, command: str, pod: Pod, **keys: Any) -> subprocess.CompletedProcess[str]:
    """Run a command as a runtime does, with the process's /run and /var/lib."""
    conf = {"cniVersion": "1.1.0", "name": "net0", "type": "hpn", "master": "rail0"} | keys
    conf |= {"ipam": {"type": "hpn-ipam", "subnet": "10.56.0.0/29"}}
    environ = {"CNI_COMMAND": command, "CNI_CONTAINERID": pod.name, "CNI_IFNAME": "hpn0", "CNI_PATH": "/nowhere"}
    # The mount over /run hides the names of namespaces.
    netns = f"/proc/{os.getpid()}/root{pod.path}"
    return subprocess.run(
        ["nsenter", f"--mount=/proc/{process.process.pid}/ns/mnt", f"--wd={ROOT}", sys.executable, "-m", "ctl"],
        input=json.dumps(conf), capture_output=True, text=True, check=False, timeout=60,
        env={"PATH": os.environ["PATH"], "CNI_NETNS": netns} | environ,
    )  # fmt: skip


def test_what_pods_have_and_what_commands_did(process: NodeProcess, pod: Pod) -> None:
    with process:
        process.says("serves metrics at http://127.0.0.1:19617/metrics")
        assert call(process, "ADD", pod).returncode == 0
        assert call(process, "ADD", pod, kind="ipvlan", mode="l9").returncode == 1
        found = scrape()
        assert found["hpn_attachments", "macvlan", "net0"] == 1
        assert found["hpn_pool_addresses", "net0", "10.56.0.2-10.56.0.6"] == 5
        assert found["hpn_pool_leases", "net0", "10.56.0.2-10.56.0.6"] == 1
        assert found["hpn_commands_total", "0", "macvlan", "ADD"] == 1
        assert found["hpn_commands_total", "7", "ipvlan", "ADD"] == 1
        assert found["hpn_command_duration_seconds_count", "macvlan", "ADD"] == 1
        assert 0 < found["hpn_command_duration_seconds_sum", "macvlan", "ADD"] < 10
        assert call(process, "DEL", pod).returncode == 0
        after = awaited(lambda now: ("hpn_attachments", "macvlan", "net0") not in now)
        assert after["hpn_pool_leases", "net0", "10.56.0.2-10.56.0.6"] == 0
        assert after["hpn_commands_total", "0", "macvlan", "DEL"] == 1
        assert {value for (name, *_), value in after.items() if name == "hpn_problems"} == {0}


def test_devices_and_problems(process: NodeProcess) -> None:
    process.registry.rmdir()
    with process:
        process.says("serves metrics at")
        found = scrape()
        assert found["hpn_devices", NAME, "healthy"] == 1
        assert found["hpn_problems", "kubelet"] == 1
        assert sum(name == "hpn_build_info" for name, *_ in found) == 1
        process.registry.mkdir(parents=True)
        ip("link", "set", "fabric", "down")
        found = awaited(lambda now: now["hpn_devices", NAME, "unhealthy"] == 1)
        assert found["hpn_device_info", "rail0", "rail0", "", "rail0 has no carrier since 0.1 s", NAME] == 1
        assert awaited(lambda now: now["hpn_problems", "kubelet"] == 0)


def test_it_sleeps_between_scrapes_and_stays_small(process: NodeProcess) -> None:
    with process:
        process.says("serves metrics at")
        before = process.status_of("VmRSS")
        for _ in range(5):
            scrape()
        assert until(lambda: process.sleeps(1), 120)
        assert process.status_of("VmRSS") < before + 2000
        [server] = children(process)
        before = sleeps(server)
        # time: nothing is to happen
        time.sleep(1)
        assert sleeps(server) == before


def children(process: NodeProcess) -> list[str]:
    pid = process.process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def sleeps(pid: str) -> str:
    """The number of waits of the process's first thread (man 5 proc, status)."""
    return Path(f"/proc/{pid}/status").read_text().partition("voluntary_ctxt_switches:")[2].split()[0]


def test_the_process_that_serves_is_begun_again(process: NodeProcess, pod: Pod) -> None:
    """The counts of commands survive a restart of the serving process."""
    with process:
        process.says("serves metrics at")
        assert call(process, "DEL", pod).returncode == 0
        [before] = children(process)
        os.kill(int(before), signal.SIGKILL)
        process.says("the process that serves metrics ended with status -9; it is restarted in 5 s")
        until(lambda: "serves metrics at" in process.said[-1])
        assert scrape()["hpn_commands_total", "0", "macvlan", "DEL"] == 1
        assert children(process) != [before]


def test_it_ends_with_hpn_node(process: NodeProcess) -> None:
    process.status = -signal.SIGKILL
    with process:
        process.says("serves metrics at")
        scrape()
        [server] = children(process)
        process.process.kill()
        until(lambda: not Path(f"/proc/{server}/exe").exists())


def test_an_address_that_is_taken(process: NodeProcess) -> None:
    """Pods get their devices while the address is in use; the metrics are served once it is free."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", PORT))
        other.listen()
        with process:
            assert "in use by another process; choose another port" in process.says(
                f"--metrics http://127.0.0.1:{PORT}"
            )
            process.says(f"serves {NAME}")
            other.close()
            process.says("serves metrics at")
            assert scrape()["hpn_devices", NAME, "healthy"] == 1


def test_it_ends_in_the_midst_of_a_scrape(process: NodeProcess) -> None:
    with process:
        process.says("serves metrics at")
        with socket.create_connection(("127.0.0.1", PORT), 60) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            # time: so that it is in the midst of it; any moment is right
            time.sleep(0.02)
            process.process.send_signal(signal.SIGTERM)
            assert process.process.wait(60) == 0
