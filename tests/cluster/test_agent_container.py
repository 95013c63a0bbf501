"""The agent's container is killed, ended for lack of memory, and upgraded, while commands run on its node."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import drawn
from cluster.host import Host
from cluster.space import until
from cluster.two_nodes import Cluster
from support import commands_on_node
from support.bare_nodes import NAME, choose, daemons, kubectl, make_another, put_image, typed

THREADS, KILLS = 3, 5
# Answered by the agent only, because no program is there to fall back to.
ASK = "echo {} | env CNI_COMMAND=VERSION HPN_PROGRAM_DIR=/proc/nowhere /opt/cni/bin/hpn"
# Lowers the limit of the control group as far as possible until the kernel has ended a worker, and then its keeper too.
SQUEEZE = """
import sys, time
from contextlib import suppress
from pathlib import Path
keeper, group = Path("/proc", sys.argv[1]), Path("/sys/fs/cgroup/memory" + sys.argv[2])
while keeper.exists():
    with suppress(OSError):  # it cannot be lower, or the group is gone
        usage = int((group / "memory.usage_in_bytes").read_text())
        (group / "memory.limit_in_bytes").write_text(f"{usage - (1 << 14)}")
    time.sleep(0.005)
"""


def test_killed_ended_and_upgraded_while_commands_run(bare: Cluster, tree: Path) -> None:
    """No ADD and no DEL fails, because commands do the work themselves without an agent; nothing is left."""
    apply, upgrade, *_ = typed("As a DaemonSet")
    kubectl(bare, tree, apply)
    node, chance = bare.nodes["node1"], random.Random(drawn.seed())
    until(lambda: answers(node), "the agent", 120, 0.2)
    with running(node):
        for _ in range(KILLS):
            kill_a_worker(node, chance)
        node.run("kill", "-KILL", keeper(node))
        assert comes_back(bare, node, 1) == "Error"
        node.run(sys.executable, "-c", SQUEEZE, keeper(node), group(node))
        make_another(bare, tree)
        put_image(bare, tree, "2")
        assert comes_back(bare, node, 2) == "OOMKilled"
        choose(tree, NAME, '"1"', "2")
        kubectl(bare, tree, upgrade)
        until(lambda: answers(node), "the agent of the other version", 120, 0.2)
    assert (node.attachments(), node.leases(), node.namespaces()) == ([], [], [])


@contextmanager
def running(node: Host) -> Iterator[None]:
    """Run commands on the node during the block, which must all succeed."""
    assert node.space
    words = node.space.command(sys.executable, commands_on_node.__file__, f"{THREADS}")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield
        said, _ = process.communicate("", 120)
    report = json.loads(said)
    assert report["failures"] == []
    assert report["count"] > 100


def answers(node: Host) -> bool:
    return node.run("sh", "-c", ASK, check=False).returncode == 0


def keeper(node: Host) -> str:
    """The first process of the agent's container."""
    return node.run("pgrep", "--oldest", "--exact", "hpn-agent").stdout.strip()


def group(node: Host) -> str:
    """The memory control group of the agent's container."""
    lines = node.run("cat", f"/proc/{keeper(node)}/cgroup").stdout.splitlines()
    (path,) = (line.split(":", 2)[2] for line in lines if line.split(":")[1] == "memory")
    return path


def kill_a_worker(node: Host, chance: random.Random) -> None:
    """Kill one at a random moment, and wait until its successor runs."""

    def workers() -> list[str]:
        return node.run("pgrep", "--parent", keeper(node), check=False).stdout.split()

    until(lambda: len(workers()) > 1, "the agent's workers", 120)
    # time: when to kill, drawn
    time.sleep(chance.random() * 0.2)
    node.run("kill", "-KILL", workers()[0], check=False)


def comes_back(cluster: Cluster, node: Host, restarts: int) -> str:
    """Wait until the container has restarted that often, and its agent answers; return the reason of its last end."""

    def status() -> dict[str, Any]:
        found = daemons(cluster)[node.name]["status"]["containerStatuses"]
        return next(one for one in found if one["name"] == "agent")

    until(lambda: status()["restartCount"] == restarts and status()["ready"], "the agent's container", 120, 0.2)
    until(lambda: answers(node), "the agent", 120, 0.2)
    return str(status()["lastState"]["terminated"]["reason"])
