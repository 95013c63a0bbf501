"""Run in the guest: the agent and hpn node by their systemd units, under their own systemd (packaging/systemd).

python -m guest.units BINARY
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from guest import units_metrics
from support.topology import until

ROOT = Path(__file__).parents[2]
CONF = {
    "cniVersion": "1.1.0", "name": "rail0", "type": "hpn", "master": "rail9",
    "ipam": {"type": "hpn-ipam", "ranges": [[{"subnet": "10.56.0.0/24"}]]},
}  # fmt: skip
OTHER = "0123456789abcdef"
SERVICE, SOCKET = "hpn-agent.service", "hpn-agent.socket"
NODE, REGISTRY = "hpn-node.service", Path("/var/lib/kubelet/plugins_registry")


class Machine:
    """A machine with systemd as its first process: namespaces for processes and mounts, which contain the whole
    test."""

    def __init__(self) -> None:
        Path("/sys/fs/cgroup").mkdir(exist_ok=True)
        if not os.path.ismount("/sys/fs/cgroup"):
            subprocess.run(["mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup"], check=True)
        # That service would search all of the guest's /tmp.
        Path("/etc/systemd/system/systemd-tmpfiles-setup.service").symlink_to("/dev/null")
        init = ["/lib/systemd/systemd", "--system", "--unit=basic.target", "--log-target=console", "--show-status=0"]
        words = ["unshare", "--fork", "--pid", "--mount", "--mount-proc", "--kill-child", *init]
        self.process = subprocess.Popen(words, env={"container": "lab", "PATH": os.environ["PATH"]})
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        until(lambda: children.read_text().split() and Path("/run/systemd/private").exists(), 120)
        (self.first,) = children.read_text().split()

    def run(self, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        argv = ["nsenter", "-t", self.first, "-p", "-m", *words]
        return subprocess.run(argv, input=stdin, env={**os.environ, **env}, capture_output=True, text=True, check=False)

    def systemctl(self, *words: str) -> str:
        return self.run("systemctl", *words).stdout.strip()

    def call(self, verb: str) -> str:
        """Run the verb by the agent; without it the call fails, because no program is there to fall back to."""
        env = {
            "CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_IFNAME": "hpn0", "CNI_NETNS": "/run/netns/pod",
            "CNI_PATH": "/opt/cni/bin", "HPN_PROGRAM_DIR": "/proc/nowhere",
        }  # fmt: skip

        def done() -> subprocess.CompletedProcess[str] | None:
            """None if the agent did not accept the call in time, which then changed nothing."""
            answer = self.run("/opt/cni/bin/hpn", stdin=json.dumps(CONF), **env)
            return None if "/proc/nowhere" in answer.stdout + answer.stderr else answer

        answer: subprocess.CompletedProcess[str] = until(done)
        assert answer.returncode == 0, answer
        return answer.stdout

    def answers(self) -> bool:
        env = {"CNI_COMMAND": "VERSION", "HPN_PROGRAM_DIR": "/proc/nowhere"}
        answered = self.run("/opt/cni/bin/hpn", stdin="{}", **env).returncode == 0
        # The machine has a core to itself meanwhile: everything in the guest is emulated.
        # time: the pace at which it is asked
        time.sleep(0 if answered else 2)
        return answered

    def agent(self) -> str:
        """The agent's process, by its number in the machine."""
        return self.main(SERVICE)

    def main(self, unit: str) -> str:
        """A unit's process, by its number in the machine."""
        return self.systemctl("show", "-p", "MainPID", "--value", unit)


