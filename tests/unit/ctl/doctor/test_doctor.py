"""hpn doctor on a node's files: each finding appears, and disappears after its remedy."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.doctor_claims import CASES
from support.doctor_node import ALIVE, NODE, VF, Node, listening

from base.kubelet import client
from base.state.record import LOST
from cni import attachment_state
from ctl.doctor.checks import CHECKS
from ctl.doctor.reading import Reader
from ctl.main import main

# A full disk needs a mount (tests/netns/test_doctor.py), and the clock needs the lab (tests/lab/test_doctor.py).
# test_priorities.py has the answers of a driver with DCB; test_definitions.py, test_pools.py and test_claims.py an API
# server's; test_blocks.py a store's.
ELSEWHERE = {
    *("disk-nearly-full", "clock-wrong", "clock-differs", "clock-unsynchronized", "pfc-differs", "traffic-class-lossy"),
    *("range-on-each-node", "pools-overlap", "pool-of-own-address", "policy-unenforced", "resource-injected"),
    *("resource-nobody-has", "names-unlisted", "slices-missing", "slices-foreign"),
}
OLD = "2026-01-02T03:04:05.678+00:00"


@pytest.fixture
def node() -> Iterator[Node]:
    # A socket's path has 107 bytes at most.
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        node = Node(Path(folder, "root"))
        yield node
        for sock in node.sockets:
            sock.close()


def test_another_number_while_a_pod_has_a_vf(node: Node) -> None:
    """The finding names the pod, and the commands."""
    node.at("etc/hpn/devices.yaml").write_text(NODE.replace("numVfs: 1", "numVfs: 8"))
    node.save(ALIVE, link={"device": VF})
    ((name, one),) = node.findings()
    assert (name, "; pods have VFs: hpn0 of default/a, " in one.evidence) == ("node-not-as-asked", True)
    assert one.remedy.startswith("run: kubectl drain NODE --ignore-daemonsets --delete-emptydir-data, then run: ")
    node.at("etc/hpn/devices.yaml").write_text(NODE)
    assert node.findings() == []


MICROK8S = {
    "opt/cni/bin": "var/snap/microk8s/current/opt/cni/bin",
    "etc/cni/net.d": "var/snap/microk8s/current/args/cni-network",
    "var/lib/kubelet": "var/snap/microk8s/common/var/lib/kubelet",
}
K3S = {"opt/cni/bin": "var/lib/rancher/k3s/data/cni", "etc/cni/net.d": "var/lib/rancher/k3s/agent/etc/cni/net.d"}


@pytest.mark.parametrize("moved", [MICROK8S, K3S], ids=["MicroK8s", "k3s"])
def test_directories_of_other_distributions(node: Node, moved: dict[str, str]) -> None:
    """What is at their paths is checked as it is at the usual ones; an empty usual one changes nothing."""
    for usual, path in moved.items():
        (node.root / usual).mkdir(parents=True, exist_ok=True)
        node.at(usual).rename(node.at(path))
    assert node.findings() == []
    (node.root / "etc/cni/net.d").mkdir(parents=True)
    plugins, networks = node.at(moved["opt/cni/bin"]), node.at(moved["etc/cni/net.d"])
    (plugins / "hpn").chmod(0o644)
    for file in networks.iterdir():
        file.write_text(file.read_text().replace('"rdma"', '"rdmaa"'))
    found = dict(node.findings())
    assert f"{plugins}/hpn is not an executable file" == found["plugin-missing"].evidence
    assert found["configuration-refused"].evidence.startswith(f"{networks}/")
    if "var/lib/kubelet" in moved:
        registry = node.at(f"{moved['var/lib/kubelet']}/plugins_registry/hpn-example.com_rail0.sock")
        with closing(listening(registry)):
            pass
        assert dict(node.findings())["socket-dead"].evidence.startswith(f"{registry}: ")


def test_the_daemonsets_plugin_is_missing(node: Node) -> None:
    """hpn install by hand would stop the DaemonSet on this node for good."""
    node.process(900, "ld-hpn.so.2", "unlimited", "daemonset", "agent")
    node.at("proc/900/exe").symlink_to("/program/0123456789abcdef/ld-hpn.so.2")
    (node.root / "opt/cni/bin/hpn").unlink()
    remedies = {one.remedy for name, one in node.findings() if name == "plugin-missing"}
    assert remedies == {"delete the DaemonSet's pod on this node, which installs hpn again"}


def test_every_check_has_a_case() -> None:
    assert CASES.keys() | ELSEWHERE == CHECKS.keys()


def test_the_page_explains_each() -> None:
    page = (Path(__file__).parents[4] / "docs/user/operations.md").read_text()
    explained = re.findall(r"^### (.*)\n\n(.*)", page, re.MULTILINE)
    assert [name for name, _ in explained] == list(CHECKS)
    assert all(len(text) > 40 for _, text in explained)
    assert f" of {len(CHECKS)} checks" in page


def test_nothing_is_found_where_all_is_well(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.findings() == []
    assert main(["hpn", "doctor", "--root", str(node.root)]) == 0
    assert capsys.readouterr().out == f"0 errors, 0 warnings, 0 notes of {len(CHECKS)} checks\n"


@pytest.mark.parametrize("name", CASES)
def test_found_and_gone(node: Node, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault gives its finding and no other; its remedy removes the finding."""
    if name == "resource-twice":  # a plugin on a busy machine may be slow
        monkeypatch.setattr(client.resource, "__defaults__", (60.0,))
    steps = CASES[name](node)
    severity = next(steps)
    found = as_nobody(node) if name == "not-readable" else [(i, f.severity, f.evidence) for i, f in node.findings()]
    assert {one for one, _, _ in found} == {name}
    assert {one for _, one, _ in found} == {severity}
    if name == "not-readable":
        assert "dev/infiniband/rdma_cm" in " ".join(evidence for _, _, evidence in found)
    else:
        assert all(str(node.root) in evidence for _, _, evidence in found), "it says what was read where"
    assert next(steps, None) is None
    assert node.findings() == []


