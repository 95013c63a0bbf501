"""The libraries that each start of the program imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster_nodes import Cluster
from test_layering import LIBRARIES, ROOT, within

# The modules for shared pools that a command needs if the node's own blocks have room.
_PARTS = ("allocate", "view", "node_blocks", "rules", "rules.block_math", "rules.network")
QUIET = tuple(f"ipam.cluster.{part}" for part in _PARTS)


# Libraries that each take longer to import than a reply takes, and the starts that need none of them.
@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (["help"], {}),
        (["version"], {}),
        ([], {"CNI_COMMAND": "VERSION"}),
    ],
)
def test_imports_of_a_start(words: list[str], environ: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ctl", *words],
        input=b"", capture_output=True, check=True, cwd=ROOT, env={"PATH": os.environ["PATH"]} | environ,
    )  # fmt: skip
    imported = _timed(done.stderr)
    assert "base.protocol.spec" in imported  # so -X importtime printed modules
    assert imported & LIBRARIES.keys() == set()


@pytest.mark.parametrize("program", ["hpn", "hpn-ipam"])
@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK", "STATUS", "GC"])
def test_no_cni_command_pays_for_hpn_node(tmp_path: Path, program: str, command: str) -> None:
    conf = {
        "cniVersion": "1.1.0", "name": "n", "type": "hpn", "master": "nowhere",
        "ipam": {"type": "hpn-ipam", "subnet": "10.1.0.0/24", "dataDir": f"{tmp_path}/ipam"},
        "cni.dev/valid-attachments": [], "prevResult": {"cniVersion": "1.1.0"},
    }  # fmt: skip
    environ = {
        "CNI_COMMAND": command, "CNI_CONTAINERID": "c", "CNI_IFNAME": "hpn0", "CNI_NETNS": "/run/netns/nowhere",
        "CNI_PATH": "/nowhere", "HPN_ARGV0": program, "HPN_STATE_DIR": f"{tmp_path}/state", "PATH": os.environ["PATH"],
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ctl"],
        input=json.dumps(conf).encode(), capture_output=True, check=False, cwd=ROOT, env=environ,
    )  # fmt: skip
    imported = _timed(done.stderr)
    assert "base.protocol.dispatch" in imported, done.stdout
    packages = {name.partition(".")[0] for name in imported}
    others = {"node", "asyncio", "grpclib", "h2", "hpack", "hyperframe", "google", "yaml", "prometheus_client", "rich"}
    assert packages & others == set()
    assert "base.state.log_file" not in imported, "a network without a log"


def test_no_validator_is_built_that_nobody_needs() -> None:
    """A start builds no unneeded validator; each takes 2 ms, and a model inside another needs none of its own."""
    script = """
from cni import config
from cni.models import Common, Rdma
from cni.models.macvlan import Macvlan
print(Rdma.__pydantic_complete__, Common.__pydantic_complete__, Macvlan.__pydantic_complete__)
conf = {"name": "n", "type": "hpn", "master": "eth0", "rdma": {"required": True}}
print(config.load(conf, "").attach.rdma.required, Rdma.__pydantic_complete__, Macvlan.__pydantic_complete__)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True, cwd=ROOT).stdout
    assert said.split() == ["False", "False", "False", "True", "False", "True"]


@pytest.mark.parametrize("command", ["ADD", "CHECK", "STATUS", "GC", "DEL"])
def test_with_room_nothing_is_imported_that_speaks_to_a_store(cluster: Cluster, command: str) -> None:
    """A command with free addresses imports no client of a store: TLS alone takes as long as a reply, and OpenSSL takes
    4 MB."""
    node = cluster.node("node1")
    node.add("a")  # the node now owns a block with room
    kept = {"cni.dev/valid-attachments": [{"containerID": "a", "ifname": "net1"}]} if command == "GC" else {}
    request = node.request(command, "b" if command == "ADD" else "a", prevResult=node.call("ADD", "a"), **kept)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ctl"],
        input=request.stdin, capture_output=True, check=False, cwd=ROOT,
        env={**request.environ, "HPN_ARGV0": "hpn-ipam", "PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    imported = _timed(done.stderr)
    assert "ipam.stores" in imported
    assert command != "ADD" or "ipam.cluster.node_blocks" in imported
    speak = {"ssl", "_ssl", "http.client", "yaml"}
    assert imported & speak == set()
    assert {name for name in imported if within(name, "ipam.cluster")} <= {"ipam.cluster", *QUIET}


def _timed(stderr: bytes) -> set[str]:
    """Return the imported modules from the output of -X importtime."""
    return {line.rpartition(b"|")[2].strip().decode() for line in stderr.splitlines()}
