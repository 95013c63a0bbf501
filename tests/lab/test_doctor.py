"""hpn doctor with real devices, kernel and processes: each finding is provoked, and disappears after its remedy."""

import ctypes
import json
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from guest.machine import Guest, rdma
from guest.node import NAME, PF, pci
from support.topology import Pod, ip, until

from ctl.doctor import command
from ctl.doctor.command import facts
from ctl.doctor.model import Finding, Severity

ADJ_MAXERROR, ADJ_STATUS = 0x4, 0x10
NODE = "resources: [{{name: example.com/rail0, kind: vf, selectors: {{pfNames: [rail0]}}}}]\npfs: [{rule}]\n"


@pytest.fixture
def root(guest: Guest) -> Path:
    """The guest, with the test's own directories for configuration and state."""
    root = guest.tmp_path / "root"
    for name in ("etc/hpn", "etc/cni/net.d", "opt/cni/bin", "run"):
        (root / name).mkdir(parents=True)
    for name in ("sys", "proc", "dev"):
        (root / name).symlink_to(f"/{name}")
    shutil.copy("/bin/true", root / "opt/cni/bin/hpn")
    return root


def found(root: Path) -> dict[str, Finding]:
    """The findings by id, except notes."""
    findings = [(name, one) for name, one in all_of(root) if one.severity is not Severity.NOTE]
    assert len({name for name, _ in findings}) == len(findings), findings
    return dict(findings)


def all_of(root: Path) -> list[tuple[str, Finding]]:
    """Run the checks in this process: in the guest a program takes seconds to start."""
    return command.findings(facts(root, "", ""))


@contextmanager
def process(path: Path, *words: str, memlock: int = -1) -> Iterator[None]:
    """A program of that name with a limit of so many locked bytes."""
    shutil.copy("/bin/sleep", path)
    limit = f"--memlock={memlock if memlock >= 0 else 'unlimited'}"
    with subprocess.Popen(["prlimit", limit, path, "inf", *words]) as running:
        try:
            until(lambda: Path(f"/proc/{running.pid}/comm").read_text() == f"{path.name}\n", 60)
            yield
        finally:
            running.kill()


@contextmanager
def knowing_dcb(*names: str) -> Iterator[None]:
    """Interfaces with a driver that supports DCB, for the kernel's own dcbnl (netns-fixtures/testdcb)."""
    subprocess.run(["insmod", "/run/lab/modules/testdcb.ko", f"names={','.join(names)}"], check=True)
    try:
        yield
    finally:
        for name in names:
            dcb("app", "flush", "dev", name)
        subprocess.run(["rmmod", "testdcb"], check=True)


def dcb(*words: str) -> Any:
    """Run iproute2's dcb, which prints JSON when it shows something."""
    said = subprocess.run(["dcb", "-j", *words], check=True, capture_output=True, text=True).stdout
    return json.loads(said) if said.strip() else None


def test_nothing_is_wrong(root: Path) -> None:
    assert found(root) == {}


@pytest.mark.usefixtures("exclusive")
def test_rdma_mode(root: Path) -> None:
    """The remedy works exactly as printed."""
    plugin: dict[str, Any] = {"type": "hpn", "pf": PF, "rdma": {"mode": "shared"}}
    conf = {"cniVersion": "1.0.0", "name": "rail0", "plugins": [plugin]}
    (root / "etc/cni/net.d/10-rail0.conflist").write_text(json.dumps(conf))
    one = found(root)["rdma-mode"]
    assert "netns_mode shows exclusive mode" in one.evidence
    assert rdma("system", "show") == ["netns exclusive copy-on-fork on"]
    command = one.remedy.partition(",")[0].split()
    assert command == ["rdma", "system", "set", "netns", "shared"]
    subprocess.run(command, check=True)
    assert "rdma-mode" not in found(root)


def test_what_the_file_asks_for(root: Path) -> None:
    (root / "etc/hpn/devices.yaml").write_text(NODE.format(rule="{selectors: {ifNames: [rail0]}, mtu: 2000}"))
    one = found(root)["node-not-as-asked"]
    assert "net/rail0/mtu: 1500; the device file asks for mtu 2000 (" in one.evidence
    try:
        ip("link", "set", PF, "mtu", "2000")
        assert set(found(root)) == {"mtu-differs"}
        ip("link", "set", "rail1", "mtu", "2000")
        assert found(root) == {}
    finally:
        for name in (PF, "rail1"):
            ip("link", "set", name, "mtu", "1500")