@pytest.mark.parametrize(("version", "text", "is_found"), [
    ("2.0.0", "", False),
    ("2.0.0", "enable_cdi = true", False),
    ("2.0.0", "enable_cdi = false", True),
    ("1:2.3.4-1", "enable_cdi = false", True),
    ("2.4.0~rc1-1", "enable_cdi = false", False),
    ("2.10.1", "enable_cdi = false", False),
    ("1.7.24", "enable_cdi = false", True),
    ("1.7.24", "  enable_cdi = true # see CDI", False),
])  # fmt: skip
def test_cdi_of_containerd(node: Node, version: str, text: str, is_found: bool) -> None:
    """In the file of containerd's option, which is not the default one."""
    node.process(811, "containerd", "unlimited", "--config", "/etc/other.toml")
    node.at("var/lib/dpkg/status").write_text(f"Package: containerd\nStatus: a b installed\nVersion: {version}\n\n")
    node.at("etc/containerd/config.toml").write_text("enable_cdi = false\n")
    node.at("etc/other.toml").write_text(f"{text}\n")
    node.at("etc/hpn/devices.yaml").write_text(NODE.replace("kind: vf,", "kind: vf, cdi: true,"))
    assert [name for name, _ in node.findings()] == ["cdi-disabled"] * is_found


DOCKERS = 'disabled_plugins = ["cri"]\n'


