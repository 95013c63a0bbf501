"""The program behind `make bench-cluster`: pods with eight rails in the tests' cluster: the time until they are Ready,
and the processors' time.

The chart installs hpn, so its agent is a container, and Multus is the real one.  A pod has the cluster's own network,
which is bridge with host-local, and beside it eight macvlans: hpn's by a definition each or by one for all, or those of
the Go plugins.  Pods without macvlans show the rest of a pod's start, and a plugin that does nothing shows Multus's own
part of it.  The masters are bridges, as physical NICs are no veths; then veths, where hpn looks for the other end.  The
sides run in turns, in random order.  The time is from the pod's first event in a watch of the API server to its
condition Ready in the same watch.  A round with a failed sandbox counts for no ratio, because kubelet tries again after
ten seconds.  The processors' time is that of the hosts' processes and their ended children, from the pods' creation
until they are gone.

A pod by the device plugin and Multus is then compared with one by a claim, in chain mode (docs/user/claims.md).

Then thick Multus runs on a node with the memory of its shipped manifest, and many pods start and end there at once.
"""

import argparse
import json
import os
import platform
import random
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "netns-fixtures"))

from cluster import claims, manifests, two_nodes
from cluster.host import Host
from cluster.services import PKI
from cluster.space import until
from cluster.two_nodes import ADMIN, CONTROL, RAILS, Cluster
from fabric import run
from support import bare_nodes
from support.pages import ROOT

from bench import write

PLUGIN, DRA = "node1", "node2"  # by what they offer the rails
TURNS = 3
CROWD = 16  # pods at once on a node
BRIDGES = tuple(f"bridge{n}" for n in range(len(RAILS)))
LIMIT = 50  # MiB, of deployments/multus-daemonset-thick.yml
THICK = "/sys/fs/cgroup/memory/thick"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
# As the same manifest, but without a container, and so without chroot.
DAEMON = {
    "cniVersion": "0.3.1", "logLevel": "verbose", "logToStderr": True, "cniConfigDir": "/etc/cni/net.d",
    "multusAutoconfigDir": "/etc/cni/net.d", "multusConfigFile": "auto", "socketDir": "/run/multus/",
}  # fmt: skip
PATIENCE = 300
VALUES = {
    "image": {"repository": "localhost/hpn", "tag": "1"}, "claims": {"enabled": True},
    # There is no kube-proxy, so the service's address leads nowhere.
    "env": {"KUBERNETES_SERVICE_HOST": CONTROL, "KUBERNETES_SERVICE_PORT": "6443"},
    "pools": [
        {
            "name": node, "nodeSelector": {"kubernetes.io/hostname": node},
            "devices": json.dumps({"resources": [
                {"name": f"example.com/{r}", "kind": "master", "count": 64, "by": by, "selectors": {"ifNames": [r]}}
                for r in RAILS
            ]}),
        }
        for by, node in (("devicePlugin", PLUGIN), ("dra", DRA))
    ],
}  # fmt: skip
# A plugin's answer at once, by the smallest shell.
NOTHING = """\
#!/bin/sh
case $CNI_COMMAND in
ADD)
    printf '{"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24", "interface": 0}], '
    printf '"interfaces": [{"name": "%s", "sandbox": "%s"}]}' "$CNI_IFNAME" "$CNI_NETNS"
    ;;
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
esac
"""
EVENT = '{.type} {.object.metadata.name} {.object.status.conditions[?(@.type=="Ready")].status}{"\\n"}'


# The hosts' programs by what the table calls them.  A plugin's time is that of its ended process in its parent's.
PROGRAMS = {
    "kube-apiserver": "API server",
    **dict.fromkeys(("etcd", "kube-controller-manager", "kube-scheduler"), "etcd, controllers, scheduler"),
    "kubelet": "kubelet",
    "containerd": "containerd, Multus, plugins",
    "agent": "hpn agent",
    "node": "hpn node",
}


@dataclass
class Side:
    """A pod's networks beside the cluster's, one of this prefix on each of these masters.

    Of each round: the time in milliseconds, the processors' milliseconds per pod by program, and the failed sandboxes.
    """

    name: str
    prefix: str
    masters: Sequence[str] = RAILS
    times: list[float] = field(default_factory=list)
    cpu: list[Counter[str]] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)

    def pod(self, name: str, node: str) -> dict[str, Any]:
        """A pod of this side."""
        networks = [f"{self.prefix}-{master}@hpn{n}" for n, master in enumerate(self.masters)] if self.prefix else []
        return manifests.pod(name, node=node, networks=",".join(networks))


