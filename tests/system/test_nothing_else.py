"""The program in a read-only root with only the one file, /dev/null, /proc, /sys, and empty /run and /var in memory.
Every command answers there with a helpful message."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from system.machine import RANGES, Tools

from ctl.main import COMMANDS

_START = """
ip link set lo up
ip link add rail0 type veth peer name port0
ip link set rail0 up
ip link set port0 up
mount -t tmpfs -o mode=755 tmpfs "$1"
cd "$1"
mkdir dev proc run sys var
cp "$2" hpn
touch dev/null
mount --bind /dev/null dev/null
mount --rbind /proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs var
mount -o remount,bind,ro "$1"
echo up
exec sleep infinity
"""
_NAME = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=train-0"
HINTS = "hints default/train-0"
# For each command line: the exit status, and words of its output.
ANSWERS = {
    "": (0, "This makes a macvlan"),
    "help": (0, "This makes a macvlan"),
    "version": (0, "hpn "),
    "version --licenses": (0, "GNU"),
    "verison": (2, "is not a command"),
    "list": (0, "nothing is attached (searched /run/hpn"),
    "inspect": (0, "nothing is attached (searched /run/hpn"),
    "inspect pod": (1, "no attachment is called pod"),
    "check": (0, "nothing is attached (searched /run/hpn"),
    "repair": (0, "no attachment is incomplete"),
    "hints pod": (1, "nothing is attached to 'pod'"),
    "ipam show": (0, "no address is held (searched /var/lib/cni/hpn/ipam"),
    "ipam show --cluster": (1, "there is no kubeconfig at /etc/cni/net.d/hpn.kubeconfig"),
    "ipam pods --kubeconfig /root/none": (1, "there is no kubeconfig at /root/none"),
    "ipam verify": (0, "no problem found"),
    "ipam gc": (0, "nothing is provably dead"),
    "gc": (0, "nothing is provably dead"),
    "devices": (0, ""),
    "plan": (1, "pods can have no NIC of this node"),
    "gids": (0, "n_gids_found="),
    "devinfo": (1, "there is no RDMA device in this network namespace"),
    "top --count 1": (1, "no RDMA device is visible"),
    "fabric wiring": (2, "hpn node hears no neighbor on this node"),
    "fabric serve": (1, "this network namespace has no rail"),
    "doctor": (ANY, "/opt/cni/bin/hpn does not exist"),  # it also sees agents of the machine
    "report /run/node.html": (0, "/run/node.html: 5 parts"),
    "report /node.html": (1, "/node.html cannot be created: Read-only file system"),
    "install --check": (0, "this version understands the state on this node"),
    "install": (1, "hpn install: /opt: Read-only file system; check that it is writable"),
    "install --root /run": (0, "put /opt/cni/bin/hpn"),
    "uninstall --check": (0, "no pod uses hpn"),
    "uninstall --root /run": (0, "/opt/cni/bin/hpn"),
    "daemonset install --mode=container --root /run": (0, "this node runs hpn in containers, as --mode="),
    "daemonset install --root /run": (1, "the pod needs hostPID"),
    "daemonset leave": (0, "hpn stays: /var/lib/kubelet/pods has no pod"),
    "daemonset node": (78, "none of /etc/hpn/devices.yaml, "),
    "agent help": (0, "usage: hpn agent"),
    "node": (78, "none of /etc/hpn/devices.yaml, "),
    "node --check /etc/hpn/devices.yaml": (2, "/etc/hpn/devices.yaml: no such file"),
    "node --classes /etc/hpn/devices.yaml": (2, "/etc/hpn/devices.yaml: no such file"),
}


@dataclass(frozen=True)
class Empty:
    """The root, and the process with its mount and network namespaces."""

    root: Path
    holder: int

    def command(self, *words: str) -> list[str]:
        return [*self.inside(), "chroot", str(self.root), "/hpn", *words]

    def inside(self) -> list[str]:
        return ["nsenter", f"--target={self.holder}", "--mount", "--net"]

    def run(self, words: str = "", stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], **env}
        argv = self.command(*words.split())
        return subprocess.run(argv, env=environment, input=stdin, capture_output=True, text=True, check=False)

    def call(self, verb: str, pod: int, **keys: Any) -> dict[str, Any]:
        """The plugin's answer; empty if it prints none."""
        ipam = {"type": "hpn-ipam", "ranges": RANGES}
        conf = {"cniVersion": "1.1.0", "name": "rail0", "type": "hpn", "master": "rail0", "ipam": ipam, **keys}
        env = {"CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_NETNS": f"/proc/{pod}/ns/net", "CNI_IFNAME": "hpn0"}
        done = self.run(stdin=json.dumps(conf), CNI_PATH="/opt/cni/bin", CNI_ARGS=_NAME, **env)
        assert done.stderr == ""
        answer: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
        assert (done.returncode != 0) == ("code" in answer), done
        return answer

    def ok(self, verb: str, pod: int, **keys: Any) -> dict[str, Any]:
        answer = self.call(verb, pod, **keys)
        assert "code" not in answer, answer
        return answer

    def hide(self, what: str) -> None:
        """Hide /proc or /sys."""
        subprocess.run([*self.inside(), "umount", "--lazy", f"{self.root}{what}"], check=True)


