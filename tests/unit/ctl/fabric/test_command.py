"""hpn fabric serve and test on one host over its loopback, with programs that stand for perftest's."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import perftest_programs
from support.rdma_tree import gid, hca, port
from support.sysfs_tree import Tree, write
from support.topology import until

from base.kernel import syscalls
from ctl.fabric import command

ROOT = Path(__file__).parents[4]
RAILS = ("x0", "x1")


class Hosts:
    """Two hosts that share the loopback: the tester, and a process that serves."""

    def __init__(self, root: Path, faults: Path) -> None:
        self.root, self.faults = root, faults
        self.processes = list[subprocess.Popen[str]]()

    def start(self, *words: str) -> subprocess.Popen[str]:
        program = "import sys; from pathlib import Path; from ctl.fabric.command import answer\n"
        program += f"out, status = answer(sys.argv[1:], Path({str(self.root)!r})); print(out, end=''); sys.exit(status)"
        argv = [sys.executable, "-c", program, *words]
        pipe = subprocess.PIPE
        self.processes.append(subprocess.Popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return self.processes[-1]

    def serve(self, *words: str) -> tuple[subprocess.Popen[str], str]:
        process = self.start("serve", "--bind", "127.0.0.1:0", *words)
        assert process.stdout
        line = process.stdout.readline().strip()
        assert re.fullmatch(r"[0-9a-f]{32}@127\.0\.0\.1:\d+", line), line
        return process, line

    def fault(self, name: str, words: str) -> None:
        (self.faults / name).write_text(words)

    def pids(self) -> list[int]:
        file = self.faults / "pids"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def none_is_left(self) -> bool:
        return not any(os.path.exists(f"/proc/{pid}") for pid in self.pids())


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    programs, faults = tmp_path / "bin", tmp_path / "faults"
    programs.mkdir()
    faults.mkdir()
    for name in ("ib_write_lat", "ib_write_bw"):
        text = Path(perftest_programs.__file__).read_text()
        (programs / name).write_text(f"#!{sys.executable} -SE\n{text}")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("HPN_FAULTS", f"{faults}")
    made = Hosts(sysfs(tmp_path / "sys"), faults)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate(timeout=60)
    until(made.none_is_left)


def sysfs(root: Path) -> Path:
    """A /sys with two RDMA devices over the loopback, whose rate is 100 Gb/s."""
    tree = Tree(root)
    for number, name in enumerate(RAILS):
        home = tree.pci(f"0000:0{number}:00.0", current_link_speed="16.0 GT/s PCIe", current_link_width=16,
                        max_link_speed="16.0 GT/s PCIe", max_link_width=16)  # fmt: skip
        where = port(hca(tree, name, home))
        gid(where, 0, "fe80:0000:0000:0000:0000:00ff:fe00:000a", "IB/RoCE v1", "lo")
        gid(where, 3, "0000:0000:0000:0000:0000:ffff:7f00:0001", "RoCE v2", "lo")
        (where / "hw_counters").mkdir()
        write(where / "hw_counters", out_of_sequence=0)
    tree.netdev("lo", address="02:00:00:00:00:0a", mtu=65536)
    return root


QUICKLY = ("--patience", "20", "--here", "x0", "--here", "x1")


def test_a_good_fabric(hosts: Hosts, tmp_path: Path) -> None:
    process, word = hosts.serve()
    files = tmp_path / "o.json", tmp_path / "o.html"
    out, status = command.answer(["test", word, *QUICKLY, "--json", f"{files[0]}", "--html", f"{files[1]}"], hosts.root)
    assert status == 0, out
    assert "2 hosts, 2 ok, 0 findings" in out
    assert process.wait(60) == 0
    body = json.loads(files[0].read_text())
    assert (body["version"], body["status"], body["counts"], body["findings"]) == (1, 0, {"ok": 2}, [])
    assert [one["rails"] for one in body["trials"]] == [[0, 0], [1, 1]]
    assert {(one["forth"], one["back"], one["latency"]) for one in body["trials"]} == {(95.0, 95.0, 2.0)}
    assert [
        (rail["device"], rail["gidIndex"], rail["address"], rail["rate"]) for rail in body["hosts"][1]["rails"]
    ] == [(name, 3, "127.0.0.1", 100.0) for name in RAILS]
    assert "<script" not in files[1].read_text()
    assert 'class="ok"' in files[1].read_text()


def findings(hosts: Hosts, tmp_path: Path, *words: str) -> tuple[list[tuple[str, str, list[int]]], int, str]:
    _, word = hosts.serve()
    file = tmp_path / "o.json"
    out, status = command.answer(["test", word, *QUICKLY, *words, "--json", f"{file}"], hosts.root)
    body = json.loads(file.read_text())
    found = [(one["culprit"], one["verdict"], [place["rail"] for place in one["places"]]) for one in body["findings"]]
    assert body["status"] == status
    return found, status, out


@pytest.mark.parametrize(
    ("name", "words", "verdict", "why"),
    [
        ("x1.bw", "value 50", "slow", "0.9 of the port's rate"),
        ("x1.bw", "fail Failed status 12", "cut", "Failed status 12"),
        ("x1.lat", "fail Couldn't connect to 127.0.0.1", "cut", "Couldn't connect"),
        ("x1.lat", "hang", "cut", "did not end in time"),
        ("x1.bw", "hang", "slow", "did not end in time"),
    ],
)
def test_faults(hosts: Hosts, tmp_path: Path, name: str, words: str, verdict: str, why: str) -> None:
    hosts.fault(name, words)
    found, status, out = findings(hosts, tmp_path, "--patience", "5", "--seconds", "1")
    assert (found, status) == ([("pair", verdict, [1, 1])], 1)
    assert why in out


@pytest.mark.parametrize(
    ("name", "words", "why"),
    [
        ("x1.lat", "server Couldn't allocate MR", "Couldn't allocate MR"),
        ("x1.bw", "fail Couldn't allocate MR", "Couldn't allocate MR"),
    ],
)
def test_what_cannot_run_is_no_finding(hosts: Hosts, tmp_path: Path, name: str, words: str, why: str) -> None:
    hosts.fault(name, words)
    found, status, out = findings(hosts, tmp_path)
    assert (found, status) == ([], 2)
    assert "not run: " in out
    assert why in out


def test_a_port_that_is_down(hosts: Hosts, tmp_path: Path) -> None:
    write(hosts.root / "class/infiniband/x1/ports/1", state="1: DOWN")
    found, status, out = findings(hosts, tmp_path)
    assert (found, status) == ([("pair", "cut", [1, 1])], 1)
    assert "its port is DOWN, not ACTIVE" in out


def test_no_gid(hosts: Hosts, tmp_path: Path) -> None:
    gid(hosts.root / "class/infiniband/x1/ports/1", 3, "0000:0000:0000:0000:0000:0000:0000:0000")
    found, status, out = findings(hosts, tmp_path)
    assert (found, status) == ([], 2)
    assert "x1 has no RoCE v2 GID of 127.0.0.1" in out


def test_rails_that_reach_each_other(hosts: Hosts, tmp_path: Path) -> None:
    """On the loopback all do."""
    found, status, _ = findings(hosts, tmp_path, "--isolated")
    assert (found, status) == ([("leak", "leaks", [0, 1]), ("leak", "leaks", [1, 0])], 1)


def test_perftest_is_missing(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}")
    found, status, out = findings(hosts, tmp_path)
    assert (found, status) == ([], 2)
    assert "ib_write_lat is not installed here; install the package perftest" in out


def test_an_option_that_perftest_lacks(hosts: Hosts, tmp_path: Path) -> None:
    found, status, out = findings(hosts, tmp_path, "--gpu", "0")
    assert (found, status) == ([], 2)
    assert "ib_write_lat of this version has no option --use_cuda" in out


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("who", ["test", "serve"])
def test_an_end_in_the_middle(hosts: Hosts, how: signal.Signals, who: str) -> None:
    """Neither side keeps a process, and the other side notices."""
    hosts.fault("x1.bw", "hang")
    serving, word = hosts.serve()
    testing = hosts.start("test", word, *QUICKLY)
    until(lambda: len(hosts.pids()) >= 12)  # the bandwidth test has begun
    (testing if who == "test" else serving).send_signal(how)
    until(lambda: serving.poll() is not None)
    if who == "serve":
        out, _ = testing.communicate(timeout=60)
        assert testing.returncode == 2, out
        assert "the other end closed the connection" in out
    until(lambda: testing.poll() is not None)
    until(hosts.none_is_left)


def test_a_rail_that_vanishes_meanwhile(hosts: Hosts) -> None:
    """Here and there: the verdicts are those of the trials."""
    hosts.fault("x1.bw", "hang")
    serving, word = hosts.serve(*RAILS)
    testing = hosts.start("test", word, *QUICKLY, "--patience", "3", "--seconds", "1")
    until(lambda: len(hosts.pids()) >= 12)  # the bandwidth test has begun
    (hosts.root / "class/infiniband/x1").unlink()
    out, err = testing.communicate(timeout=120)
    assert (testing.returncode, err) == (1, ""), out
    assert "slow: rail 1" in out
    assert serving.wait(60) == 0


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_file_that_cannot_be_written(hosts: Hosts, capsys: pytest.CaptureFixture[str], option: str) -> None:
    """A full disk does not lose the result of hours."""
    _, word = hosts.serve()
    other = {"--json": "--html", "--html": "--json"}[option]
    whole = hosts.faults / "whole"
    out, status = command.answer(["test", word, *QUICKLY, option, "/dev/full", other, f"{whole}"], hosts.root)
    assert (status, capsys.readouterr().err) == (2, "hpn fabric test: /dev/full: No space left on device\n")
    assert "2 hosts, 2 ok, 0 findings" in out
    assert whole.read_text()


def test_a_parent_that_has_ended_already() -> None:
    """A program of perftest does not start if the kernel cannot report the parent's end any more."""
    if not (child := os.fork()):
        syscalls.die_with_parent(os.getpid())
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_token_is_worth_one_test(hosts: Hosts) -> None:
    process, word = hosts.serve()
    assert command.answer(["test", word, *QUICKLY], hosts.root)[1] == 0
    assert process.wait(60) == 0
    assert command.answer(["test", word, *QUICKLY], hosts.root) == ("", 2)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["test"], "a test needs two hosts"),
        (["test", f"{'0' * 32}@127.0.0.1:1"], "no connection to 127.0.0.1 port 1"),
    ],
)
def test_what_cannot_be_tested(hosts: Hosts, capsys: pytest.CaptureFixture[str], words: list[str], why: str) -> None:
    assert command.answer(words, hosts.root) == ("", 2)
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["serve", "--bind", "0.0.0.0"], "every address of this host"),
        (["serve", "--bind", "[::]:1"], "every address of this host"),
        (["serve", "--bind", "here"], "'here' does not appear to be an IPv4 or IPv6 address"),
        (["test", "10.0.0.1:18500"], "has no token"),
        (["test", "secret@10.0.0.1:18500"], "has no token"),
        (["test", f"{'0' * 32}@10.0.0.1:65536"], "port 65536"),
        (["test", "--rails", "3-1"], "not a span of rails"),
        (["test", "--of-median", "nan"], "at least 0"),
        (["test", "--seconds", "0"], "'0' is not a number from 1 to 3600"),
        (["test", "--traffic-class", "-1"], "not a number"),
        (["test", "--hosts", "/nowhere"], "No such file or directory: '/nowhere'"),
        (["test", "--hosts", "/proc/self/exe"], "argument --hosts: 'utf-8' codec can't decode"),
        (["test", f"{'0' * 32}@127.0.0.1:1", "--pairs", "/nowhere"], "No such file or directory: '/nowhere'"),
        (["test", "--quick", "--full"], "not allowed with"),
    ],
)
def test_wrong_options(capsys: pytest.CaptureFixture[str], words: list[str], why: str) -> None:
    with pytest.raises(SystemExit) as e:
        command.answer(words)
    assert e.value.code == 2
    said = capsys.readouterr().err
    assert why in said
    assert "secret" not in said
