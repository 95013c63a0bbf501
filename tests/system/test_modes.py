"""The mode "systemd" of the DaemonSet under a real systemd, by what its containers run (docs/user/kubernetes.md).

Only kubelet and the container runtime are stand-ins: a directory for each pod, and a process in its own mounts, with
the container's capabilities.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from support.installed import SHORT
from support.topology import until
from system.bare import ENVIRONMENT, Bare, bare, booted
from system.machine import ROOT, Tools

SUITE, PACKAGES = "bookworm", ("lintian", "systemd")
SOCKET, AGENT, NODE, LEAVE = (
    "hpn-agent.socket", "hpn-agent.service", "hpn-node.service", "hpn-daemonset.service",
)  # fmt: skip
FIRST, SECOND = (
    f"resources: [{{name: example.com/{name}, kind: master, selectors: {{ifNames: [rail0]}}}}]\n"
    for name in ("first", "second")
)
PODS = "var/lib/kubelet/pods"
REGISTRY = "var/lib/kubelet/plugins_registry"
# A container of the pod $1 with the capabilities $2.
CONTAINER = f"""
cd /root/pod
mount --bind /proc proc
for at in opt/cni/bin run/hpn var/lib/cni etc/cni/net.d; do
    mkdir -p host/$at /$at
    mount --bind /$at host/$at
