"""Run on a node of the tests' cluster by bench/cluster.py: ADD and DEL by three programs, in one interleaved run.

They are the Go plugins, hpn with the agent in its container, and hpn with an agent on the node.

python in_node.py ROUNDS: prints the rows of the page.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from fabric import run
from sides import Side

from bench import VERBS, Bench, agent, table

PLUGINS = Path("/opt/cni/bin")
POD = "bench"


def main(rounds: int) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/var/lib/cni") as folder,
        tempfile.TemporaryDirectory(dir="/dev/shm") as state,
    ):
        scratch = Path(folder)
        (scratch / "state").symlink_to(state)
        bench = Bench(PLUGINS, PLUGINS, scratch, [POD], 120)
        go, host = bench.sides()
        container = Side(
            "hpn, with the container's agent",
            host.binary,
            host.conf,
            host.variables | {"HPN_AGENT": "/run/hpn/agent.sock"},
        )
        host.name = "hpn, with an agent on the host"
        run("ip", "netns", "add", POD)
        with agent(host.binary, scratch / "agent.sock"):
            done = bench.measure([go, host, container], rounds, lambda side, verb: side.one_by_one(verb, bench.pods))
        run("ip", "netns", "delete", POD)
    print("\n".join(table(f"One pod at a time on a node, IPv4 ({done} rounds)", [go, host, container])))
    ratios = [
        statistics.median(x / y for x, y in zip(container.times[verb], host.times[verb], strict=True)) for verb in VERBS
    ]
    added, deleted = ratios
    print(f"The container's agent needs {added:.3f} of the time of the host's for an ADD, and {deleted:.3f} for a DEL.")


if __name__ == "__main__":
    main(int(sys.argv[1]))
