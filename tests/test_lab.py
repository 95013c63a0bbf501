"""The lab: tests that need its kernels or its NICs, inside the guest with them; one boot, one test, one report.

Most kernels have no ipvlan and search for a new link's name in the right namespace.  So the netns tier's tests of these
two run here as well.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import drawn
import pytest
from conftest import require
from support import go_kubelet

ROOT = Path(__file__).parents[1]
LAB = ROOT / "netns-fixtures" / "lab"
BROKEN = 125
TCX = "tests/lab/test_devices.py::test_bpf_programs_stay_behind[rail0v0-tcx by link]"  # since Linux 6.6
TWO = ("--processors", "2")
IPOIB = ("ipoib", "ipoib_gone")
# The tests of each boot: netns-fixtures/lab's options, and the tests.  The longest boots come first.
BOOTS = {
    "InfiniBand": (
        (),
        tuple(
            f"tests/lab/infiniband/test_{name}.py"
            for name in ("vf", "guids", "gone", "node_devices", "node", "provision", "devices_shown", *IPOIB)
        ),
    ),
    "hpn node": (
        (),
        tuple(
            f"tests/lab/test_{name}.py"
            for name in (
                "node",
                "node_claims",
                "rdma_numbers",
                "provision",
                "provision_beside",
                "provision_contained",
                "doctor",
            )
        ),
    ),
    # Each rank of a job polls, and so takes a processor.
    "soft-RoCE": (
        (*TWO, "--kernel", "trixie", "--rdma", "shared", "--vfs", "1"),
        tuple(
            f"tests/lab/shared/test_{name}.py"
            for name in ("rxe", "memlock", "node_devices", "devices_shown", "top", "workloads")
        ),
    ),
    "fabric": ((*TWO, "--kernel", "trixie", "--rdma", "shared", "--vfs", "1"), ("tests/lab/shared/test_fabric.py",)),
    "kills": ((), tuple(f"tests/lab/test_{name}.py" for name in ("transaction", "agent_killed", "chain"))),
    # Tests of several processors, or of many processes at once.
    "failures": (
        TWO,
        (
            *(
                f"tests/lab/test_{name}.py"
                for name in ("failures", "elsewhere", "contention", "hostile_pod", "repair", "steering")
            ),
            *(f"tests/netns/test_steering.py::test_of_a_link_for_the_pod[ipvlan-{cpus}]" for cpus in ("0-1", "0")),
        ),
    ),
    "RDMA": (
        (),
        (
            "tests/lab/test_rdma.py",
            "tests/lab/test_multi_rail.py",
            "tests/lab/test_rails.py",
            "tests/lab/test_gids.py",
            "tests/lab/test_device_information.py",
            "tests/lab/test_rxe_refused.py",
            "tests/lab/test_examples.py",
            "tests/lab/test_pages.py",
            "tests/lab/test_kinds.py",
            "tests/lab/test_devices_shown.py",
            "tests/lab/test_plan.py",
            TCX,
            "tests/netns/test_ipvlan.py",
            "tests/netns/test_kinds.py",
            "tests/netns/test_pages.py::test_transcript[reference.md#ipvlan]",
            "tests/netns/test_routing.py::test_kinds",
            "tests/netns/test_tuning.py::test_set_and_put_back",
            "tests/netns/test_macvlan.py::test_the_host_has_an_interface_of_that_name",
            "tests/netns/test_routing.py::test_kinds[ipvlan]",
            *(f"tests/netns/test_tuning.py::test_set_and_put_back[ipvlan-names{n}]" for n in range(3)),
            "tests/netns/test_eui64.py::test_ipvlans_have_one_mac",
            "tests/netns/test_probe.py::test_ipvlan_is_refused",
            "tests/netns/test_check_link.py::test_mtu",
            "tests/netns/test_check_link.py::test_arp_of_an_ipvlan",
            "tests/netns/test_check_link.py::test_vrf",
            "tests/netns/test_check_link.py::test_tables_in_a_vrf",
            "tests/netns/test_node_uplinks.py::test_vrf",
        ),
    ),
    # On the oldest kernel that Debian keeps, Debian 12's.  The boots below test later features on the newer one.
    "VFs": (
        ("--kernel", "6.1"),
        (
            f"--deselect={TCX}",
            "tests/lab/test_guest.py",
            "tests/lab/test_sriov.py",
            "tests/lab/test_devices.py",
            "tests/lab/test_host_device.py",
            "tests/lab/test_node_devices.py",
            "tests/lab/test_node_metrics.py",
            "tests/lab/test_node_check.py",
            "tests/lab/test_lldp.py",
        ),
    ),
    "rails": (
        (*TWO, "--kernel", "trixie", "--rdma", "shared", "--pfs", "8", "--vfs", "1"),
        ("tests/lab/shared/test_multi_rail.py", "tests/lab/shared/test_workloads_on_rails.py"),
    ),
    "without IPv6, in 1970": (
        ("--without-ipv6", "--date", "1970-01-01", "--pfs", "1", "--vfs", "1"),
        ("tests/lab/test_poor.py",),
    ),
    "soft-RoCE without namespaces": (
        ("--rdma", "shared", "--pfs", "1", "--vfs", "1"),
        ("tests/lab/shared/test_rxe_without_namespaces.py",),
    ),
}


@pytest.fixture(autouse=True)
def outside() -> None:
    if "HPN_LAB" in os.environ:
        pytest.skip("is what boots the guest that this is")
    go_kubelet.built("lab")  # a guest cannot build it
    for kernel in ("6.1", "bookworm", "trixie"):
        ready = subprocess.run([LAB, "--kernel", kernel, "--prepare"], capture_output=True, text=True, check=False)
        if ready.returncode:
            require("lab", ready.stderr.strip())


def lab(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the lab, a second time if it broke itself.

    QEMU's emulated IOMMU sometimes aborts (iotlb_to_section), its processors sometimes stop, and a clock may be wrong.
    """

    def once() -> subprocess.CompletedProcess[str]:
        return subprocess.run([LAB, *words], cwd=ROOT, capture_output=True, text=True, check=False)

    done = once()
    if done.returncode == BROKEN:
        print(f"the lab broke, and boots again: {done.stderr}")
        done = once()
    return done