def main(binary: str) -> None:
    """Raises AssertionError."""
    plugins = Path("/opt/cni/bin")
    plugins.mkdir(parents=True, exist_ok=True)
    shutil.copy(binary, plugins / "hpn")
    for unit in (ROOT / "packaging" / "systemd").iterdir():
        shutil.copy(unit, "/etc/systemd/system")
    machine = Machine()
    machine.run("ip", "link", "add", "rail9", "type", "veth", "peer", "name", "far9")
    machine.run("ip", "link", "set", "rail9", "up")
    machine.run("ip", "netns", "add", "pod")

    machine.systemctl("start", SOCKET)
    assert machine.systemctl("is-active", SOCKET, SERVICE) == "active\ninactive"
    # The first request starts the agent, and may time out while the agent unpacks.
    until(machine.answers, 120)
    assert '"address":"10.56.0.2/24"' in machine.call("ADD")
    assert machine.systemctl("is-active", SERVICE) == "active"
    print("started by its socket")

    killed = machine.agent()
    machine.run("kill", f"-{signal.SIGKILL}", killed)
    until(machine.answers, 120)
    assert machine.agent() not in ("0", killed)
    machine.call("DEL")
    assert machine.run("ip", "-netns", "pod", "link", "show", "hpn0").returncode
    print("started again")

    machine.systemctl("stop", SERVICE)
    assert machine.systemctl("show", "-p", "Result", "--value", SERVICE) == "success"
    machine.systemctl("stop", SOCKET, SERVICE)
    assert not Path("/run/hpn/agent.sock").exists()
    print("stopped")
    offer(machine)
    install(machine, Path(binary))


def offer(machine: Machine) -> None:
    """Check hpn node: start where kubelet has never run, discovery, reload, stop, refusal.  Raises AssertionError."""
    shutil.rmtree("/var/lib/kubelet", ignore_errors=True)
    configure("first")
    assert machine.systemctl("show", "-p", "Before", "--value", NODE).split().count("kubelet.service") == 1
    machine.systemctl("start", NODE)
    assert machine.systemctl("is-active", NODE) == "active"
    REGISTRY.mkdir(parents=True)
    until((REGISTRY / "hpn-example.com_first.sock").is_socket, 120)
    print("found by kubelet")

    configure("second")
    machine.systemctl("reload", NODE)
    until((REGISTRY / "hpn-example.com_second.sock").is_socket, 120)
    assert not (REGISTRY / "hpn-example.com_first.sock").exists()
    print("reloaded")
    make_ready(machine)
    units_metrics.check(machine)
    print("serves metrics")

    machine.systemctl("stop", NODE)
    assert machine.systemctl("show", "-p", "Result", "--value", NODE) == "success"
    assert list(REGISTRY.glob("*.sock")) == []
    Path("/etc/hpn/devices.yaml").write_text("{}")
    machine.systemctl("start", NODE)
    until(lambda: machine.systemctl("is-active", NODE) == "failed", 120)
    assert machine.systemctl("show", "-p", "ExecMainStatus", "--value", NODE) == "78"
    print("refused")