class OneDefinition(Side):
    """The same by one network of all masters."""

    def pod(self, name: str, node: str) -> dict[str, Any]:
        """A pod of this side."""
        return manifests.pod(name, node=node, networks=f"all-{self.masters[0]}@hpn0")


class ByPlugin(Side):
    """The same on the node that offers the rails by the device plugin."""

    def pod(self, name: str, _node: str) -> dict[str, Any]:
        """Side's, with a device for each rail."""
        made = super().pod(name, PLUGIN)
        made["spec"]["containers"][0]["resources"]["limits"] = {f"example.com/{rail}": "1" for rail in RAILS}
        return made


class ByClaim(Side):
    """One claim of all rails, on the node that offers them by DRA."""

    def pod(self, name: str, _node: str) -> dict[str, Any]:
        """Side's, without networks."""
        return claims.pod(name, node=DRA, template=self.prefix)


def sides(masters: Sequence[str] = RAILS) -> list[Side]:
    """Go first, the base of comparison."""
    return [
        Side("Go macvlan + host-local", "go", masters),
        Side("hpn, a definition for each rail", "hpn", masters),
        OneDefinition("hpn, one definition", "all", masters),
        Side("a plugin that does nothing", "nothing", masters),
        Side("no rails", ""),
    ]


def definitions() -> Iterator[dict[str, Any]]:
    """The networks of each rail, of either program or with a device; a node has its own addresses in them.  And the
    rails' classes, with a template of a claim for all."""
    for plugin, ipam, prefix, net in (
        ("macvlan", "host-local", "go", 60), ("hpn", "hpn-ipam", "hpn", 70), ("hpn", "hpn-ipam", "plugin", 80),
    ):  # fmt: skip
        for masters in (RAILS, BRIDGES):
            for n, master in enumerate(masters):
                ranges = {"type": ipam, "ranges": [[{"subnet": f"10.{net + n}.0.0/24"}]]}
                conf = {"type": plugin, "master": master, "mode": "bridge", "ipam": ranges}
                resource = f"example.com/{master}" if prefix == "plugin" else ""
                yield manifests.network(f"{prefix}-{master}", conf, resource=resource)
    for masters in (RAILS, BRIDGES):
        for master in masters:
            yield manifests.network(f"nothing-{master}", {"type": "nothing"})
        rails = [{"master": master, "subnet": f"10.{110 + n}.0.0/24"} for n, master in enumerate(masters)]
        ipam_of_all = {"type": "hpn-ipam", "rails": rails}
        yield manifests.network(f"all-{masters[0]}", {"type": "hpn", "rails": [*masters], "ipam": ipam_of_all})
    requests = []
    for n, rail in enumerate(RAILS):
        ipam_of_claim = {"type": "hpn-ipam", "ranges": [[{"subnet": f"10.{90 + n}.0.0/24"}]]}
        yield claims.device_class(rail, f"example.com/{rail}", attach="chain", ipam=ipam_of_claim)
        requests.append({"name": f"r{n}", "exactly": {"deviceClassName": rail}})
    yield claims.template("claim", {"devices": {"requests": requests}})


class Watch:
    """The pods' events in their order."""

    def __init__(self, events: IO[str]) -> None:
        self._events = events

    def until_ready(self, names: set[str]) -> float:
        """The seconds from the first event of these pods until all of them are Ready."""
        waiting, began = set(names), 0.0
        while waiting:
            _, name, ready = self._next(names)
            began = began or monotonic()
            if ready == "True":
                waiting.discard(name)
        return monotonic() - began

    def until_gone(self, names: set[str]) -> None:
        waiting = set(names)
        while waiting:
            kind, name, _ = self._next(names)
            if kind == "DELETED":
                waiting.discard(name)

    def _next(self, names: set[str]) -> tuple[str, str, str]:
        while line := self._events.readline():
            kind, name, ready = line.rstrip("\n").split(" ")
            if name in names:
                return kind, name, ready
        sys.exit(f"no event of {len(names)} pods for {PATIENCE} s")