@pytest.mark.parametrize("dockers", [DOCKERS, 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'])
def test_a_containerd_without_kubelets_interface(node: Node, dockers: str) -> None:
    """Docker's own, alone and beside kubelet's: its file and its package's version give no finding."""
    node.at("proc/811/comm").unlink()
    node.process(800, "containerd", "unlimited", "--config", "/run/docker/containerd/containerd.toml")
    node.at("run/docker/containerd/containerd.toml").write_text(f"{dockers}enable_cdi = false\n")
    node.at("var/lib/dpkg/status").write_text("Package: containerd.io\nStatus: a b installed\nVersion: 1.7.24\n\n")
    node.at("etc/hpn/devices.yaml").write_text(NODE.replace("kind: vf,", "kind: vf, cdi: true,"))
    assert node.findings() == []
    node.process(811, "containerd")
    node.at("proc/811/cmdline").write_text("/opt/k8s/containerd\0--config=/etc/kubelets.toml\0")
    kubelets = node.at("etc/kubelets.toml")
    kubelets.write_text("# disabled_plugins = ['cri']\n")
    assert node.findings() == []
    kubelets.write_text("disabled_plugins = ['aufs']\nenable_cdi = false\n")
    assert [(name, str(kubelets) in one.evidence) for name, one in node.findings()] == [("cdi-disabled", True)]


CRI = '[plugins."io.containerd.grpc.v1.cri"]'
OTHERS = "[plugins.'io.containerd.grpc.v1.cri'.registry]\n"


@pytest.mark.parametrize("version", ["1.7.24~ds1-1", "2.0.0"])
@pytest.mark.parametrize(("files", "found_in"), [
    ({"a": 'imports = ["b"]', "b": 'imports = ["/etc/own/c"]', "c": "enable_cdi = false"}, "12"),
    # A loop; and each file is merged once, where it is named first.
    ({"a": 'imports = ["b", "c"]', "b": "imports = ['a', 'c']\nenable_cdi = false", "c": "enable_cdi = true"}, ""),
    # The files of one level come before those that they import.
    ({"a": 'imports = ["b", "c"]', "b": 'imports = ["d"]', "c": "enable_cdi = true", "d": "enable_cdi = false"}, "12"),
    ({"a": "enable_cdi = false\nimports = ['*/x*.toml']", "d/x.toml": "enable_cdi = true"}, ""),
    ({"a": "enable_cdi = false\nimports = ['b']", "b": "disabled_plugins = ['cri']"}, ""),
    # Before 2.0 a later file's section replaces an earlier one's, with all its keys.
    ({"a": f"imports = ['b']\n{CRI}\nenable_cdi = true", "b": OTHERS}, "1"),
    ({"a": f"imports = ['b']\n{CRI}\nenable_cdi = false", "b": OTHERS}, "12"),
    ({"a": "imports = ['b']\n[plugins.cri]\nenable_cdi = true", "b": "[plugins.cri.cni]\n"}, "1"),
    ({"a": f"imports = ['b', 'c']\n{CRI}\nenable_cdi = true", "b": OTHERS, "c": "enable_cdi = true"}, ""),
    ({"a": f"imports = ['b']\n{CRI}\nenable_cdi = true\n{OTHERS}", "b": f"# {OTHERS}[plugins.cri-x]\n"}, ""),
])  # fmt: skip
def test_imports_of_containerd(node: Node, files: dict[str, str], version: str, found_in: str) -> None:
    """containerd reads imported files in the order of LoadConfig, and merges them by mergeConfig
    (cmd/containerd/server/config/config.go, in 1.7 services/server/config/config.go)."""
    node.process(811, "containerd", "unlimited", "--config", "/etc/own/a")
    node.at("var/lib/dpkg/status").write_text(f"Package: containerd\nStatus: a b installed\nVersion: {version}\n\n")
    for name, text in files.items():
        node.at(f"etc/own/{name}").write_text(f"{text}\n")
    node.at("etc/hpn/devices.yaml").write_text(NODE.replace("kind: vf,", "kind: vf, cdi: true,"))
    found = node.findings()
    assert [name for name, _ in found] == ["cdi-disabled"] * (version[0] in found_in)
    if found and OTHERS in files.get("b", "") and version[0] == "1":
        assert re.search(r"/own/b has .* of \S+/own/a", found[0][1].evidence)


@pytest.mark.parametrize(
    ("keys", "names", "refused"),
    [
        ({"rails": ["rail0", "ens1"]}, {"master": ["rail*"]}, "ens1"),
        ({"rails": ["rail0", "rail1"]}, {"master": ["rail*"]}, ""),
        ({"rails": ["rail0"], "kind": "sriov"}, {"pf": ["ens*"]}, "rail0"),
        ({"rails": ["rail0"], "kind": "sriov"}, {"pf": ["rail*"]}, ""),
        ({"rails": ["rail0", "rail1"], "mtuu": 1}, {"master": ["rail*"]}, "mtuu"),
        ({"rails": ["example.com/rail0"]}, {"master": ["rail*"]}, ""),
        ({"rails": 5}, {"master": ["*"]}, "rails"),
    ],
)
def test_a_network_of_rails(node: Node, keys: dict[str, Any], names: dict[str, Any], refused: str) -> None:
    """Each interface counts as if it had a network of its own."""
    node.at("etc/hpn/policy.json").write_text(json.dumps({"allowedNames": {"kind": ["*"]} | names}))
    node.at("etc/cni/net.d/10-rails.conf").write_text(
        json.dumps({"cniVersion": "1.0.0", "name": "rails", "type": "hpn"} | keys)
    )
    found = [one.evidence for name, one in node.findings() if name == "configuration-refused"]
    assert [refused in one for one in found if "10-rails" in one] == [True] * bool(refused)


def test_a_network_that_the_policy_file_does_not_allow(node: Node) -> None:
    file = node.at("etc/hpn/policy.json")
    for name, text in (
        ("configuration-refused", '{"allowedNames": {"master": ["none"], "pf": [], "device": []}}'),
        ("policy-refused", '{"allowedNames": []}'),
    ):
        file.write_text(text)
        assert [(found, "allowedNames" in one.evidence) for found, one in node.findings()] == [(name, True)]
    file.write_text('{"allowedNames": {"master": ["*"], "pf": ["*"], "kind": ["*"]}}')
    assert node.findings() == []


def as_nobody(node: Node) -> list[tuple[str, str, str]]:
    """Return the findings for a user other than root."""
    node.findings()  # imports files that user nobody may be unable to read
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.chdir(node.root)  # user nobody may be unable to reach it
            node.root = Path()
            if not os.geteuid():
                os.seteuid(65534)
            found = [(name, one.severity, one.evidence) for name, one in node.findings()]
            os.write(writing, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    found = json.loads(told)
    return [(name, severity, evidence) for name, severity, evidence in found]


@pytest.mark.parametrize("fields", [{"result": {"ips": [{}]}}, {"time": "today"}, {"link": []}, {"config": None}])
def test_a_record_of_which_parts_are_not_as_we_write_them(node: Node, fields: dict[str, Any]) -> None:
    """A record with a correct checksum and foreign content gives a finding and no traceback."""
    path = node.save(ALIVE, **fields)
    ((name, one),) = node.findings()
    assert (name, one.evidence.split()[0]) == ("record-unreadable", str(path))


@pytest.mark.parametrize(
    ("fields", "name", "remedy"),
    [
        ({"kind": LOST, "complete": False, "time": OLD}, "record-unreadable", attachment_state.REMEDY),
        ({"kind": LOST, "complete": False, "boot": "older"}, "attachment-dead", "hpn repair"),
        ({"boot": "older"}, "attachment-dead", "hpn gc"),
        ({"complete": False, "time": OLD}, "attachment-incomplete", "hpn repair"),
        ({"refusals": 3}, "attachment-incomplete", "hpn repair"),
    ],
)
def test_a_command_that_mends_it(node: Node, fields: dict[str, Any], name: str, remedy: str) -> None:
    """The tests of hpn repair and hpn gc prove the remedy."""
    path = node.save(ALIVE, **{"trouble": "because", **fields})
    ((found, one),) = node.findings()
    assert (found, one.remedy, one.evidence.split(": ")[0]) == (name, remedy, str(path))


def test_of_a_pod_nothing_is_said(node: Node) -> None:
    """Processes of containers are skipped, because they can have any name."""
    for number, namespace in ((1, 4026531836), (811, 4026531836), (4711, 4026532999)):
        node.process(number, "containerd" if number > 1 else "systemd", "8388608")
        (node.at(f"proc/{number}/ns") / "pid").parent.mkdir(exist_ok=True)
        node.at(f"proc/{number}/ns/pid").symlink_to(f"pid:[{namespace}]")
    ((name, one),) = node.findings()
    assert (name, one.evidence.split("/limits")[0]) == ("memlock", str(node.at("proc/811")))
    node.at("proc/1/ns/pid").unlink()  # as on a node where even root cannot read it: all processes count
    assert [name for name, _ in node.findings()] == ["memlock", "memlock"]


def test_a_sys_that_is_hidden(node: Node) -> None:
    """A hidden /sys gives one finding, and none about devices."""
    (node.root / "sys").rename(node.root / "aside")
    (finding,) = [one for name, one in node.findings() if name in ("not-readable", "rdma-absent")]
    assert f"{node.root}/sys shows no devices" in finding.evidence


def test_json(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    steps = CASES["rdma-cm-missing"](node)
    next(steps)
    path = node.at("dev/infiniband/rdma_cm")
    assert main(["hpn", "doctor", "--json", "--root", str(node.root)]) == 1
    document = json.loads(capsys.readouterr().out)
    (found,) = document["findings"]
    assert document["checks"] == list(CHECKS)
    assert (found["id"], found["severity"], found["evidence"]) == (
        "rdma-cm-missing",
        "warning",
        f"{path} does not exist",
    )
    assert found["remedy"].startswith("modprobe rdma_ucm")


def test_the_worst_is_first_and_notes_are_no_fault(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    broken = [CASES["pcie-relaxed-ordering"](node), CASES["memlock"](node), CASES["plugin-missing"](node)]
    assert [next(one) for one in broken] == ["note", "warning", "error"]
    assert main(["hpn", "doctor", "--root", str(node.root)]) == 1
    lines = capsys.readouterr().out.splitlines()
    words = [line.split()[:2] for line in lines if line.startswith(("error", "warning", "note"))]
    assert words == [["error", "plugin-missing"], ["warning", "memlock"], ["note", "pcie-relaxed-ordering"]]
    assert lines[-1] == f"1 error, 1 warning, 1 note of {len(CHECKS)} checks"
    assert [next(one, None) for one in broken[1:]] == [None, None]
    assert main(["hpn", "doctor", "--root", str(node.root)]) == 0


def test_files_as_the_kernel_has_them() -> None:
    """Files of /proc/sys, /proc and /sys that fail a careless reader."""
    read = Reader(Path("/"))
    assert read.line("/proc/sys/kernel/osrelease") == os.uname().release
    assert read.line("/proc/self/comm") == Path("/proc/self/comm").read_text().strip()
    assert read.number("/sys/class/net/lo/mtu") == int(Path("/sys/class/net/lo/mtu").read_text())
    assert "Max locked memory" in read.line("/proc/self/limits")
    assert read.unread == {}


MULTUS_LIMITS = {
    "none": ("0::/pods/c1", "pods/c1/memory.max", "max", "note"),
    "none, of version 1": ("4:memory:/pods/c1", "memory/pods/c1/memory.limit_in_bytes", "9223372036854771712", "note"),
    "some": ("0::/pods/c1", "pods/c1/memory.max", f"{50 << 20}", "warning"),
    "some, of version 1": ("4:memory:/pods/c1", "memory/pods/c1/memory.limit_in_bytes", f"{50 << 20}", "warning"),
}


@pytest.mark.parametrize(("cgroup", "file", "limit", "severity"), MULTUS_LIMITS.values(), ids=MULTUS_LIMITS)
def test_no_agent_and_how_much_multus_may_have(node: Node, cgroup: str, file: str, limit: str, severity: str) -> None:
    node.process(905, "multus-daemon", "unlimited")
    node.at("proc/905/cgroup").write_text(f"9:pids:/\n{cgroup}\n")
    node.at(f"sys/fs/cgroup/{file}").write_text(f"{limit}\n")
    assert node.findings() == []
    node.at("run/hpn/agent.sock").unlink()
    ((name, found),) = node.findings()
    assert (name, found.severity) == ("agent-missing", severity)
    assert ("/proc/905 (multus-daemon) has a limit of 50 MiB" in found.evidence) == (severity == "warning")


def test_a_socket_of_systemds_is_left_alone(node: Node) -> None:
    """hpn doctor does not connect to a socket of systemd, because that would start the agent.  The kernel's table shows
    that the socket is listening."""
    table = node.at("proc/net/unix")
    line = "0000000000000000: 00000002 00000000 {:08x} 0001 01 4711 /run/hpn/agent.sock\n"
    head = table.read_text()
    table.write_text(head + line.format(0x10000))
    assert node.findings() == []
    node.sockets[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        node.sockets[0].accept()
    table.write_text(head + line.format(0))  # one end of a connection, which has the path too
    assert node.findings() == []
    node.sockets[0].accept()[0].close()


def test_an_irqbalance_that_is_none(node: Node) -> None:
    """A process named irqbalance is not trusted: any user may start one, here with a number too long for int."""
    node.process(700, "irqbalance", "8388608", f"--banirq={'9' * 5000}", "--banirq=0040")
    ((name, one),) = node.findings()
    assert (name, "IRQs 41, 42 of" in one.evidence) == ("irqbalance", True)