def test_memory_that_may_not_be_locked(root: Path, tmp_path: Path) -> None:
    with process(tmp_path / "containerd", memlock=1 << 23):
        one = found(root)["memlock"]
        assert "limits of containerd: Max locked memory is 8388608 bytes" in one.evidence
    with process(tmp_path / "containerd"):
        assert found(root) == {}


def test_irqbalance(root: Path, tmp_path: Path) -> None:
    with process(tmp_path / "irqbalance"):
        one = found(root)["irqbalance"]
        assert pci(PF) in one.evidence
        bans = [word for word in one.remedy.split() if word.startswith("--ban")]
    assert sorted(bans) == ["--banmod=igb", "--banmod=igbvf"]


def test_a_vf_elsewhere(root: Path, pod: Pod) -> None:
    def elsewhere() -> list[str]:
        return [one.evidence for name, one in all_of(root) if name == "vf-elsewhere"]

    assert elsewhere() == []
    address = pci(NAME)
    ip("link", "set", NAME, "netns", pod.name)
    (evidence,) = elsewhere()
    assert address in evidence
    pod.run("ip", "link", "set", NAME, "netns", "1").check_returncode()
    assert elsewhere() == []


def test_a_namespace_has_the_hosts_filter(root: Path) -> None:
    """rp-filter depends on this: a namespace that is made later is as strict as the host."""
    sysctl = "net.ipv4.conf.default.rp_filter"
    before = subprocess.check_output(["sysctl", "-n", sysctl], text=True).strip()
    try:
        for value in ("1", "0"):
            subprocess.run(["sysctl", "-q", "-w", f"{sysctl}={value}"], check=True)
            inside = subprocess.check_output(["unshare", "-n", "sysctl", "-n", sysctl], text=True)
            assert inside == f"{value}\n"
    finally:
        subprocess.run(["sysctl", "-q", "-w", f"{sysctl}={before}"], check=True)


def test_priorities(root: Path) -> None:
    """doctor reads the settings of iproute2's dcb, and the commands of the remedy repair them."""
    rails = (PF, "rail1")
    with knowing_dcb(*rails):
        assert found(root) == {}
        for name in rails:
            one = found(root).get("pfc-differs")
            assert (one is None) == (name == PF)
            dcb("pfc", "set", "dev", name, "prio-pfc", "3:on")
            dcb("app", "replace", "dev", name, "dscp-prio", "24:3", "25:3", "26:3", "48:6")
            assert dcb("pfc", "show", "dev", name, "prio-pfc")["prio_pfc"] == [False] * 3 + [True] + [False] * 4
        assert one
        assert "net/rail0: PFC on 3; DSCP 24-26 to 3, 48 to 6. " in one.evidence
        assert one.evidence.endswith("net/rail1: no PFC")
        assert found(root) == {}
        dcb("app", "replace", "dev", "rail1", "dscp-prio", "26:4")
        assert "DSCP 24-25 to 3, 26 to 4, 48 to 6" in found(root)["pfc-differs"].evidence
        shown = {nic.device.netdevs[0]: nic.dcb for nic in facts(root, "", "").hardware.nics if nic.dcb}
        for name in rails:
            known = shown[name]
            assert known
            showing = dcb("app", "show", "dev", name, "dscp-prio")["dscp_prio"]
            assert [list(pair) for pair in known.dscp] == sorted(showing)
    assert found(root) == {}


def test_the_clock(root: Path) -> None:
    """No program keeps the guest's clock right."""

    def clock() -> list[tuple[str, Severity]]:
        return [(name, one.severity) for name, one in all_of(root) if name.startswith("clock")]

    unsynchronized = [("clock-unsynchronized", Severity.NOTE)]
    right = time.time() - time.monotonic()
    try:
        assert clock() == unsynchronized
        tell_the_kernel(ADJ_MAXERROR | ADJ_STATUS, status=0)  # as an NTP client does
        assert clock() == []
        time.clock_settime(time.CLOCK_REALTIME, 365 * 86400)
        assert clock() == [("clock-wrong", Severity.ERROR)]
        assert "the clock shows 1971-01-01 00:00" in found(root)["clock-wrong"].evidence
    finally:
        time.clock_settime(time.CLOCK_REALTIME, right + time.monotonic())
    assert clock() == unsynchronized  # setting the time alone leaves the clock unsynchronized


def tell_the_kernel(modes: int, status: int) -> None:
    """Set the kernel's clock state (man 2 adjtimex: struct timex has its modes first, its status behind four longs)."""
    timex = bytearray(256)
    struct.pack_into("@Illlli", timex, 0, modes, 0, 0, 0, 0, status)
    assert ctypes.CDLL(None).adjtimex((ctypes.c_char * 256).from_buffer(timex)) >= 0