done
mount --bind /{PODS}/$1/volumes/kubernetes.io~empty-dir/hpn-mode hpn-mode
caps=$2
shift 2
exec setpriv --bounding-set="$caps" chroot . /hpn daemonset "$@"
"""
# kubelet lists what it finds when it starts.
KUBELET = f"""
[Service]
ExecStart=/bin/sh -c 'ls /{REGISTRY} /run/hpn >/run/found; exec sleep infinity'
[Install]
WantedBy=multi-user.target
"""
# It ends again and again, too seldom for systemd's limit of five starts in ten seconds.
ENDS = """
[Service]
Type=exec
ExecStart=
ExecStart=/bin/sh -c 'sleep 3; echo broken; exit 1'
"""
# systemctl, which kills its caller before the call that /run/step counts down to.
KILLS = """#!/bin/sh
step=$(cat /run/step 2>/dev/null || echo 0)
echo $((step - 1)) >/run/step
[ "$step" != 1 ] || { kill -KILL $PPID; exit 1; }
exec /usr/bin/systemctl "$@"
"""


def capabilities(mode: str = "auto") -> dict[str, str]:
    """The bounding set of each container of the DaemonSet, as setpriv takes it, and SYS_CHROOT for chroot."""
    base = ROOT / "packaging" / "kubernetes"
    pod = yaml.safe_load((base / "daemonset.yaml").read_text())["spec"]["template"]["spec"]
    containers = [*pod["initContainers"], *pod["containers"]]
    added = {one["name"]: one["securityContext"]["capabilities"].get("add", ()) for one in containers}
    if mode == "container":
        component = yaml.safe_load((base / "mode" / "container" / "kustomization.yaml").read_text())
        for patch in yaml.safe_load(component["patches"][0]["patch"]):
            if patch["path"] == "/spec/template/spec/initContainers/0/securityContext":
                added["install"] = patch["value"]["capabilities"].get("add", ())
    return {
        name: ",".join(["-all", "+sys_chroot", *(f"+{cap.lower()}" for cap in each)]) for name, each in added.items()
    }


@dataclass
class Node:
    """The machine, and the DaemonSet's pod on it."""

    machine: Bare

    def create_pod(self, name: str) -> None:
        """As kubelet does for a pod that is bound to its node."""
        self.machine.ok("mkdir", "-p", f"/{PODS}/{name}/volumes/kubernetes.io~empty-dir/hpn-mode")

    def delete_pod(self, name: str) -> None:
        self.machine.ok("rm", "-r", f"/{PODS}/{name}")

    def configure(self, devices: str) -> None:
        """As kubelet makes the files of a ConfigMap."""
        self.machine.write("root/pod/etc/hpn/..data/devices.yaml", devices)
        self.machine.ok("ln", "-sf", "..data/devices.yaml", "/root/pod/etc/hpn/devices.yaml")

    def words(self, pod: str, role: str, *options: str) -> list[str]:
        caps = capabilities("container" if "--mode=container" in options else "auto")[role]
        apart = ("unshare", "--mount", "--propagation=private", "sh", "-euc", CONTAINER, "sh", pod, caps)
        return [*apart, role, *options]

    def install(self, *options: str, pod: str = "p1") -> list[str]:
        """The lines of the container install, which must succeed."""
        return self.machine.ok(*self.words(pod, "install", *options)).splitlines()

    def refused(self, *options: str) -> str:
        done = self.machine.run(*self.words("p1", "install", *options))
        assert done.returncode == 1, done
        return done.stderr

    @contextmanager
    def container(self, role: str, pod: str = "p1") -> Iterator["subprocess.Popen[str]"]:
        """The container agent or node, until the block's end."""
        argv = self.machine.command(*self.words(pod, role))
        with subprocess.Popen(
            argv, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                yield process
            finally:
                end(process)

    def states(self, *units: str) -> list[str]:
        return self.machine.run("systemctl", "is-active", *(units or (SOCKET, NODE))).stdout.split()

    def main(self, unit: str = NODE) -> str:
        return self.machine.ok("systemctl", "show", "-p", "MainPID", "--value", unit).strip()

    def offers(self, name: str) -> bool:
        return (self.machine.root / REGISTRY / f"hpn-example.com_{name}.sock").is_socket()

    def installed(self) -> set[str]:
        """The files of hpn, without its state."""
        found = self.machine.ok("find", "/etc", "/opt", "/usr/local", "-xdev", "-name", "*hpn*").splitlines()
        has_file = self.machine.run("test", "-e", "/etc/hpn/devices.yaml").returncode == 0
        return {*found, *(["devices"] if has_file else [])}


def end(process: "subprocess.Popen[str]") -> int:
    """End a container as its runtime does; return the exit status."""
    if process.poll() is None:
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
    return process.wait(120)


def prepare(machine: Bare, tools: Tools) -> Node:
    machine.ok("systemctl", "start", "systemd-journald")
    machine.write("bin/kill", '#!/bin/sh\nkill "$@"\n', 0o755)  # of a package that is not there
    machine.write("root/pod/hpn", tools.binary.read_bytes(), 0o755)
    for folder in ("root/pod/proc", "root/pod/hpn-mode", REGISTRY, f"{PODS}/other"):
        machine.ok("mkdir", "-p", f"/{folder}")
    it = Node(machine)
    it.configure(FIRST)
    it.create_pod("p1")
    return it


@pytest.fixture
def node(tools: Tools, tmp_path: Path) -> Iterator[Node]:
    with booted(tmp_path, SUITE, *PACKAGES) as machine:
        yield prepare(machine, tools)


@pytest.mark.parametrize("mode", ["auto", "container"])
def test_directories_of_another_user(node: Node, mode: str) -> None:
    """As kubespray makes them, and as the archives of some versions of the CNI plugins unpack."""
    folders = ("/opt/cni/bin", "/etc/cni/net.d")
    node.machine.ok("mkdir", "-p", *folders)
    node.machine.ok("chown", "1000", *folders)
    said = node.install(f"--mode={mode}", "--api-server=10.0.0.1:443", "--credential=/credential")
    where = "as units of systemd" if mode == "auto" else "in containers, as --mode=container demands"
    assert said[0] == f"this node runs hpn {where}"
    assert {"/opt/cni/bin/hpn", "/etc/cni/net.d/hpn.kubeconfig"} <= node.installed()


def test_installed_watched_changed_and_left(node: Node) -> None:
    before = node.installed()
    assert node.install()[0] == "this node runs hpn as units of systemd"
    assert (node.states(), node.offers("first")) == (["active", "active"], True)
    process = node.main()
    assert node.install()[1] == "systemctl reload hpn-node.service"
    with node.container("agent") as agent, node.container("node") as idle:
        assert agent.stdout
        assert idle.stdout
        assert "a unit of this node's systemd" in idle.stdout.readline()
        next(line for line in agent.stdout if "offers example.com/first" in line)
        # Another file restarts nothing, and its log is the pod's.
        node.configure(SECOND)
        node.install()
        next(line for line in agent.stdout if "offers example.com/second" in line)
        assert (node.main(), node.offers("first")) == (process, False)
        assert "systemctl restart hpn-node.service" in node.install("--metrics=unix:/run/hpn/metrics.sock")
        assert node.main() != process
        # systemd starts a killed one again.  The container ends with the reason, and the next one stays.
        process = node.main()
        node.machine.ok("sh", "-c", f"kill -KILL {process}")
        assert agent.wait(120) == 1
        assert "hpn-node.service ended, and this node's systemd started it again; " in list(agent.stdout)[-1]
        until(lambda: node.main() not in ("0", process) and node.states() == ["active", "active"], 120)
    with node.container("agent") as agent, node.container("node") as idle:
        assert agent.stdout
        next(line for line in agent.stdout if "offers example.com/second" in line)
        node.machine.ok("systemctl", "stop", NODE)
        assert "hpn-node.service is inactive on this node; " in list(agent.stdout)[-1]
        assert agent.wait(120) == 1
        assert end(idle) == 0
    node.install()
    leaves(node, before)


def test_a_unit_that_ends_again_and_again(node: Node) -> None:
    """The container shows the reason and ends, although the unit is never failed."""
    node.install()
    node.machine.write(f"run/systemd/system/{NODE}.d/ends.conf", ENDS)
    node.machine.ok("systemctl", "daemon-reload")
    node.machine.ok("systemctl", "restart", NODE)
    with node.container("agent") as agent:
        assert agent.wait(60) == 1
        assert agent.stdout
        said = agent.stdout.read()
    assert "broken\n" in said
    assert said.endswith("hpn-node.service ended, and this node's systemd started it again; the reason is above\n")


def leaves(node: Node, before: set[str]) -> None:
    """The unit removes everything once the pod is away and no other pod has an address; it does not remove itself
    half."""
    machine = node.machine
    machine.write(f"run/systemd/system/{LEAVE}.d/short.conf", SHORT)
    machine.ok("systemctl", "daemon-reload")
    machine.ok("systemctl", "restart", LEAVE)

    def log() -> str:
        return machine.ok("journalctl", "--unit", LEAVE, "--output=cat")

    def restarts() -> int:
        return int(machine.ok("systemctl", "show", "-p", "NRestarts", "--value", LEAVE))

    # A pod that replaces another one comes in time.
    node.create_pod("p2")
    node.delete_pod("p1")
    now = restarts()
    until(lambda: restarts() > now + 1, 120)
    assert node.states() == ["active", "active"]
    holder = machine.pod()
    env = {
        "CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": holder.netns, "CNI_IFNAME": "eth0",
        "CNI_PATH": "/none",
    }  # fmt: skip
    ipam = {"type": "hpn-ipam", "subnet": "10.56.0.0/24"}
    machine.write("root/conf", json.dumps({"cniVersion": "1.0.0", "name": "net", "type": "macvlan", "ipam": ipam}))
    machine.ok("sh", "-c", "/opt/cni/bin/hpn-ipam </root/conf", **env)
    node.delete_pod("p2")
    until(lambda: "hpn stays until these pods end: 10.56.0.2 of eth0 of container c1, network net" in log(), 120)
    # Where kubelet has no pods at all, it has perhaps not started.
    node.delete_pod("other")
    machine.ok("sh", "-c", "/opt/cni/bin/hpn-ipam </root/conf", **{**env, "CNI_COMMAND": "DEL"})
    until(lambda: "hpn stays: /var/lib/kubelet/pods has no pod" in log(), 120)
    assert node.states() == ["active", "active"]
    machine.ok("mkdir", f"/{PODS}/other")
    until(lambda: "remove /var/lib/cni/hpn" in log(), 120)
    until(lambda: node.states(SOCKET, AGENT, NODE, LEAVE) == ["inactive"] * 4, 120)
    assert node.installed() == before
    assert machine.run("ls", "/etc/hpn", "/run/hpn", "/var/lib/cni/hpn").stdout == ""
    assert machine.ok("ls", "-A", f"/{REGISTRY}") == ""


def test_killed_at_every_step(node: Node) -> None:
    """The next install completes a killed one: on a node without hpn, and at a change of the unit."""
    node.machine.write("usr/local/bin/systemctl", KILLS, 0o755)
    node.install()
    whole = node.installed()
    for options in ((), ("--metrics=unix:/run/hpn/metrics.sock",)):
        for step in range(1, 100):
            if options:
                node.install()
            else:
                node.machine.ok("hpn", "uninstall")
            node.machine.write("run/step", f"{step}")
            killed = node.machine.run(*node.words("p1", "install", *options)).returncode
            node.machine.write("run/step", "0")
            node.install(*options)
            assert (node.states(), node.installed()) == (["active", "active"], whole), step
            arguments = node.machine.ok("sh", "-c", f"tr '\\0' '\\n' </proc/{node.main()}/cmdline").splitlines()
            assert tuple(arguments[arguments.index("node") + 1 :]) == options, step
            if not killed:
                assert step > 3
                break
            # Also a killed first one was the DaemonSet's.
            until(lambda: node.offers("first"), 120)


def test_after_a_reboot_they_come_before_kubelet(tools: Tools, tmp_path: Path) -> None:
    disk = tmp_path / "disk.tar"
    kept = ("etc/systemd", "etc/hpn", "opt", "usr/local", "var/lib/cni", "var/lib/kubelet")
    scratch = [tmp_path / name for name in ("before", "after")]
    for folder in scratch:
        folder.mkdir()
    with booted(scratch[0], SUITE, *PACKAGES) as machine:
        node = prepare(machine, tools)
        machine.write("etc/systemd/system/kubelet.service", KUBELET)
        machine.ok("systemctl", "enable", "kubelet.service")
        node.install()
        archive = ["tar", "--create", f"--file={disk}", "--warning=no-file-ignored", f"--directory={machine.root}"]
        subprocess.run([*archive, *kept], check=True)
    with booted(scratch[1], SUITE, *PACKAGES, disk=f"{disk}", unit="multi-user.target") as machine:
        node = prepare(machine, tools)
        assert node.states(SOCKET, NODE, "kubelet.service") == ["active"] * 3
        assert {"hpn-example.com_first.sock", "agent.sock"} <= set(machine.ok("cat", "/run/found").split())
        # The pod follows, and finds nothing to do.
        assert node.install()[1] == "systemctl reload hpn-node.service"


def test_what_others_installed_stays(node: Node, tools: Tools) -> None:
    machine = node.machine
    machine.write("root/hpn", tools.binary.read_bytes(), 0o755)
    machine.ok("/root/hpn", "install")
    before = node.installed()
    assert (
        "hpn was installed on this node by hand: /etc/systemd/system/hpn-agent.service; nothing was re"
        in node.refused()
    )
    assert node.installed() == before
    machine.ok("hpn", "uninstall")
    machine.ok("ln", "-s", "/usr/lib/cni/hpn", "/opt/cni/bin/hpn")
    for mode in ("auto", "systemd", "container"):
        why = "the Debian package hpn-cni installed /opt/cni/bin/hpn; install with apt, or remove the package first"
        assert why in node.refused(f"--mode={mode}")
    assert machine.ok("readlink", "/opt/cni/bin/hpn") == "/usr/lib/cni/hpn\n"
    machine.ok("rm", "/opt/cni/bin/hpn")
    machine.write("etc/hpn/devices.yaml", SECOND)
    assert "/etc/hpn/devices.yaml is not a file of hpn install" in node.refused()
    assert machine.ok("cat", "/etc/hpn/devices.yaml") == SECOND


def test_a_file_that_is_refused(node: Node) -> None:
    """The node keeps the file of before."""
    node.install()
    process, before = node.main(), node.installed()
    node.configure(FIRST.replace("kind: master", "kind: mistake"))
    said = node.refused()
    assert "hpn node would refuse the device file; nothing was replaced.  /etc/hpn/devices.yaml: " in said
    assert "mistake" in said
    assert (node.main(), node.installed(), node.offers("first")) == (process, before, True)


def test_in_containers_where_systemd_cannot(node: Node) -> None:
    """The mode container takes the units away that the mode systemd had installed."""
    machine = node.machine
    node.install()
    assert node.install("--mode=container")[0] == "this node runs hpn in containers, as --mode=container demands"
    with node.container("agent") as agent:
        assert agent.stdout
        next(line for line in agent.stdout if "listens at /run/hpn/agent.sock" in line)
        assert [one for one in node.installed() if "/etc/" in one or one == "devices"] == []
        assert node.states(SOCKET, AGENT, NODE, LEAVE) == ["inactive"] * 4
    machine.ok("mount", "--bind", "/etc/systemd/system", "/etc/systemd/system")
    machine.ok("mount", "-o", "remount,bind,ro", "/etc/systemd/system")
    assert node.install()[0] == "this node runs hpn in containers: /etc/systemd/system is not writable"
    why = "--mode=systemd: /etc/systemd/system is not writable; nothing was replaced.  Choose --mode=auto or --mode="
    assert why in node.refused("--mode=systemd")


def test_where_there_is_no_systemd(tools: Tools, tmp_path: Path) -> None:
    with bare(tmp_path, SUITE, *PACKAGES) as machine:
        machine.write("root/pod/hpn", tools.binary.read_bytes(), 0o755)
        machine.ok("mkdir", "-p", "/root/pod/proc", "/root/pod/hpn-mode")
        node = Node(machine)
        node.create_pod("p1")
        assert node.install()[0] == "this node runs hpn in containers: systemd does not run on this node"
