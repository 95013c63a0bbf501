"""hpn install and uninstall by the frozen program itself, with attached pods, on failing disks, and killed."""

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import drawn
import pytest
from support.disks import mounted, read_only
from support.topology import until
from system.machine import Machine, Tools, ours

NODE = "resources: [{name: example.com/rail0, kind: master, selectors: {ifNames: [rail0]}}]"
OTHER = b"0123456789abcdef"


@pytest.fixture(scope="module")
def other(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program under another version: it unpacks for itself, and the agent of each version refuses the other."""
    folder = tmp_path_factory.mktemp("other")
    env = {**os.environ, "HPN_PROGRAM_DIR": str(folder / "program")}
    subprocess.run([tools.binary, "version"], env=env, check=True, capture_output=True)
    (version,) = (path.name.encode() for path in (folder / "program").iterdir() if len(path.name) == len(OTHER))
    data = tools.binary.read_bytes()
    assert data.count(version) == 1
    (folder / "hpn").write_bytes(data.replace(version, OTHER))
    (folder / "hpn").chmod(0o755)
    return folder / "hpn"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The directory to install into; afterwards it has no file under a temporary name."""
    (tmp_path / "root").mkdir()
    yield tmp_path / "root"
    assert temporaries(tmp_path / "root") == []


def temporaries(root: Path) -> list[str]:
    return [path.name for path in root.rglob(".*")]


def hpn(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=60)


def done(program: Path, *words: str | Path) -> list[str]:
    """The lines of the command's output; it must succeed."""
    asked = hpn(program, *map(str, words))
    assert (asked.returncode, asked.stderr) == (0, ""), asked.stderr
    return asked.stdout.splitlines()


def is_whole(root: Path, *programs: Path) -> bool:
    """Whether both names are one of these programs, and answer."""
    plugins = root / "opt" / "cni" / "bin"
    known = [program.read_bytes() for program in programs]
    env = {**os.environ, "CNI_COMMAND": "VERSION"}
    return all(
        (plugins / name).read_bytes() in known
        and subprocess.run([plugins / name], env=env, input=b"{}", capture_output=True, check=False).returncode == 0
        for name in ("hpn", "hpn-ipam")
    )


def test_the_file_that_runs_is_installed(tools: Tools, root: Path) -> None:
    """The program finds its own file by PATH, by a link and from any directory; a second install from there changes
    nothing."""
    (root / "elsewhere").mkdir()
    (root / "elsewhere" / "hpn").symlink_to(tools.binary)
    said = subprocess.run(["hpn", "install", "--root", "."], cwd=root, env={**os.environ, "PATH": f"{root}/elsewhere"},
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert "put /opt/cni/bin/hpn\n" in said
    assert is_whole(root, tools.binary)
    assert (root / "opt/cni/bin/hpn").samefile(root / "opt/cni/bin/hpn-ipam")
    assert done(root / "opt/cni/bin/hpn", "install", "--root", root)[0] == "it is already installed"
    units = {path.name for path in (root / "etc/systemd/system").iterdir() if path.is_file()}
    assert units == {"hpn-agent.service", "hpn-agent.socket", "hpn-node.service"}
    assert len([line for line in done(tools.binary, "uninstall", "--root", root) if "remove" in line]) == 7
    assert [path for path in root.rglob("*hpn*") if path.parent != root / "elsewhere"] == []


def test_systemd_finds_the_units_enabled(tools: Tools, root: Path) -> None:
    (root / "etc" / "hpn").mkdir(parents=True)
    (root / "etc" / "hpn" / "devices.yaml").write_text(NODE)
    done(tools.binary, "install", "--root", root)
    words = {"hpn-agent.socket": "enabled", "hpn-node.service": "enabled", "hpn-agent.service": "static"}
    for unit, word in words.items():
        asked = subprocess.run(["systemctl", f"--root={root}", "is-enabled", unit], capture_output=True, check=False)
        assert asked.stdout.decode().strip() == word


@contextmanager
def coming_and_going(machine: Machine, pod: str) -> Iterator[list[str]]:
    """Attach and detach a pod continually; yields the list of failures."""
    failures, ends = list[str](), threading.Event()

    def work() -> None:
        while not ends.is_set():
            for verb in ("add", "check", "del"):
                asked = machine.cnitool(verb, pod)
                if asked.returncode:
                    failures.append(f"{verb}: {asked.stderr}{asked.stdout}")

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield failures
    finally:
        ends.set()
        worker.join()


def test_upgrade_and_downgrade_with_pods(machine: Machine, root: Path, other: Path) -> None:
    """One version attaches pods and the other checks and detaches them, while a third pod comes and goes."""
    (root / "run").mkdir()
    machine.state.mkdir(mode=0o700)
    (root / "run" / "hpn").symlink_to(machine.state)
    for name in ("hpn", "hpn-ipam"):
        (machine.scratch / "bin" / name).symlink_to(root / "opt/cni/bin" / name)
    machine.network(ours())
    older, newer, busy = machine.pod(), machine.pod(), machine.pod()
    done(machine.tools.binary, "install", "--root", root)
    machine.ok("add", older)
    with coming_and_going(machine, busy) as failures:
        for program in (other, machine.tools.binary, other):
            done(program, "install", "--root", root)
            assert is_whole(root, program)
            machine.ok("check", older)
            # time: so that the third pod comes and goes
            time.sleep(0.3)
        machine.ok("add", newer)
        done(machine.tools.binary, "install", "--root", root)
        machine.ok("check", newer)
    assert failures == []
    refused = hpn(machine.tools.binary, "uninstall", "--root", str(root))
    assert refused.returncode == 1
    assert "hpn is in use: hpn0 of container " in refused.stderr
    machine.ok("del", older)
    machine.ok("del", newer)
    assert "remove /opt/cni/bin/hpn" in done(machine.tools.binary, "uninstall", "--root", root)


def test_a_record_of_a_newer_version(machine: Machine, root: Path, other: Path) -> None:
    """The refusal comes before any replacement, and the installed program's own pods stay unchanged."""
    (root / "run").mkdir()
    machine.state.mkdir(mode=0o700)
    (root / "run" / "hpn").symlink_to(machine.state)
    machine.network(ours())
    pod = machine.pod()
    machine.ok("add", pod)
    done(machine.tools.binary, "install", "--root", root)
    (record,) = (machine.state / "attachments").rglob("*.json")
    whole = record.read_text()
    record.write_text(json.dumps(json.loads(whole) | {"schema": 2}))
    refused = hpn(other, "install", "--root", str(root))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"{record.name} has schema 2, and this version reads 1; nothing was replaced" in refused.stderr
    assert is_whole(root, machine.tools.binary)
    record.write_text(whole)
    machine.ok("del", pod)


def test_over_a_program_that_runs(machine: Machine, root: Path, other: Path) -> None:
    """The install does not fail with "text file busy", and the agent keeps running the old file."""
    done(other, "install", "--root", root)
    socket = machine.scratch / "agent.sock"
    argv = [root / "opt/cni/bin/hpn", "agent", "--socket", socket]
    with subprocess.Popen(argv) as agent:
        until(socket.exists)
        done(machine.tools.binary, "install", "--root", root)
        assert agent.poll() is None
        assert is_whole(root, machine.tools.binary)
        agent.terminate()
        assert agent.wait(60) == 0


def test_several_at_once(tools: Tools, root: Path, other: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        asked = list(pool.map(lambda n: hpn((tools.binary, other)[n % 2], "install", "--root", str(root)), range(6)))
    assert [one.stderr for one in asked if one.returncode] == []
    assert is_whole(root, tools.binary, other)
    assert (root / "opt/cni/bin/hpn").samefile(root / "opt/cni/bin/hpn-ipam")


def test_killed_at_any_time(tools: Tools, root: Path, other: Path) -> None:
    done(other, "install", "--root", root)
    began = time.monotonic()
    done(tools.binary, "install", "--root", root)
    takes = time.monotonic() - began
    chance = random.Random(drawn.seed())
    for n in range(drawn.count(60, "kills")):
        program = (other, tools.binary)[n % 2]
        with subprocess.Popen([program, "install", "--root", root], stdout=subprocess.DEVNULL) as process:
            # time: when to kill, drawn
            time.sleep(takes * chance.random())
            process.send_signal(signal.SIGKILL)
        assert is_whole(root, tools.binary, other), n
        done(program, "install", "--root", root)
        assert is_whole(root, program), n
        assert temporaries(root) == []


@pytest.mark.parametrize(("how", "said"), [("full", "No space left"), ("read-only", "Read-only"), ("noexec", "noexec")])
def test_a_disk_that_cannot(tools: Tools, root: Path, other: Path, how: str, said: str) -> None:
    size = tools.binary.stat().st_size
    with mounted(root / "opt", f"{size * (3 if how == 'noexec' else 1.5):.0f}") as opt:
        done(other, "install", "--root", root)
        if how == "read-only":
            read_only(opt)
        if how == "noexec":
            subprocess.run(["mount", "-o", "remount,noexec", opt], check=True)
        refused = hpn(tools.binary, "install", "--root", str(root))
        assert (refused.returncode, refused.stdout) == (1, "")
        assert said in refused.stderr
        if how == "noexec":
            subprocess.run(["mount", "-o", "remount,exec", opt], check=True)
        assert is_whole(root, other)
        assert temporaries(root) == []


def test_a_mount_in_the_files_place(tools: Tools, root: Path, other: Path) -> None:
    """The install fails as where a container's file is mounted over the program."""
    done(other, "install", "--root", root)
    place = root / "opt/cni/bin/hpn"
    subprocess.run(["mount", "--bind", other, place], check=True)
    try:
        refused = hpn(tools.binary, "install", "--root", str(root))
        assert "Device or resource busy" in refused.stderr
    finally:
        subprocess.run(["umount", place], check=True)
    assert is_whole(root, other)


def test_for_root_only(tools: Tools, root: Path, tmp_path: Path) -> None:
    root.chmod(0o755)
    env = {"HPN_PROGRAM_DIR": "", "HOME": "/nowhere", "PATH": os.environ["PATH"]}
    command = [tools.binary, "install", "--root", root]
    asked = subprocess.run(command, user=65534, env=env, capture_output=True, text=True, check=False)
    assert asked.returncode == 1
    assert list(root.iterdir()) == []
