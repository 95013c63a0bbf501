"""State of a dead pod goes without GC: in the agent's idle time, and by hpn gc."""

from pathlib import Path

import fabric
import pytest
from support.topology import leases, until
from system.agents import call, conf, ok, running
from system.machine import Machine


@pytest.fixture
def left_by_a_dead_pod(machine: Machine) -> str:
    """Attach two pods and end one of them without a DEL; return the configuration of both."""
    network, living = conf(machine), machine.pod()
    ok(call(machine, "", "ADD", living, network))
    with fabric.namespace(machine.node.pod("dead")) as dead:
        ok(call(machine, "", "ADD", dead, network))
    assert held(machine) == {fabric.container_id(living), fabric.container_id(dead)}
    return network


def held(machine: Machine) -> set[str]:
    """The containers with an attachment or a lease."""
    records = (machine.state / "attachments").rglob("*.json")
    return {path.name.partition(":")[0] for path in records} | {
        lease["containerID"] for lease in leases(machine.state / "ipam")
    }


def finish(machine: Machine, network: str) -> None:
    (living,) = machine.pods
    assert machine.links(living) == {"hpn0"}
    assert held(machine) == {fabric.container_id(living)}
    ok(call(machine, "", "DEL", living, network))


def test_in_the_agents_idle_time(machine: Machine, left_by_a_dead_pod: str, tmp_path: Path) -> None:
    with running(machine, path := tmp_path / "agent.sock"):
        ok(call(machine, path, "STATUS", "", left_by_a_dead_pod))
        until(lambda: held(machine) == {fabric.container_id(machine.pods[0])})
    finish(machine, left_by_a_dead_pod)


def test_by_hand(machine: Machine, left_by_a_dead_pod: str) -> None:
    command = [str(machine.tools.hpn), "gc", "--state-dir", str(machine.state), "--data-dir", str(machine.scratch)]
    for words, said in ((("--dry-run",), "would undo"), ((), "undid"), ((), "nothing is provably dead")):
        done = machine.node.run([*command, *words], {})
        assert (done.returncode, done.stderr) == (0, "")
        assert said in done.stdout
    finish(machine, left_by_a_dead_pod)
