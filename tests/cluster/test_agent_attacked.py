"""The agent's container, as the chart runs it, keeps the promises against attackers."""

from pathlib import Path

from cluster.host import Host
from cluster.space import ENVIRONMENT, until
from cluster.two_nodes import Cluster
from support import attacked
from support.bare_nodes import kubectl, typed

LAUNCHER = "/opt/cni/bin/hpn"
# Answered by the agent only, because no program is there to fall back to.
ASK = f"echo {{}} | env CNI_COMMAND=VERSION HPN_PROGRAM_DIR=/proc/nowhere {LAUNCHER}"


RAILS = ("rail0", "rail1")  # each test makes those that it needs
PROGRAM = {"HPN_PROGRAM_DIR": "/var/lib/cni/hpn/program"}


def test_the_promises_against_attackers(bare: Cluster, tree: Path) -> None:
    """They hold through the agent alone.  Where its container may not open /dev/net/tun, as with runc 1.2.0 to 1.2.3,
    it leaves the search for a hidden interface to the launcher."""
    kubectl(bare, tree, typed("As a DaemonSet")[0])
    node = bare.nodes["node1"]
    until(lambda: node.run("sh", "-c", ASK, check=False).returncode == 0, "the agent", 120, 0.2)
    for rail in RAILS:
        node.run("ip", "link", "set", rail, "name", f"kept-{rail}")
    try:
        run(node, {}, *attacked.chosen())
        deny_tun(node)
        run(node, PROGRAM, "escaped/test_hidden.py::test_two_levels_deep")
    finally:
        for rail in RAILS:
            node.run("ip", "link", "set", f"kept-{rail}", "name", rail)


def run(node: Host, more: dict[str, str], *tests: str) -> None:
    named = {**ENVIRONMENT, **attacked.environment(LAUNCHER), **more}
    command = [f"{name}={value}" for name, value in named.items()]
    folder = f"{ENVIRONMENT['TMPDIR']}/attacked"
    words = attacked.words(folder, *tests)
    try:
        done = node.run("env", *command, *words, check=False, timeout=900)
    finally:
        # A later test looks for files of hpn in all of the node.
        node.run("rm", "-rf", folder)
    assert done.returncode == 0, done.stdout + done.stderr


def deny_tun(node: Host) -> None:
    """Take the TUN device from the container of the agent."""
    keeper = node.run("pgrep", "--oldest", "--exact", "hpn-agent").stdout.strip()
    lines = node.run("cat", f"/proc/{keeper}/cgroup").stdout.splitlines()
    (path,) = (line.split(":", 2)[2] for line in lines if line.split(":")[1] == "devices")
    node.run("sh", "-c", f"echo c 10:200 rwm >/sys/fs/cgroup/devices{path}/devices.deny")