@contextmanager
def watching(cluster: Cluster) -> Iterator[Watch]:
    """A watch, which ends after PATIENCE."""
    assert cluster.control.space
    kubectl = [str(two_nodes.built() / "kubectl"), f"--kubeconfig={ADMIN}", "--cache-dir=/run/home/cache"]
    words = [*kubectl, "get", "pods", "--watch", "--output-watch-events", f"--output=jsonpath={EVENT}"]
    command = cluster.control.space.command(*words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stdout
        kill = partial(os.killpg, process.pid, signal.SIGKILL)  # nsenter has a child, which would keep the pipe open
        end = Timer(PATIENCE, kill)
        end.start()
        try:
            yield Watch(process.stdout)
        finally:
            end.cancel()
            kill()


def processors(cluster: Cluster) -> Counter[str]:
    """The milliseconds of the hosts' programs since they began, with their ended children."""
    found, tick = Counter[str](), 1000 / os.sysconf("SC_CLK_TCK")
    spaces = {os.readlink(f"/proc/{host.space.pid}/ns/pid") for host in cluster.hosts().values() if host.space}
    for process in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            if os.readlink(f"/proc/{process}/ns/pid") in spaces:
                words = Path(f"/proc/{process}/cmdline").read_text().split("\0")
                named = [Path(words[0]).name, *words[1:]] if words[0] else []
                program = next((PROGRAMS[word] for word in named if word in PROGRAMS), "others")
                times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15]
                found[program] += sum(map(int, times)) * tick
    return found


def sandboxes(cluster: Cluster) -> int:
    """How many sandboxes have failed so far."""
    words = ("get", "events", "--all-namespaces", "--field-selector=reason=FailedCreatePodSandBox")
    return sum(map(int, cluster.kubectl(*words, "--output=jsonpath={.items[*].count}").split()))


def measure(cluster: Cluster, compared: Sequence[Side], rounds: int, count: int, *only: str) -> None:
    """Fill in the sides' times: this many rounds with this many pods at once, on these nodes or all."""
    nodes = only or tuple(cluster.nodes)
    for number in range(rounds):
        for side in random.Random(number).sample(compared, len(compared)):
            names = {f"p{n}": nodes[n % len(nodes)] for n in range(count)}
            pods = [side.pod(name, node) for name, node in names.items()]
            before, failed = processors(cluster), sandboxes(cluster)
            with watching(cluster) as watch:
                cluster.apply(*pods)
                took = watch.until_ready(set(names))
                cluster.kubectl("delete", "pods", "--all", "--wait=false")
                watch.until_gone(set(names))
            side.times.append(took * 1000)
            used = processors(cluster)
            side.cpu.append(Counter({name: max(0.0, (used[name] - before[name]) / count) for name in used}))
            side.failed.append(sandboxes(cluster) - failed)