def install(machine: Machine, binary: Path) -> None:
    """Check hpn install and uninstall: enabled, started, restarted by another version, stopped.

    Raises AssertionError.
    """
    # These files were copied by hand; uninstall removes them too.
    done(machine, binary, "uninstall")
    assert not list(Path("/etc/systemd/system").glob("hpn-*"))
    configure("third")
    done(machine, binary, "install")
    assert machine.systemctl("is-enabled", SOCKET, NODE) == "enabled\nenabled"
    assert machine.systemctl("is-active", SOCKET, SERVICE, NODE) == "active\ninactive\nactive"
    until(machine.answers, 120)
    before = [machine.main(unit) for unit in (SERVICE, NODE)]
    assert done(machine, binary, "install") == "it is already installed\n"
    assert [machine.main(unit) for unit in (SERVICE, NODE)] == before
    # As if the first command had been killed before it notified systemd.
    os.utime(f"/etc/systemd/system/{NODE}")
    assert done(machine, binary, "install") == "systemctl daemon-reload\n"
    assert done(machine, binary, "install") == "it is already installed\n"
    print("installed")

    (version,) = (path.name for path in Path("/var/lib/cni/hpn/program").iterdir() if len(path.name) == len(OTHER))
    other = Path("/root/other")
    other.write_bytes(binary.read_bytes().replace(version.encode(), OTHER.encode()))
    other.chmod(0o755)
    machine.call("ADD")
    machine.systemctl("disable", SOCKET)
    done(machine, other, "install")
    assert machine.systemctl("is-enabled", SOCKET, NODE) == "disabled\nenabled"
    for unit, pid in zip((SERVICE, NODE), before, strict=True):
        assert machine.main(unit) not in ("0", pid)
        assert f"/{OTHER}/" in machine.run("readlink", f"/proc/{machine.main(unit)}/exe").stdout
    print("another version")

    refused = machine.run(str(other), "uninstall")
    assert "hpn0 of container c1, network rail0" in refused.stderr
    assert machine.systemctl("is-active", SOCKET, SERVICE, NODE) == "active\nactive\nactive"
    machine.call("DEL")
    assert "left: /etc/hpn" in done(machine, other, "uninstall")
    assert machine.systemctl("is-active", SOCKET, SERVICE, NODE) == "inactive\ninactive\ninactive"
    assert machine.systemctl("show", "-p", "LoadState", "--value", SOCKET) == "not-found"
    assert not [path for path in ("/run/hpn", "/var/lib/cni/hpn", "/opt/cni/bin/hpn") if os.path.lexists(path)]
    print("uninstalled")


def done(machine: Machine, program: Path, *words: str) -> str:
    """The output of an hpn command, which must succeed."""
    asked = machine.run(str(program), *words)
    assert (asked.returncode, asked.stderr) == (0, ""), asked
    return asked.stdout


def make_ready(machine: Machine) -> None:
    """Check that hpn node makes VFs and can write where it must, in systemd's sandbox.  Raises AssertionError."""
    rule = {"selectors": {"ifNames": ["rail0"]}, "numVfs": 2, "mtu": 2000, "trust": True}
    configure("second", pfs=[rule], rdmaNamespaces="exclusive")
    machine.systemctl("reload", NODE)
    pf = Path("/sys/class/net/rail0/device").resolve()
    until(lambda: (pf / "sriov_numvfs").read_text() == "2\n", 120)
    option = Path("/etc/modprobe.d/hpn-node.conf")
    until(lambda: machine.run("cat", str(option)).stdout.endswith("options ib_core netns_mode=N\n"), 120)
    until(lambda: trusted(machine) == [True, True], 120)
    inside = ("nsenter", "-m", "-t", machine.systemctl("show", "-p", "MainPID", "--value", NODE), "test", "-w")
    may = [pf / "sriov_numvfs", "/sys/bus/pci/drivers/igbvf/bind", option]
    may_not = [
        *("/sys/devices/system/cpu/cpu0/uevent", "/sys/bus/pci/rescan", "/sys/module/ib_core/parameters/netns_mode"),
        *("/sys/kernel/uevent_seqnum", "/proc/sys/kernel/hostname", "/etc/hosts", "/usr/bin"),
    ]
    assert [path for path in may if machine.run(*inside, str(path)).returncode] == []
    assert [path for path in may_not if not machine.run(*inside, str(path)).returncode] == []
    print("made ready")


def trusted(machine: Machine) -> list[bool]:
    """For each VF of rail0, whether the PF trusts it."""
    (link,) = json.loads(machine.run("ip", "-j", "-d", "link", "show", "rail0").stdout)
    return [vf["trust"] for vf in link["vfinfo_list"]]


def configure(name: str, **keys: object) -> None:
    """Offer rail9 by that name."""
    Path("/etc/hpn").mkdir(exist_ok=True)
    resource = {"name": f"example.com/{name}", "kind": "master", "selectors": {"ifNames": ["rail9"]}}
    Path("/etc/hpn/devices.yaml").write_text(json.dumps({"resources": [resource], **keys}))


if __name__ == "__main__":
    main(sys.argv[1])
