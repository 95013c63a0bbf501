"""An upgrade and a rollback with attachments alive, between this tree and one whose modules lay elsewhere."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fabric
import pytest
from system.machine import ROOT, Machine, ours

# The last commit without base/ and hardware/.  Its journal, records and leases are those of today.
BEFORE = "7459d0b1117ce5acabd4b4f346d352724a8bf298"

# It has the key stateDir for what HPN_STATE_DIR is now.
KEYED = """
import json, os, sys
json.dump(json.load(sys.stdin) | {"stateDir": os.environ["HPN_STATE_DIR"]}, sys.stdout)
"""


@pytest.fixture
def before(machine: Machine) -> Iterator[Path]:
    """The plugin of that commit, run from its sources.  It is in force under the name hpn in its directory."""
    tree = machine.scratch / "before"
    tree.mkdir()
    done = subprocess.run(["git", "-C", ROOT, "archive", BEFORE], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the history of this tree does not reach back to {BEFORE[:8]}")
    subprocess.run(["tar", "-x", "-C", tree], input=done.stdout, check=True)
    plugin = machine.scratch / "bin" / "before"
    (tree / "keyed.py").write_text(KEYED)
    keyed, program = f"{sys.executable} keyed.py", f"{sys.executable} -m ctl"
    plugin.write_text(f"#!/bin/sh\ncd {tree} && echo $CNI_COMMAND >>calls && {keyed} | {program}\n")
    plugin.chmod(0o755)
    yield plugin
    for note in Path("/run/hpn/elsewhere").glob("*"):  # of attachments that this version ended
        if note.readlink() == machine.state:
            note.unlink()


def attached(machine: Machine) -> dict[str, str]:
    """The state of each attachment, as `hpn list` reports it."""
    argv = [str(machine.tools.hpn), "list", "--json", "--state-dir", str(machine.state)]
    done = machine.node.run(argv, machine.env)
    assert done.returncode == 0, done.stderr
    return {one["containerID"]: one["state"] for one in json.loads(done.stdout)["attachments"]}


def test_upgrade_and_rollback(machine: Machine, before: Path) -> None:
    """Each version checks, lists and removes the attachments of the other, and gives away none of their addresses."""
    machine.network(ours(sysctl={"net.ipv4.conf.IFNAME.rp_filter": "2"}, policyRouting=True))
    plugin = before.with_name("hpn")
    before.rename(plugin)
    old = [machine.pod() for _ in range(4)]
    for pod in old:
        machine.ok("add", pod)

    plugin.rename(before)  # the upgrade
    new = [machine.pod() for _ in range(2)]
    for pod in new:
        machine.ok("add", pod)
    assert len(set().union(*map(machine.addresses, [*old, *new]))) == 2 * len([*old, *new])
    for pod in old:
        machine.ok("check", pod)
    assert attached(machine) == {fabric.container_id(pod): "attached" for pod in [*old, *new]}
    for pod in old[:2]:
        machine.ok("del", pod)

    before.rename(plugin)  # the rollback
    for pod in (old[2], new[0]):
        machine.ok("check", pod)
        machine.ok("del", pod)
    plugin.rename(before)
    for pod in (old[3], new[1]):
        machine.ok("del", pod)
    calls = (machine.scratch / "before" / "calls").read_text().split()
    assert {verb: calls.count(verb) for verb in ("ADD", "CHECK", "DEL")} == {"ADD": 4, "CHECK": 2, "DEL": 2}
    machine.nothing_held()
