"""Memory of a command without an agent: Multus's pod has 50 MiB for itself and its plugins."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import require
from system.agents import conf, ok
from system.machine import Machine

MIB = 1 << 20
# At 28 MiB an ADD was little slower than at 50; at 24 MiB the kernel read the program from disk again and again.
LIMIT = 40 * MIB
CGROUPS = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def limited() -> Iterator[Path]:
    """A cgroup in which the processes and the files that they are first to read or write share LIMIT."""
    if not (CGROUPS / "memory.limit_in_bytes").exists():
        require("system", f"the memory controller of cgroup v1 in {CGROUPS}")
    group = CGROUPS / f"hpn-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
        yield group
    finally:
        group.rmdir()


def test_every_command_within_a_limit(machine: Machine, limited: Path, tmp_path: Path) -> None:
    """Every command works within the limit, including the first, which must unpack the program."""
    pod, network = machine.pod(), json.loads(conf(machine))
    path = {"HPN_AGENT": "", "HPN_PROGRAM_DIR": str(tmp_path / "program")}

    def call(verb: str, **more: object) -> subprocess.CompletedProcess[str]:
        enter = ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(limited / "cgroup.procs"), str(machine.tools.hpn)]
        return subprocess.run(
            machine.node.command(*enter), env={**os.environ, **machine.command(verb, pod), **path},
            input=json.dumps(network | more), capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    added = ok(call("ADD"))
    assert machine.addresses(pod) == {ip["address"] for ip in added["ips"]}
    ok(call("CHECK", prevResult=added))
    ok(call("STATUS"))
    ok(call("GC", **{"cni.dev/valid-attachments": []}))
    machine.nothing_held()
    ok(call("ADD"))
    ok(call("DEL"))
    assert int((limited / "memory.max_usage_in_bytes").read_text()) > LIMIT // 2, "the commands were not in the group"
