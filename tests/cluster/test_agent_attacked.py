"""The agent's container, as the chart runs it, keeps the promises against attackers."""

from pathlib import Path

from cluster.space import ENVIRONMENT, until
from cluster.two_nodes import Cluster
from support import attacked
from support.bare_nodes import kubectl, typed

LAUNCHER = "/opt/cni/bin/hpn"
# Answered by the agent only, because no program is there to fall back to.
ASK = f"echo {{}} | env CNI_COMMAND=VERSION HPN_PROGRAM_DIR=/proc/nowhere {LAUNCHER}"


def test_the_promises_against_attackers(bare: Cluster, tree: Path) -> None:
    """No container may open /dev/net/tun, so there the agent leaves the search for a hidden interface to the launcher.
    It does everything else."""
    kubectl(bare, tree, typed("As a DaemonSet")[0])
    node = bare.nodes["node1"]
    until(lambda: node.run("sh", "-c", ASK, check=False).returncode == 0, "the agent", 120, 0.2)
    node.run("ip", "link", "set", "rail0", "name", "kept")  # each test makes its own rail0
    program = {"HPN_PROGRAM_DIR": "/var/lib/cni/hpn/program"}
    try:
        for tests, carried in ((attacked.SEARCHES, program), (attacked.OTHERS, {})):
            named = {**ENVIRONMENT, **attacked.environment(LAUNCHER), **carried}
            command = [f"{name}={value}" for name, value in named.items()]
            done = node.run("env", *command, *attacked.words(*tests), check=False, timeout=900)
            assert done.returncode == 0, done.stdout + done.stderr
    finally:
        node.run("ip", "link", "set", "kept", "name", "rail0")