@pytest.fixture
def empty(tools: Tools, tmp_path: Path) -> Iterator[Empty]:
    root = tmp_path / "root"
    root.mkdir()
    spaces = ["unshare", "--mount", "--propagation=private", "--net"]
    words = [*spaces, "sh", "-euc", _START, "sh", str(root), str(tools.hpn)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        try:
            yield Empty(root, process.pid)
        finally:
            process.kill()


@pytest.fixture
def pod() -> Iterator[int]:
    """A process with its own network namespace."""
    with subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE) as it:
        assert it.stdout
        it.stdout.readline()
        try:
            yield it.pid
        finally:
            it.kill()


def addresses(pod: int) -> set[str]:
    """The addresses of hpn0, from the machine's own ip; none without the interface."""
    shown = json.loads(subprocess.check_output(["nsenter", f"--net=/proc/{pod}/ns/net", "ip", "-json", "address"]))
    found = [a for link in shown if link["ifname"] == "hpn0" for a in link["addr_info"] if a["scope"] == "global"]
    return {f"{a['local']}/{a['prefixlen']}" for a in found}


def test_every_command(empty: Empty) -> None:
    assert {words.partition(" ")[0] for words in ANSWERS} >= {*COMMANDS, "agent", "node", "version", "help"}
    for words, (status, said) in ANSWERS.items():
        done = empty.run(words)
        printed = done.stdout + done.stderr
        assert (done.returncode, said in printed) == (status, True), (words, printed)
        assert not [bad for bad in ("Traceback", "Errno", "internal error") if bad in printed], (words, printed)


@pytest.mark.parametrize("by", ["itself", "the agent"])
def test_a_pod_comes_and_goes(empty: Empty, pod: int, by: str) -> None:
    with agent(empty) if by == "the agent" else nullcontext():
        assert empty.call("VERSION", pod)["supportedVersions"]
        empty.ok("STATUS", pod)
        added = empty.ok("ADD", pod)
        assert addresses(pod) == {ip["address"] for ip in added["ips"]}
        empty.ok("CHECK", pod, prevResult=added)
        shown = {"list": "10.56.0.2", "inspect": "10.56.0.2", "ipam show": "10.56.0.2", "check": "ok", HINTS: "=hpn0"}
        for words, said in shown.items():
            done = empty.run(words)
            assert (done.returncode, done.stderr, said in done.stdout) == (0, "", True), (words, done)
        empty.ok("DEL", pod)
        assert addresses(pod) == set()
        empty.ok("GC", pod, **{"cni.dev/valid-attachments": []})
    assert " 0 held" in empty.run("ipam show").stdout


@contextmanager
def agent(empty: Empty) -> Iterator[None]:
    with subprocess.Popen(empty.command("agent"), env={"PATH": os.environ["PATH"]}, stderr=subprocess.PIPE) as process:
        assert process.stderr
        assert b"listens at /run/hpn/agent.sock" in process.stderr.readline()
        try:
            yield
        finally:
            process.terminate()


@pytest.mark.parametrize("what", ["/proc", "/sys"])
def test_without(empty: Empty, pod: int, what: str) -> None:
    """Without /proc every command fails and names it; without /sys only commands about devices fail."""
    added = empty.ok("ADD", pod)
    empty.hide(what)
    remedy = {"/proc": "mount -t proc proc /proc", "/sys": "mount -t sysfs sysfs /sys"}[what]
    for words in {"/proc": list(ANSWERS), "/sys": ["devices", "gids", "devinfo", "top --count 1"]}[what]:
        done = empty.run(words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), (words, done)
        assert remedy in done.stderr
    verbs = {"/proc": ("VERSION", "STATUS", "ADD", "CHECK", "DEL", "GC"), "/sys": ()}[what]
    for verb in verbs:
        answer = empty.call(verb, pod)
        assert (answer["code"], remedy in answer["msg"]) == (5, True), (verb, answer)
    if what == "/sys":
        empty.ok("DEL", pod)
    assert addresses(pod) == {ip["address"] for ip in added["ips"] if verbs}
