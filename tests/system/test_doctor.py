"""hpn doctor by the frozen program: its checks of the installed program and its agents, and its output without root."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.node_process import NodeProcess
from support.sysfs_tree import Tree
from support.topology import until
from system.machine import Tools

NOBODY = 65534
# A node without RDMA gets a note only.
NOTES = {"rdma-absent": "note"}


@pytest.fixture
def root(tools: Tools) -> Iterator[Path]:
    """A node with hpn installed and nothing else; the path is short enough for a socket, and open to all users."""
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        Path(folder).chmod(0o755)
        Path(folder, "sys/bus").mkdir(parents=True)  # a /sys without devices
        install(tools.hpn, Path(folder))
        yield Path(folder)


def install(program: Path, root: Path) -> None:
    subprocess.run([program, "install", "--no-units", "--root", root], check=True, capture_output=True)


def doctor(program: Path, root: Path, **how: Any) -> list[dict[str, str]]:
    argv = [program, "doctor", "--json", "--root", root]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, **how)
    assert done.stderr == ""
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    assert done.returncode == any(one["severity"] != "note" for one in found)
    return found


def severities(found: list[dict[str, str]]) -> dict[str, str]:
    return {one["id"]: one["severity"] for one in found}


@contextmanager
def agent(program: Path, root: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """An agent that listens where launchers connect."""
    path = root / "run/hpn/agent.sock"
    with subprocess.Popen([program, "agent", "--socket", path], stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr
            assert b"agent" in process.stderr.readline()  # it prints the path once it listens
            yield process
        finally:
            process.terminate()


def test_nothing_is_wrong(tools: Tools, root: Path) -> None:
    assert severities(doctor(tools.hpn, root)) == NOTES


def test_another_file(tools: Tools, root: Path) -> None:
    with (root / "opt/cni/bin/hpn").open("ab") as file:
        file.write(b"\0")
    (one,) = (one for one in doctor(tools.hpn, root) if one["severity"] != "note")
    assert (one["id"], one["severity"]) == ("plugin-differs", "warning")
    install(tools.hpn, root)
    assert severities(doctor(tools.hpn, root)) == NOTES


def test_a_socket_that_nobody_listens_at(tools: Tools, root: Path) -> None:
    with agent(tools.hpn, root) as process:
        assert severities(doctor(tools.hpn, root)) == NOTES
        process.kill()
        process.wait()
        # The agent's workers hold the socket too, until they notice its end.
        until(lambda: severities(doctor(tools.hpn, root)) == {**NOTES, "socket-dead": "warning"}, 60)
    with agent(tools.hpn, root):
        assert severities(doctor(tools.hpn, root)) == NOTES


def test_an_agent_of_another_build(tools: Tools, root: Path, tmp_path: Path) -> None:
    """doctor warns of an agent of another build, as after a cp over the file: the agent still runs the old program."""
    (root / "proc").symlink_to("/proc")
    other = tmp_path / "hpn"
    shutil.copy(tools.hpn, other)
    data = other.read_bytes()
    unpacked = [path.name.encode() for path in Path(os.environ["HPN_PROGRAM_DIR"]).iterdir()]
    (build,) = (name for name in unpacked if len(name) == 16 and data.count(name) == 1)
    other.write_bytes(data.replace(build, b"0123456789abcdef"))
    with agent(other, root) as process:
        (one,) = (one for one in doctor(tools.hpn, root) if f"/proc/{process.pid}/" in one["evidence"])
        assert (one["id"], one["severity"]) == ("daemon-differs", "warning")
        assert "hpn agent of build 0123456789abcdef" in one["evidence"]
    with agent(tools.hpn, root) as process:
        assert [one for one in doctor(tools.hpn, root) if f"/proc/{process.pid}/" in one["evidence"]] == []


def test_without_rights(tools: Tools, root: Path) -> None:
    """doctor states what it may not read, and draws no conclusion from it."""
    home = root / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    (root / "run/hpn/attachments").mkdir(parents=True)
    (root / "run/hpn").chmod(0o700)
    environ = {"PATH": os.environ["PATH"], "HOME": str(home)}
    found = doctor(root / "opt/cni/bin/hpn", root, user=NOBODY, group=NOBODY, extra_groups=[], env=environ)
    assert severities(found) == {**NOTES, "not-readable": "note"}
    assert f"{root}/run/hpn" in found[-1]["evidence"]


def test_hpn_node_in_a_container(tools: Tools, root: Path) -> None:
    """doctor finds its file there, and reports its read-only /sys, which the log explains."""
    shutil.rmtree(root / "sys")
    tree = Tree(root / "sys")
    tree.netdev("rail0", tree.pci("0000:3b:00.0", sriov_totalvfs=8, sriov_numvfs=0))
    process = NodeProcess(root, [{"name": "example.com/rail0", "kind": "vf"}])
    process.write(
        [{"name": "example.com/rail0", "kind": "vf"}], pfs=[{"selectors": {"ifNames": ["rail0"]}, "numVfs": 4}]
    )
    process.program, process.namespaces = [str(tools.hpn)], ["--mount", "--net"]
    process.show(tree.root)
    # The tree's links lead to its own place.
    process.mounts.insert(0, f"mount --bind {tree.root} {tree.root} && mount -o remount,bind,ro {tree.root}")
    with process:
        process.says("pfs[0].numVfs 4: rail0 (0000:3b:00.0) has 0, and /sys is read-only in this container; mount ")
        # This machine may have more of them.
        (root / "proc").mkdir()
        (root / f"proc/{process.process.pid}").symlink_to(f"/proc/{process.process.pid}")
        (one,) = (one for one in doctor(tools.hpn, root) if one["id"] == "node-not-as-asked")
    assert one["evidence"].endswith("/node.json, pfs[0]), and hpn node has a read-only /sys")
    assert one["evidence"].startswith(f"{tree.root}/bus/pci/devices/0000:3b:00.0/sriov_numvfs: 0; ")
    assert one["remedy"] == "mount the node's /sys into its container, as the chart does with provision: true"
    assert "node-not-as-asked" not in severities(doctor(tools.hpn, root))
