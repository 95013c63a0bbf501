"""Pods attached before a change of the IPAM keep their addresses, and the new IPAM releases them."""

import json
import shutil
import subprocess
from typing import Any

import pytest
from system.machine import RANGES, Machine


def network(machine: Machine, ipam: str, ranges: Any = RANGES) -> None:
    machine.network({"type": "macvlan", "master": "rail0", "ipam": {"type": ipam, "ranges": ranges}})


def ipam(machine: Machine, *words: Any) -> subprocess.CompletedProcess[str]:
    """Run hpn ipam as an operator does."""
    command, *rest = map(str, words)
    argv = [str(machine.tools.hpn), "ipam", command, "--data-dir", str(machine.state / "ipam"), *rest]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("there", ["host-local", "hpn-ipam"])
def test_pods_survive_the_switch(machine: Machine, there: str) -> None:
    """Pods survive the switch from Go's host-local to ours under Go's macvlan, and back."""
    theirs = machine.scratch / "host-local" / "rail0"
    here = {"host-local": "hpn-ipam", "hpn-ipam": "host-local"}[there]
    network(machine, there)
    old = [machine.pod() for _ in range(3)]
    for pod in old:
        machine.ok("add", pod)
    before = {pod: machine.addresses(pod) for pod in old}
    # The last pod but one goes, so that the highest address is not the deciding one.
    machine.ok("del", old[1])
    del before[old[1]]
    words = ("import", "--from", "host-local") if there == "host-local" else ("export", "--to", "host-local", "rail0")
    done = ipam(machine, *words, theirs)
    assert done.returncode == 0, done.stderr + done.stdout
    network(machine, here)

    new = machine.pod()
    machine.ok("add", new)
    assert machine.addresses(new).isdisjoint(set().union(*before.values()))
    for pod, addresses in before.items():
        assert machine.addresses(pod) == addresses
        machine.ok("check", pod)
        machine.ok("del", pod)
    machine.ok("del", new)
    if here == "hpn-ipam":
        assert json.loads(ipam(machine, "show", "--json").stdout)["networks"][0]["leases"] == []
    else:
        assert {path.name for path in theirs.iterdir()} == {"lock", "last_reserved_ip.0", "last_reserved_ip.1"}
    # The operator must remove the old IPAM's state.
    shutil.rmtree(theirs if there == "host-local" else machine.state / "ipam")


def test_a_collision_changes_nothing(machine: Machine) -> None:
    """Only for IPv4: for IPv6 Go's macvlan finds the duplicate itself."""
    theirs = machine.scratch / "host-local" / "rail0"
    network(machine, "host-local", RANGES[:1])
    old = machine.pod()
    machine.ok("add", old)
    network(machine, "hpn-ipam", RANGES[:1])
    hasty = machine.pod()
    machine.ok("add", hasty)
    assert machine.addresses(hasty) == machine.addresses(old)
    done = ipam(machine, "import", "--from", "host-local", theirs)
    assert done.returncode == 1
    assert done.stdout.count(" is held by ") == 1
    machine.ok("del", hasty)
    assert ipam(machine, "import", "--from", "host-local", theirs).returncode == 0
    machine.ok("del", old)
    shutil.rmtree(theirs)


def test_the_directory_of_host_local_is_kept(machine: Machine) -> None:
    """The configuration has host-local's own dataDir, and only the type changes."""
    folder = machine.scratch / "state" / "ipam"
    theirs = folder / "rail0"

    def network_of(kind: str) -> None:
        section = {"type": kind, "ranges": RANGES, "dataDir": str(folder)}
        plugin = {"type": "macvlan", "master": "rail0", "ipam": section}
        conflist = {"cniVersion": "1.0.0", "name": "rail0", "plugins": [plugin]}
        (machine.scratch / "net.d" / "rail0.conflist").write_text(json.dumps(conflist))

    network_of("host-local")
    old = [machine.pod() for _ in range(2)]
    for pod in old:
        machine.ok("add", pod)
    before = {pod: machine.addresses(pod) for pod in old}
    network_of("hpn-ipam")
    new = machine.pod()
    for mode in (0o755, 0o700):
        theirs.chmod(mode)
        refused = machine.cnitool("add", new)
        assert refused.returncode != 0
        assert f"hpn ipam import --from host-local {theirs} --data-dir {folder}" in refused.stdout + refused.stderr
        machine.ok("del", new)
    theirs.chmod(0o755)  # as host-local makes it
    assert "would import 2 leases" in ipam(machine, "import", "--from", "host-local", theirs, "--dry-run").stdout
    done = ipam(machine, "import", "--from", "host-local", theirs)
    assert done.returncode == 0, done.stderr + done.stdout

    machine.ok("add", new)
    assert machine.addresses(new).isdisjoint(set().union(*before.values()))
    for pod, addresses in before.items():
        assert machine.addresses(pod) == addresses
        machine.ok("check", pod)
        machine.ok("del", pod)
    machine.ok("del", new)
    assert json.loads(ipam(machine, "show", "--json").stdout)["networks"][0]["leases"] == []
    shutil.rmtree(folder)
