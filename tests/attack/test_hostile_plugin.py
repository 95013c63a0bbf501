"""A local user without privileges: root runs no IPAM plugin that the user could have written."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack.user import NOBODY
from support.topology import Host, Pod, until

from cni.features import program

pytestmark = pytest.mark.usefixtures("in_time")


RESULT = '{"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.2/24"}]}'


@pytest.fixture
def plugin(public: Path) -> Path:
    """An IPAM plugin in a directory of CNI_PATH."""
    path = public / "bin" / "theirs"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\ncat >/dev/null; [ $CNI_COMMAND = DEL ] || echo '{RESULT}'\n")
    path.chmod(0o755)
    return path


def asking(host: Host, plugin: Path) -> dict[str, Any]:
    return {"conf": host.conf(ipam={"type": plugin.name}), "CNI_PATH": str(plugin.parent)}


def test_a_plugin_is_run(host: Host, pod: Pod, plugin: Path) -> None:
    """A plugin that only root's group can write runs: the control to the refusals below."""
    plugin.chmod(0o775)
    plugin.parent.chmod(0o1777)
    assert host.ok("ADD", pod, **asking(host, plugin))["ips"][0]["address"] == "10.9.0.2/24"
    host.ok("DEL", pod, **asking(host, plugin))


def in_an_open_directory(plugin: Path) -> None:
    plugin.parent.chmod(0o777)


def in_a_groups_directory(plugin: Path) -> None:
    os.chown(plugin.parent, 0, NOBODY)
    plugin.parent.chmod(0o775)


def of_theirs_in_a_sticky_directory(plugin: Path) -> None:
    plugin.parent.chmod(0o1777)
    os.chown(plugin, NOBODY, NOBODY)


def that_they_can_write(plugin: Path) -> None:
    plugin.chmod(0o757)


@pytest.mark.parametrize(
    "make", [in_an_open_directory, in_a_groups_directory, of_theirs_in_a_sticky_directory, that_they_can_write]
)
def test_a_plugin_that_others_could_have_written(
    host: Host, pod: Pod, plugin: Path, make: Callable[[Path], None]
) -> None:
    make(plugin)
    error = host.refused("ADD", pod, **asking(host, plugin))
    assert (error["code"], f" {plugin} is not run: " in error["msg"], "; ch" in error["msg"]) == (106, True, True)
    assert (pod.links(), host.state_files()) == (set(), set())


@pytest.mark.parametrize("binary", [False, True])
def test_a_plugin_that_is_swapped(plugin: Path, binary: bool) -> None:
    """The checked file runs, whatever file has its name by then."""
    if binary:
        shutil.copy("/bin/echo", plugin)
    fd = program.open_trusted(str(plugin))
    plugin.unlink()
    plugin.write_text("#!/bin/sh\necho swapped\n")
    plugin.chmod(0o755)
    try:
        status, stdout = program.run(fd, str(plugin), b"{}", {"CNI_COMMAND": "ADD", "PATH": os.environ["PATH"]})
    finally:
        os.close(fd)
    assert (status, stdout) == (0, b"\n" if binary else f"{RESULT}\n".encode())


@pytest.mark.parametrize("script", ["sleep 1000", "trap '' TERM; sleep 1000; sleep 1000", "sleep 1000 & exit 0"])
def test_a_plugin_that_hangs(host: Host, pod: Pod, plugin: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """ADD ends the plugin with all its processes, undoes its own changes and releases the lock."""
    hangs = f"[ $CNI_COMMAND = DEL ] || {{ {script}; }}"
    plugin.write_text(f"#!/bin/sh\necho $$ >>{plugin}.pids; cat >/dev/null; {hangs}\n")
    monkeypatch.setattr(program, "TIMEOUT", 0.5)
    monkeypatch.setattr(program, "GRACE", 0.5)
    error = host.refused("ADD", pod, **asking(host, plugin))
    assert (error["code"], "did not answer in 0.5 s" in error["msg"]) == (106, True)
    assert (pod.links(), host.state_files()) == (set(), set())
    groups = Path(f"{plugin}.pids").read_text().split()
    until(lambda: not groups_alive(groups))


def groups_alive(groups: list[str]) -> list[str]:
    """The live processes of these process groups, without zombies."""
    alive = list[str]()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            state, _, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
            alive += [pid] if group in groups and state != "Z" else []
    return alive


def test_the_bound_of_a_plugin() -> None:
    """docs/user/security.md promises 90 s."""
    assert program.TIMEOUT + program.GRACE <= 95
