"""The Debian package on machines with only a release's essential packages."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.topology import until
from system.bare import Bare, Pod, bare, booted
from system.machine import ROOT, Tools, ours

CONF = "etc/cni/net.d/rail0.conflist"
NEWER = "9.0.0"
UNITS = ("hpn-agent.socket", "hpn-agent.service", "hpn-node.service")
# Additional packages of the roots that are not bare.
MORE = {"bookworm": ("lintian", "systemd"), "trixie": ("systemd",)}
# deb-systemd-helper makes this link and notes it.
ENABLED = "/etc/systemd/system/sockets.target.wants/hpn-agent.socket"
HELPERS = "/var/lib/systemd/deb-systemd-helper-enabled"
# libcni makes it for any plugin.
LIBCNIS = "/var/lib/cni/results"


@pytest.fixture(scope="module")
def package(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    argv = [sys.executable, ROOT / "packaging" / "deb" / "build.py", tools.binary, tmp_path_factory.mktemp("deb")]
    env = {**os.environ, "DPKG_DEB_COMPRESSOR_TYPE": "none"}  # compression would take half a minute
    return Path(subprocess.check_output(argv, env=env, text=True).strip())


@pytest.fixture(scope="module")
def newer(package: Path) -> Path:
    """The same package under a higher version, not compressed."""
    tree, path = package.with_name("newer"), package.with_name("newer.deb")
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
    control = tree / "DEBIAN" / "control"
    lines = control.read_text().splitlines()
    control.write_text("".join(f"Version: {NEWER}\n" if one.startswith("Version:") else f"{one}\n" for one in lines))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, path], check=True)
    return path


@dataclass
class Node:
    """A bare machine with the two packages, cnitool, and a network's configuration."""

    machine: Bare
    before: set[str]

    def dpkg(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.machine.run("dpkg", "--force-unsafe-io", *words, **env)

    def install(self, name: str = "first") -> None:
        done = self.dpkg("--install", f"/root/{name}.deb")
        harmless = ("dpkg: warning: downgrading hpn-cni", "Created symlink")
        said = [line for line in done.stderr.splitlines() if not line.startswith(harmless)]
        assert (done.returncode, said) == (0, [])

    def state(self) -> str:
        """dpkg's two letters for the package, and its version."""
        return self.machine.ok("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}${Version}", "hpn-cni")

    def cni(self, verb: str, pod: Pod) -> str:
        env = {"CNI_PATH": "/opt/cni/bin", "NETCONFPATH": "/etc/cni/net.d", "CNI_IFNAME": "hpn0"}
        return self.machine.ok("cnitool", verb, "rail0", pod.netns, **env)

    def configure(self) -> None:
        self.machine.write(CONF, json.dumps({"cniVersion": "1.1.0", "name": "rail0", "plugins": [ours()]}))

    def left(self) -> set[str]:
        """The files that were not there at first, except libcni's results."""
        return {path for path in self.machine.files() - self.before if not path.startswith(LIBCNIS)}


@pytest.fixture
def node(suite: str, package: Path, newer: Path, tools: Tools, tmp_path: Path) -> Iterator[Node]:
    with bare(tmp_path, suite) as machine:
        machine.write("root/first.deb", package.read_bytes())
        machine.write("root/newer.deb", newer.read_bytes())
        machine.write("usr/local/bin/cnitool", (tools.peers / "cnitool").read_bytes(), 0o755)
        yield Node(machine, machine.files())


def on(*suites: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("suite", suites)


@on("bookworm", "trixie")
def test_installed_used_upgraded_removed_purged(node: Node) -> None:
    node.install()
    assert node.machine.ok("dpkg", "--verify", "hpn-cni") == ""
    assert {"/usr/lib/cni/hpn", "/opt/cni/bin/hpn-ipam", ENABLED} <= node.left()
    assert not [path for path in node.left() if path.startswith("/etc/") and "hpn-node" in path]

    first, second = attach_two(node)
    node.install("newer")
    assert node.state() == f"ii {NEWER}"
    node.cni("check", first)
    node.install()
    assert node.state() != f"ii {NEWER}"
    node.cni("check", second)

    assert refused(node).count("hpn0 of container ") == 2
    # dpkg records the wanted state; the installed files are complete.
    assert node.state().startswith("ri ")
    assert node.machine.ok("dpkg", "--verify", "hpn-cni") == ""
    node.cni("del", first)
    assert node.machine.addresses(first) == {}
    # A dead pod's state does not prevent the removal.
    node.machine.end(second)
    remove_and_purge(node)


def attach_two(node: Node) -> tuple[Pod, Pod]:
    """Two pods that reach each other."""
    node.configure()
    pods = node.machine.pod(), node.machine.pod()
    for pod, address in zip(pods, ("10.56.0.2", "10.56.0.3"), strict=True):
        node.cni("add", pod)
        assert node.machine.addresses(pod)["hpn0"][0] == address
    reach = [f"--net={node.machine.root}{pods[0].netns}", "ping", "-c", "1", "-w", "60", "10.56.0.3"]
    subprocess.run(["nsenter", *reach], check=True, capture_output=True)
    return pods


def refused(node: Node) -> str:
    """dpkg's message when it refuses to remove the package."""
    done = node.dpkg("--remove", "hpn-cni")
    assert done.returncode == 1
    assert "hpn-cni is not removed" in done.stderr
    assert "HPN_FORCE=1 dpkg --remove hpn-cni" in done.stderr
    return done.stderr


def remove_and_purge(node: Node) -> None:
    """Remove and purge the package, and check for files that docs/user/install.md does not name."""
    removed = node.dpkg("--remove", "hpn-cni")
    assert (removed.returncode, removed.stderr) == (0, "")
    assert node.state().startswith("rc ")
    state = ("/run/hpn", "/var/lib/cni/hpn/ipam", "/etc/cni", HELPERS)
    kept = {path for path in node.left() if not path.startswith(state)}
    assert kept == {"/var/lib/cni", "/var/lib/cni/hpn", ENABLED, str(Path(ENABLED).parent)}

    purged = node.dpkg("--purge", "hpn-cni")
    assert (purged.returncode, purged.stderr) == (0, "")
    assert node.left() == {"/var/lib/cni", "/etc/cni", "/etc/cni/net.d", f"/{CONF}"}
    assert node.before - node.machine.files() == set()


@on("bookworm", "trixie")
def test_what_was_never_used_leaves_nothing(node: Node) -> None:
    node.install()
    assert node.dpkg("--purge", "hpn-cni").returncode == 0
    assert node.left() == set()


@on("bookworm")
def test_what_the_program_and_its_users_write(node: Node) -> None:
    node.install()
    for path in (
        "etc/hpn/devices.yaml",
        "etc/hpn/policy.json",
        "etc/cni/hpn.d/rail0.conflist",
        "etc/modprobe.d/hpn-node.conf",
        "var/log/hpn/rail0.log",
    ):
        node.machine.write(path, "")
    assert node.dpkg("--purge", "hpn-cni").returncode == 0
    assert [path for path in node.left() if "hpn" in path] == []


@on("bookworm")
def test_removed_by_force(node: Node) -> None:
    node.install()
    node.configure()
    pod = node.machine.pod()
    node.cni("add", pod)
    assert node.dpkg("--purge", "hpn-cni").returncode == 1
    assert node.dpkg("--purge", "hpn-cni", HPN_FORCE="1").returncode == 0
    # The pods keep their addresses.
    assert node.machine.addresses(pod)["hpn0"]
    assert "/run/hpn" not in node.machine.files()


@on("bookworm")
def test_addresses_alone_keep_it_too(node: Node) -> None:
    """hpn-ipam under another plugin leaves addresses without an attachment, which also prevent the removal."""
    node.install()
    pod = node.machine.pod()
    env = {
        "CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": pod.netns, "CNI_IFNAME": "eth0",
        "CNI_PATH": "/none", "HPN_AGENT": "",
    }  # fmt: skip
    node.machine.write("root/conf", json.dumps({"cniVersion": "1.1.0", "name": "net", **ours(type="macvlan")}))
    node.machine.ok("sh", "-c", "hpn-ipam </root/conf", **env, PATH="/usr/lib/cni:/usr/bin:/bin")
    assert "10.56.0.2, fd00:56::2 of eth0 of container c1, network net" in refused(node)
    broken = "cd /usr/lib/cni; mv hpn whole; ln -s /bin/true hpn; dpkg --remove hpn-cni; mv whole hpn"
    assert "/usr/lib/cni/hpn reports nothing about them" in node.machine.run("sh", "-c", broken).stderr
    node.machine.ok("hpn", "ipam", "release", "net", "c1:eth0", "--force")
    assert node.dpkg("--remove", "hpn-cni").returncode == 0


@on("bookworm")
def test_records_of_a_newer_version_are_not_given_to_an_older(node: Node) -> None:
    node.install("newer")
    record = "run/hpn/attachments/rail0/c1:hpn0.json"
    node.machine.write(record, '{"schema":2,"sha256":"00","body":{}}\n')
    done = node.dpkg("--install", "/root/first.deb")
    assert done.returncode == 1
    assert f"/{record}\nNothing was replaced" in done.stderr
    assert node.state() == f"ii {NEWER}"
    # A damaged record belongs to no version, and prevents no downgrade.
    node.machine.write(record, '{"schema":1,"sh')
    node.install()


@on("bookworm")
def test_after_hpn_install(node: Node, tools: Tools) -> None:
    """docs/user/install.md describes the change from hpn install to the package, with pods attached."""
    node.machine.write("root/hpn", tools.binary.read_bytes(), 0o755)
    node.machine.ok("/root/hpn", "install")
    (node.machine.root / "root/hpn").unlink()
    first, second = attach_two(node)
    node.machine.ok("hpn", "uninstall", "--force")
    node.install()
    assert not [path for path in node.left() if path.startswith(("/usr/local/", "/etc/systemd/system/hpn"))]
    node.cni("check", first)
    for pod in first, second:
        node.cni("del", pod)
    remove_and_purge(node)


@on("bookworm")
def test_a_purge_leaves_what_another_installation_uses(node: Node) -> None:
    node.install()
    assert node.dpkg("--remove", "hpn-cni").returncode == 0
    node.machine.write("opt/cni/bin/hpn", "#!/bin/sh\n", 0o755)
    node.machine.write("etc/hpn/devices.yaml", "resources: []\n")
    purged = node.dpkg("--purge", "hpn-cni")
    assert purged.returncode == 0
    assert "still installed" in purged.stderr
    assert "/etc/hpn/devices.yaml" in node.machine.files()


@pytest.fixture
def running(suite: str, package: Path, newer: Path, tmp_path: Path) -> Iterator[Node]:
    """As ``node``, with systemd running."""
    with booted(tmp_path, suite, *MORE[suite]) as machine:
        machine.write("root/first.deb", package.read_bytes())
        machine.write("root/newer.deb", newer.read_bytes())
        yield Node(machine, machine.files())


@on("bookworm", "trixie")
def test_the_agent_runs_and_is_restarted(running: Node) -> None:
    running.install()
    assert states(running) == ["active", "inactive", "inactive"]
    until(lambda: answers(running), 120)
    assert states(running) == ["active", "active", "inactive"]
    first = agent(running)
    running.install("newer")
    until(lambda: answers(running), 120)
    assert agent(running) not in ("0", first)
    # The unit was not enabled: it has no configuration.
    assert running.machine.run("systemctl", "is-enabled", *UNITS).stdout.split() == ["enabled", "static", "disabled"]

    # A unit that the administrator disabled stays disabled.
    running.machine.ok("systemctl", "disable", "--now", *UNITS[:2])
    again = running.dpkg("--install", "/root/first.deb")
    assert (again.returncode, "disabled" in again.stderr) == (0, True)
    assert states(running) == ["inactive"] * 3
    running.machine.ok("systemctl", "enable", "--now", UNITS[0])
    until(lambda: answers(running), 120)

    assert running.dpkg("--purge", "hpn-cni").returncode == 0
    assert states(running) == ["inactive"] * 3
    assert [path for path in running.left() if "hpn" in path] == []


def states(node: Node) -> list[str]:
    return node.machine.run("systemctl", "is-active", *UNITS).stdout.split()


def agent(node: Node) -> str:
    """The agent's process, by its number in the machine."""
    return node.machine.ok("systemctl", "show", "-p", "MainPID", "--value", UNITS[1]).strip()


def answers(node: Node) -> bool:
    """Whether the agent answers: without it the program would have to be unpacked."""
    return node.machine.run("hpn", CNI_COMMAND="VERSION", HPN_PROGRAM_DIR="/proc/nowhere").returncode == 0


def test_lintian(package: Path, tmp_path: Path) -> None:
    """lintian reports only the tags that packaging/deb/lintian-overrides explains."""
    with bare(tmp_path, "bookworm", *MORE["bookworm"]) as machine:
        machine.write(f"root/{package.name}", package.read_bytes())
        # Compression takes time and does not improve the check.
        passed = [f"uses-no-compression-for-{part}-tarball" for part in ("control", "data")]
        words = ["--allow-root", "--fail-on=error,warning", f"--suppress-tags={','.join(passed)}"]
        done = machine.run("lintian", *words, f"/root/{package.name}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