@pytest.fixture
def emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replace the start of the guest's emulator by a line of bash, in which "$@" is its command."""
    real = shutil.which("qemu-system-x86_64")

    def replace(line: str) -> None:
        script = f'#!/bin/bash\nset -- {real} "$@"\n[[ " $* " == *" -append "* ]] || exec "$@"\n{line}\n'
        path = tmp_path / "bin" / "qemu-system-x86_64"
        path.parent.mkdir()
        path.write_text(script)
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")

    return replace


def status(*words: str) -> int:
    done = subprocess.run((LAB, "--pfs", "0", *words), cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    return done.returncode


@pytest.mark.parametrize(("code", "seen"), drawn.share([(0, 0), (7, 7), (BROKEN, 122), (255, 255)], "statuses"))
def test_the_commands_status(code: int, seen: int) -> None:
    assert status("sh", "-c", f"exit {code}") == seen


@pytest.mark.parametrize(
    "line",
    ['exec "$@" -cpu Nosuchcpu', 'exec "$@" -nosuchoption', "exit 0", "exit 7", "kill -KILL $$"],
    ids=["processor", "option", "0", "7", "killed"],
)
def test_an_emulator_that_does_not_start(emulator: Callable[[str], None], line: str) -> None:
    emulator(line)
    assert status("sh", "-c", "exit 7") == BROKEN


@pytest.mark.parametrize(
    "end",
    drawn.share(
        [
            "echo c >/proc/sysrq-trigger",
            "echo triple >/sys/kernel/reboot/type; echo b >/proc/sysrq-trigger",
            "echo o >/proc/sysrq-trigger; sleep 3000",
        ],
        "early ends",
    ),
)
def test_a_guest_that_ends_early(end: str) -> None:
    assert status("sh", "-c", end) == BROKEN


def test_an_emulator_that_is_killed(emulator: Callable[[str], None], tmp_path: Path) -> None:
    emulator(f'echo $$ >{tmp_path}/pid; exec "$@"')
    words = (LAB, "--pfs", "0", "sh", "-c", "echo there; sleep 3000")
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "there\n"
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert process.returncode == BROKEN


@pytest.mark.parametrize("line", ['exec "$@"', "trap '' TERM; exec sleep 3000"], ids=["", "stubborn"])
def test_the_limit(emulator: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setenv("HPN_LAB_TIMEOUT", "1")
    emulator(line)
    assert status("sleep", "3000") == 124


@pytest.mark.parametrize("factor", drawn.share(["103/100", "97/100"], "wrong clocks"))
def test_a_clock_that_is_wrong(emulator: Callable[[str], None], factor: str) -> None:
    """The guest's kernel gets another frequency of its TSC than the true one."""
    emulator(
        'words=("$@")\n'
        "for i in ${!words[@]}; do [[ ! ${words[i]} =~ tsc_early_khz=([0-9]+) ]] ||\n"
        f"  words[i]=${{words[i]/$BASH_REMATCH/tsc_early_khz=$((BASH_REMATCH[1] * {factor}))}}\n"
        'done; exec "${words[@]}"'
    )
    words = (LAB, "--pfs", "0", "sh", "-c", "exit 7")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == BROKEN
    assert re.fullmatch(r"no lab: its clock counted \d+ us in \d+ us", done.stderr.splitlines()[-1])


@pytest.mark.parametrize("words", [["--kernel"], ["--rdma", "neither", "true"], ["--nosuch", "1", "true"], []])
def test_wrong_options(words: list[str]) -> None:
    assert subprocess.run((LAB, *words), capture_output=True, check=False).returncode == BROKEN


@pytest.mark.parametrize("boot", BOOTS)
def test_in_the_lab(tmp_path: Path, boot: str) -> None:
    options, tests = BOOTS[boot]
    inside = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml=/run/lab/out/junit.xml", *tests]
    done = lab("--out", tmp_path, *options, *inside)
    print(done.stdout, done.stderr)
    report = tmp_path / "junit.xml"
    assert report.exists(), f"no report came back; the lab ended with {done.returncode}: {done.stderr}"
    cases = list(ET.parse(report).getroot().iter("testcase"))
    for one in (one for case in cases for one in case.iter("property")):
        drawn.noted(str(one.get("name")), int(one.get("value", "")))
    # A skip is a failure too: the guest has everything that these tests may lack elsewhere.
    others = [f"{c.get('classname')}::{c.get('name')}: {e.tag}: {e.get('message')}" for c in cases for e in outcomes(c)]
    assert (others, done.returncode) == ([], 0), "\n".join(others)
    assert cases


@pytest.mark.parametrize(
    "stop",
    drawn.share(
        [
            # The only processor answers no more.
            """echo '{"execute": "qmp_capabilities"} {"execute": "stop"}' >/dev/vport0p2""",
            # Another processor's kernel reports it.
            "echo '<3>rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:' >/dev/kmsg",
        ],
        "stops",
    ),
)
def test_a_processor_that_stands_still(stop: str) -> None:
    """The lab ends before its time limit."""
    words = (LAB, "--pfs", "0", "sh", "-c", f"echo there; {stop}; sleep 3000")
    env = {**os.environ, "HPN_LAB_SILENCE": "60"}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, env=env, timeout=1500)
    assert (done.returncode, done.stdout, done.stderr.splitlines()[-1]) == (
        BROKEN, "there\n", "no lab: a processor of the emulated machine stands still"
    )  # fmt: skip


def test_power_failures(tmp_path: Path) -> None:
    """After recovery from an older boot, each answered change is present, nothing is lost for ever, and no device
    changes.

    The disk keeps exactly the synced data, which no test that kills processes can show.
    """
    inside = ("--disk", tmp_path / "disk", "env", f"PYTHONPATH={ROOT / 'tests/harness'}:{ROOT / 'tests'}:{ROOT}")
    program = (sys.executable, "-m")
    recover = list[str]()
    cases = drawn.share((("disk", "ADD", 4), ("memory", "ADD", 20), ("disk", "DEL", 12)), "power failures")
    drawn.noted("power failures of a node", len(cases))
    for journal, verb, step in cases:
        lost = lab(*inside, *program, "guest.outage", *recover, "lose", journal, verb, str(step))
        assert lost.returncode == 123, lost.stdout + lost.stderr
        recover = ["recover", journal, lost.stdout.strip()]
    both = f"{shlex.join((*program, 'guest.outage', *recover))} && {shlex.join((*program, 'guest.power', 'lose'))}"
    lost = lab(*inside, "sh", "-c", both)
    assert lost.returncode == 123, lost.stdout + lost.stderr
    after = lab("--pfs", "0", *inside, *program, "guest.power")
    assert (after.returncode, after.stderr) == (0, "")
    assert set(after.stdout.split()) == {"synced:1000", "renamed-and-synced:1000", "renamed.new:1000"}


def test_the_units() -> None:
    if "HPN_BINARY" not in os.environ:
        require("lab", "HPN_BINARY, which `make test` sets after building it")
    units = ("env", f"PYTHONPATH={ROOT / 'tests'}", sys.executable, "-m", "guest.units", os.environ["HPN_BINARY"])
    done = lab("--pfs", "1", "--vfs", "0", *units)
    assert done.returncode == 0, done.stdout + done.stderr
    said = ["started by its socket", "started again", "stopped", "found by kubelet", "reloaded"]
    said += ["made ready", "serves metrics", "refused", "installed", "another version", "uninstalled"]
    assert done.stdout.splitlines()[-len(said) :] == said


def test_under_load() -> None:
    drawn.noted("boots under load", 1)
    stress = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/lab/stress.py")
    done = lab(*TWO, "--pfs", "8", "--vfs", "7", *stress)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_test_has_a_boot() -> None:
    named = {Path(test) for _, tests in BOOTS.values() for test in tests}
    assert {p.relative_to(ROOT) for p in (ROOT / "tests/lab").rglob("test_*.py")} <= named


def outcomes(case: ET.Element) -> list[ET.Element]:
    """The failures, errors and skips of a test."""
    return [e for e in case if e.tag in ("failure", "error", "skipped")]
