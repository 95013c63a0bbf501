"""The one file itself: its names, its contents, and the environment that it must not pass on."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from system.machine import RANGES, Machine, Tools, ours

# Deliberately nearly empty: no PATH, no HOME, no locale.
VERSION = {"CNI_COMMAND": "VERSION"}


def run(*argv: str | Path, env: dict[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    given = env | {"HPN_PROGRAM_DIR": os.environ["HPN_PROGRAM_DIR"], "HPN_AGENT": ""}
    return subprocess.run([*map(str, argv)], env=given, input=stdin, capture_output=True, text=True, check=False)


def test_a_person_gets_the_version(tools: Tools) -> None:
    done = run(tools.hpn, "version", env={})
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"hpn \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize("argv", [[], ["help"]])
def test_a_person_gets_help(tools: Tools, argv: list[str]) -> None:
    done = run(tools.hpn, *argv, env={})
    assert done.returncode == 0
    assert "CNI" in done.stdout


def test_a_reader_that_has_seen_enough(tools: Tools) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    env = {"HPN_PROGRAM_DIR": os.environ["HPN_PROGRAM_DIR"]}
    done = subprocess.run([tools.hpn, "help"], env=env, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_a_person_sees_what_is_attached(tools: Tools, machine: Machine) -> None:
    machine.network(ours())
    pod = machine.pod()
    added = machine.ok("add", pod)
    done = run(tools.hpn, "inspect", "--json", "--state-dir", machine.state, env={})
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = json.loads(done.stdout)["attachments"]
    assert found["addresses"] == [ip["address"] for ip in added["ips"]]
    assert found["alive"]
    machine.ok("del", pod)


def test_a_mistyped_command_is_an_error(tools: Tools) -> None:
    done = run(tools.hpn, "verison", env={})
    assert done.returncode != 0
    assert "verison" in done.stderr


def test_version_needs_neither_stdin_nor_environment(tools: Tools) -> None:
    done = subprocess.run(
        [tools.hpn],
        env=VERSION | {"HPN_PROGRAM_DIR": os.environ["HPN_PROGRAM_DIR"]},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["supportedVersions"] == ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_the_name_decides_what_it_is(tools: Tools, tmp_path: Path, link) -> None:
    """The plugin would refuse this for lack of a namespace; the IPAM does not check it."""
    conf = ipam_conf(tmp_path)
    link(tools.hpn, tmp_path / "hpn-ipam")
    done = run(tmp_path / "hpn-ipam", env=ipam_add(), stdin=conf)
    assert done.returncode == 0, done.stdout
    result = json.loads(done.stdout)
    assert [ip["address"] for ip in result["ips"]] == ["10.56.0.2/24", "fd00:56::2/64"]
    assert "interfaces" not in result
    done = run(tmp_path / "hpn-ipam", env=ipam_add() | {"CNI_COMMAND": "DEL"}, stdin=conf)
    assert (done.returncode, done.stdout) == (0, "")


def test_it_needs_nothing(tools: Tools, tmp_path: Path) -> None:
    """The program runs in a root with only the file and /proc: no library, no Python, no shell, no /etc."""
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    shutil.copy(tools.hpn, root / "hpn-ipam")
    enter = ["unshare", "--mount", "sh", "-c", 'mount --bind /proc "$0/proc" && exec chroot "$0" /hpn-ipam', str(root)]
    done = subprocess.run(
        enter, env=ipam_add() | {"PATH": os.environ["PATH"]}, input=ipam_conf(Path("/")), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads(done.stdout)["ips"]) == 2
    assert {p.name for p in root.iterdir()} == {"hpn-ipam", "proc", "leases", "var"}
    assert [p.name for p in (root / "var/lib/cni/hpn").iterdir()] == ["program"]


@pytest.mark.parametrize("given", [None, "/opt/runtime/lib"])
def test_a_delegate_gets_the_environment_the_runtime_gave(machine: Machine, given: str | None) -> None:
    """A delegate must not get the loader's own libraries in LD_LIBRARY_PATH: it would crash, far from here."""
    seen = machine.scratch / "seen"
    delegate = machine.scratch / "bin" / "recorder"
    delegate.write_text(
        f"#!/bin/sh\nenv >>{seen}\n"
        '[ "$CNI_COMMAND" != ADD ] || echo \'{"cniVersion":"1.1.0","ips":[{"address":"10.56.0.9/24"}]}\'\n'
    )
    delegate.chmod(0o755)
    machine.network(ours(ipam={"type": "recorder"}))
    pod = machine.pod()
    env = {} if given is None else {"LD_LIBRARY_PATH": given}
    machine.ok("add", pod, **env)
    machine.ok("del", pod, **env)
    lines = seen.read_text().splitlines()
    assert lines.count("CNI_COMMAND=ADD") == lines.count("CNI_COMMAND=DEL") == 1
    assert [line for line in lines if line.startswith("LD_")] == [f"LD_LIBRARY_PATH={given}"] * 2 * (given is not None)
    assert [line for line in lines if line.startswith(("_PYI", "_MEI", "HPN_ARGV0", "HPN_FILE", "HPN_VERSION"))] == []


def ipam_add() -> dict[str, str]:
    return {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": "/var/run/netns/nowhere",
        "CNI_IFNAME": "hpn0",
        "CNI_PATH": "/nonexistent",
    }


def ipam_conf(directory: Path) -> str:
    ipam = {"type": "hpn-ipam", "ranges": RANGES, "dataDir": str(directory / "leases")}
    return json.dumps({"cniVersion": "1.1.0", "name": "rail0", "type": "macvlan", "ipam": ipam})