def table(title: str, compared: Sequence[Side]) -> list[str]:
    """A row per side: the median of the rounds' ratios, and the ratio of the medians without those of no rails; of the
    time until Ready, and of the processors' time for each pod."""
    rows = [
        f"### {title}",
        "",
        "| pods with | median ms | min | ratio | rails alone | CPU ms | rails alone | failed sandboxes |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    good = [n for n in range(len(compared[0].times)) if not any(side.failed[n] for side in compared)]
    every = {side.name: [side.times[n] for n in good or range(len(side.times))] for side in compared}
    spent = {side.name: [side.cpu[n].total() for n in good or range(len(side.cpu))] for side in compared}
    first, none = compared[0].name, compared[-1].name
    for side in compared:
        own, cpu = every[side.name], spent[side.name]
        ratio = statistics.median(x / y for x, y in zip(own, every[first], strict=True))
        alone = [_alone(found, side.name, first, none) if side.prefix else "" for found in (every, spent)]
        rows.append(
            f"| {side.name} | {statistics.median(own):.0f} | {min(own):.0f} | {ratio:.3f} | {alone[0]} | "
            f"{statistics.median(cpu):.0f} | {alone[1]} | {sum(side.failed)} |"
        )
    return [*rows, "", *_by_program(compared, good), ""]


def _alone(found: Mapping[str, Sequence[float]], one: str, first: str, none: str) -> str:
    """The ratio of the medians, each without that of pods without rails."""
    median = {name: statistics.median(found[name]) for name in (one, first, none)}
    return (
        f"{(median[one] - median[none]) / (median[first] - median[none]):.3f}" if median[first] > median[none] else ""
    )


def _by_program(compared: Sequence[Side], good: Sequence[int]) -> list[str]:
    """A row per program: the median of its processors' time for a pod of each side."""
    programs = [*dict.fromkeys(PROGRAMS.values()), "others"]
    rows = [f"| CPU ms | {' | '.join(side.name for side in compared)} |", f"|---|{'--:|' * len(compared)}"]
    for program in programs:
        spent = [statistics.median(side.cpu[n][program] for n in good or range(len(side.cpu))) for side in compared]
        rows.append(f"| {program} | {' | '.join(f'{one:.0f}' for one in spent)} |")
    return rows


@contextmanager
def by_the_chart(cluster: Cluster) -> Iterator[None]:
    """hpn on all nodes, installed by Helm."""
    helm = run(str(ROOT / "netns-fixtures" / "helm")).strip()
    with bare_nodes.made_tree(cluster) as tree, bare_nodes.bared(cluster, tree):
        options = f"--kubeconfig={ADMIN} --namespace=kube-system --wait"
        values = shlex.quote(json.dumps(VALUES))
        cluster.shell(f"printf %s {values} | {helm} install hpn {ROOT}/packaging/helm/hpn {options} --values=-")
        try:
            for node in cluster.nodes.values():
                until(
                    lambda it=node: "agent.sock" in it.run("ls", "/run/hpn", check=False).stdout, "the agent", 120, 0.2
                )
            yield
        finally:
            cluster.shell(f"{helm} uninstall hpn {options}")


@contextmanager
def chained(cluster: Cluster) -> Iterator[None]:
    """hpn in chain mode at the end of the cluster's own network."""
    before = dict[Path, str]()
    for node in cluster.nodes.values():
        file = node.path("/etc/cni/net.d/00-multus.conf")
        before[file] = file.read_text()
        multus = json.loads(before[file])
        multus["delegates"][0]["plugins"].append({"type": "hpn", "claims": True})
        file.write_text(json.dumps(multus))  # containerd watches it
    try:
        yield
    finally:
        for file, text in before.items():
            file.write_text(text)


@contextmanager
def thick(cluster: Cluster, node: Host, programs: Path) -> Iterator[None]:
    """Thick Multus on the node in place of thin, with the memory of its manifest."""
    for name in ("multus-daemon", "multus-shim"):
        node.path(f"/opt/cni/bin/{name}").write_bytes((programs / name).read_bytes())
        node.path(f"/opt/cni/bin/{name}").chmod(0o755)
    folder = node.path("/etc/cni/net.d")
    thin = (folder / "00-multus.conf").read_text()
    (folder / "00-multus.conf").unlink()
    (own,) = json.loads(thin)["delegates"]
    (folder / "10-pods.conflist").write_text(json.dumps(own))
    node.run("mkdir", "-p", THICK, ACCOUNT, "/run/multus")
    node.run("sh", "-c", f"echo {LIMIT << 20} >{THICK}/memory.limit_in_bytes; printf token-admin >{ACCOUNT}/token")
    node.run("sh", "-c", f"cat >{ACCOUNT}/ca.crt", stdin=cluster.control.path(f"{PKI}/apiserver.crt").read_text())
    node.run("sh", "-c", "cat >/run/multus/daemon.json", stdin=json.dumps(DAEMON))
    script = f"echo 0 >{THICK}/cgroup.procs; exec /opt/cni/bin/multus-daemon --config /run/multus/daemon.json"
    named = {"KUBERNETES_SERVICE_HOST": CONTROL, "KUBERNETES_SERVICE_PORT": "6443", "MULTUS_NODE_NAME": node.name}
    node.add_service("multus", ["sh", "-c", script], **named).start()
    until((folder / "00-multus.conf").exists, "thick Multus", 60, 0.2)
    try:
        yield
    finally:
        node.service("multus").kill()
        (folder / "10-pods.conflist").unlink()
        (folder / "00-multus.conf").write_text(thin)
        node.run("rmdir", THICK)


def memory(cluster: Cluster, programs: Path) -> list[str]:
    """A row per side: thick Multus's memory while the pods of one node start and end at once."""
    (node, *_) = cluster.nodes.values()
    rows = [
        f"### Thick Multus with {LIMIT} MiB, {CROWD} pods with eight rails at once on one node", "",
        "| pods with | until Ready ms | peak MiB | ended for lack of memory |", "|---|--:|--:|--:|",
    ]  # fmt: skip
    for side in sides():
        if side.prefix == "nothing":
            continue  # no plugin's memory
        with thick(cluster, node, programs):
            measure(cluster, [side], TURNS, CROWD, node.name)
            peak = int(node.run("cat", f"{THICK}/memory.max_usage_in_bytes").stdout) / (1 << 20)
            killed = dict(line.split() for line in node.run("cat", f"{THICK}/memory.oom_control").stdout.splitlines())
            rows.append(f"| {side.name} | {statistics.median(side.times):.0f} | {peak:.0f} | {killed['oom_kill']} |")
    return [*rows, ""]


def agents(cluster: Cluster, rounds: int) -> list[str]:
    """The rows of the agent's container, of an agent on its node, and of the Go plugins."""
    (node, *_) = cluster.nodes.values()
    script = (
        'for own in /sys/fs/cgroup/*/system.slice; do echo 0 >"$own/cgroup.procs"; done; exec "$@"'  # as containerd
    )
    words = ["sh", "-c", script, "sh", "env", f"PYTHONPATH={':'.join(sys.path)}", sys.executable]
    load = os.getloadavg()[0]
    done = node.run(*words, str(Path(__file__).with_name("in_node.py")), f"{rounds}", timeout=600)
    return [f"On {time.strftime('%F')}, after a load of {load:.0f}:", "", *done.stdout.splitlines()]


def main() -> None:
    options = argparse.ArgumentParser(description="Pods with eight rails, ours and the Go plugins'.")
    options.add_argument("--write", action="store_true", help="update docs/user/performance.md")
    options.add_argument("--rounds", type=int, default=20, help="of one pod; a tenth as many of many pods")
    options.add_argument(
        "--agents", action="store_true", help="only compare the agent's container with an agent on its node"
    )
    chosen = options.parse_args()
    if lacking := two_nodes.missing():
        sys.exit(f"the cluster needs {lacking}")
    binary, multus = Path(os.environ["HPN_BINARY"]), Path(run(str(ROOT / "netns-fixtures" / "multus")).strip())
    lines, load = list[str](), os.getloadavg()[0]
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(two_nodes.built(), binary))
        for node in cluster.nodes.values():
            node.path("/opt/cni/bin/multus").write_bytes((multus / "multus").read_bytes())
            nothing = node.path("/opt/cni/bin/nothing")
            nothing.write_text(NOTHING)
            nothing.chmod(0o755)
            for name in BRIDGES:
                node.run("ip", "link", "add", name, "up", "type", "bridge")
        stack.enter_context(by_the_chart(cluster))
        of_agents = agents(cluster, 10 * chosen.rounds)
        print("\n".join(of_agents))
        if chosen.write:
            write(["", *of_agents], "agents")
        if chosen.agents:
            return
        cluster.apply(*definitions())
        measure(cluster, sides(), 1, 1)  # to warm up
        few = max(1, chosen.rounds // 4)
        for masters, count, rounds in ((BRIDGES, 1, chosen.rounds), (RAILS, 1, few), (BRIDGES, CROWD, few)):
            compared = sides(masters)
            measure(cluster, compared, rounds, count, *(tuple(cluster.nodes)[:1] if count > 1 else ()))
            what = f"{count} pods at once on one node" if count > 1 else "A pod"
            over = "veths" if masters is RAILS else "bridges"
            lines += table(f"{what} with eight rails over {over}, until Ready ({rounds} rounds)", compared)
        with chained(cluster):
            by = [
                ByPlugin("device plugin and Multus", "plugin"),
                ByClaim("one claim, chain mode", "claim"),
                Side("no rails", ""),
            ]
            measure(cluster, by, 1, 1)  # to warm up
            for side in by:
                for found in (side.times, side.cpu, side.failed):
                    found.clear()
            measure(cluster, by, chosen.rounds, 1)
            lines += table(f"A pod with eight rails by hpn, until Ready ({chosen.rounds} rounds)", by)
        lines += memory(cluster, multus)
    linux = ".".join(platform.release().split(".")[:2])
    what = f"Kubernetes 1.36, containerd 2, Multus 4.3.0, Linux {linux}, {run(str(binary), 'version').strip()}"
    where = f"on {time.strftime('%F')}, after a load of {load:.0f}. The cluster has {os.cpu_count()} CPUs."
    page = [f"{what}, {where} A ratio is to the first row, of the same round.", "", *lines]
    print("\n".join(page))
    if chosen.write:
        write(page, "cluster")


if __name__ == "__main__":
    main()
