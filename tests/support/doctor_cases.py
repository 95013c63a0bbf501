"""For each finding of hpn doctor, by id: cause it on a healthy node, and apply its remedy.

A case is a generator.  It breaks the node, yields the finding's severity, and then follows the remedy.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.doctor_node import ALIVE, NETWORK, NODE, PFS, VF, Node, listening
from support.sysfs_tree import write

from base.state import durable
from ctl.doctor.model import Severity

Case = Callable[[Node], Iterator[Severity]]
ERROR, WARNING, NOTE = Severity
CASES: dict[str, Case] = {}
REGISTRY = "var/lib/kubelet/plugins_registry"


def case(make: Case) -> Case:
    CASES[make.__name__.replace("_", "-")] = make
    return make


@contextmanager
def changed(path: Path, text: str) -> Iterator[None]:
    """Replace the text of this file, and restore it afterwards."""
    before = path.read_text()
    path.write_text(text)
    yield
    path.write_text(before)


@contextmanager
def offering(path: Path, resource: str) -> Iterator[None]:
    """Run a device plugin on grpcio that offers a resource there; remove its socket afterwards."""
    argv = [sys.executable, Path(__file__).with_name("other_plugin.py"), path, resource]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        yield
        process.communicate("")
    path.unlink(missing_ok=True)


@case
def plugin_missing(node: Node) -> Iterator[Severity]:
    node.at("opt/cni/bin/hpn").chmod(0o644)
    yield ERROR
    node.at("opt/cni/bin/hpn").chmod(0o755)


@case
def plugin_differs(node: Node) -> Iterator[Severity]:
    node.file = node.at("sbin/hpn")
    node.file.write_text("#!/bin/sh\n# another\n")
    yield WARNING
    node.at("opt/cni/bin/hpn").write_text(node.file.read_text())


@case
def daemon_differs(node: Node) -> Iterator[Severity]:
    node.build = "new"
    node.process(900, "ld-hpn.so.2", "unlimited", "agent")
    exe = node.at("proc/900/exe")
    exe.symlink_to("/var/lib/cni/hpn/program/old/ld-hpn.so.2 (deleted)")
    yield WARNING
    exe.unlink()
    exe.symlink_to("/var/lib/cni/hpn/program/new/ld-hpn.so.2")


@case
def socket_dead(node: Node) -> Iterator[Severity]:
    path = node.at("run/hpn/agent.sock")
    node.sockets.pop().close()
    yield WARNING
    path.unlink()
    node.sockets.append(listening(path))


@case
def agent_missing(node: Node) -> Iterator[Severity]:
    path = node.at("run/hpn/agent.sock")
    node.sockets.pop().close()
    path.unlink()
    yield NOTE
    node.sockets.append(listening(path))


@case
def mode(node: Node) -> Iterator[Severity]:
    # The agent is a process that keeps it, and its workers.
    for number in (900, 901):
        node.process(number, "ld-hpn.so.2", "unlimited", "daemonset", "agent")
        node.at(f"proc/{number}/exe").symlink_to("/var/lib/cni/hpn/program/new/ld-hpn.so.2")
    yield NOTE
    node.at("proc/901/exe").unlink()
    # A process that shows the units' log has the same words.
    unit = node.at("etc/systemd/system/hpn-daemonset.service")
    unit.touch()
    assert [found.evidence.partition(":")[0] for _, found in node.findings()] == [f"{unit}"]
    unit.unlink()
    node.at("proc/900/exe").unlink()


@case
def resource_twice(node: Node) -> Iterator[Severity]:
    with offering(node.at(f"{REGISTRY}/hpn-example.com_rail0.sock"), "example.com/rail0"):
        with offering(node.at(f"{REGISTRY}/example.com_rail0.sock"), "example.com/rail0"):
            yield ERROR
        assert node.findings() == []
        with (
            offering(node.at(f"{REGISTRY}/gpu-1.sock"), "gpu.example.com"),
            offering(node.at(f"{REGISTRY}/gpu-2.sock"), "gpu.example.com"),
            offering(node.at(f"{REGISTRY}/hpn-hpn-cni.io.sock"), "hpn-cni.io"),
        ):
            assert node.findings() == []  # a driver may serve twice, while a new version takes over
            with offering(node.at(f"{REGISTRY}/hpn-cni.io-reg.sock"), "hpn-cni.io"):
                assert [one for one, _ in node.findings()] == ["resource-twice"]
        shutil.rmtree(node.at(REGISTRY))


@case
def policy_refused(node: Node) -> Iterator[Severity]:
    file = node.at("etc/hpn/policy.json")
    file.write_text('{"allowedPaths": {"dataDir": ["*"]}}')
    yield ERROR
    file.write_text('{"allowedPaths": {"stateDir": ["/var/lib/tenants"]}}')


@case
def configuration_refused(node: Node) -> Iterator[Severity]:
    wrong = {**NETWORK, "plugins": [{**NETWORK["plugins"][0], "mtuu": 9000}]}
    with changed(node.at("etc/cni/net.d/10-rail0.conflist"), json.dumps(wrong)):
        yield ERROR


@case
def runtime_too_old(node: Node) -> Iterator[Severity]:
    status = "Package: {}\nStatus: install ok {}\nDescription: one\n more: text\nVersion: {}\n\n"
    packages = [("runc", "installed", "1.1.5"), ("containerd", "installed", "1.6.20~ds1-1+deb12u1")]
    packages.append(("containerd.io", "config-files", "1.7.0"))
    node.at("var/lib/dpkg/status").write_text("".join(status.format(*package) for package in packages))
    assert node.findings() == []
    path = node.at("etc/cni/net.d/10-rail0.conflist")
    path.write_text(json.dumps({**NETWORK, "cniVersion": "1.1.0"}))
    yield ERROR
    path.write_text(json.dumps({**NETWORK, "cniVersions": ["1.0.0", "1.1.0"]}))
    assert node.findings() == []
    path.write_text(json.dumps({**NETWORK, "cniVersion": "1.1.0"}))
    node.at("etc/cni/net.d/00-multus.conf").write_text('{"type": "multus"}')


@case
def cdi_disabled(node: Node) -> Iterator[Severity]:
    status = "Package: containerd\nStatus: install ok installed\nVersion: 1.7.24~ds1-1\n\n"
    node.at("var/lib/dpkg/status").write_text(status)
    file, drop_in = node.at("etc/containerd/config.toml"), node.at("etc/containerd/conf.d/hpn.toml")
    file.write_text('version = 2\n# enable_cdi = true\nimports = ["conf.d/*.toml"]\n')
    assert node.findings() == [], "no container gets a device by CDI"
    node.at("etc/hpn/devices.yaml").write_text(NODE.replace("kind: vf,", "kind: vf, cdi: true,"))
    yield ERROR
    drop_in.write_text('[plugins."io.containerd.grpc.v1.cri"]\n  enable_cdi = true\n')


@case
def node_file_refused(node: Node) -> Iterator[Severity]:
    with changed(node.at("etc/hpn/devices.yaml"), "resourcess: []\n"):
        yield ERROR


@case
def node_not_running(node: Node) -> Iterator[Severity]:
    node.at(f"{REGISTRY}/.hpn-node.lock").touch()
    node.sockets.append(listening(node.at(f"{REGISTRY}/csi.example.com-reg.sock")))  # another driver's
    yield ERROR
    node.sockets.append(listening(node.at(f"{REGISTRY}/hpn-example.com_rail0.sock")))


@case
def node_not_as_asked(node: Node) -> Iterator[Severity]:
    with changed(node.at("etc/hpn/devices.yaml"), NODE.replace("numVfs: 1", "numVfs: 8")):
        yield WARNING


@case
def rdma_mode(node: Node) -> Iterator[Severity]:
    with changed(node.at("sys/module/ib_core/parameters/netns_mode"), "Y\n"):
        yield ERROR


@case
def rdma_absent(node: Node) -> Iterator[Severity]:
    path = node.at("sys/module/ib_core/parameters/netns_mode")
    path.unlink()
    yield ERROR
    path.write_text("N\n")


@case
def rdma_cm_missing(node: Node) -> Iterator[Severity]:
    node.at("dev/infiniband/rdma_cm").unlink()
    yield WARNING
    node.at("dev/infiniband/rdma_cm").touch()


@case
def memlock(node: Node) -> Iterator[Severity]:
    node.process(811, "containerd", "8388608")
    yield WARNING
    node.process(811, "containerd", "unlimited")


@case
def gid_table_full(node: Node) -> Iterator[Severity]:
    port = node.pci(PFS[0]) / "infiniband/mlx5_0/ports/1"
    for index in range(2, 9):
        node.gid(port, index, f"fe80::{index + 1:x}")
    yield WARNING
    node.gid(port, 8, "::")


@case
def vf_guid_zero(node: Node) -> Iterator[Severity]:
    write(node.pci(VF) / "net/rail0v0", type=32)
    hca = node.pci(VF) / "infiniband/mlx5_2"
    write(hca, node_guid="0000:0000:0000:0000")
    yield WARNING
    write(node.pci(VF) / "net/rail0v0", type=1)
    ((name, found),) = node.findings()
    assert (name, "vf 0 mac MAC" in found.remedy) == ("vf-guid-zero", True)
    write(hca, node_guid="0200:0000:0000:0007")


@case
def vf_port_down(node: Node) -> Iterator[Severity]:
    for path in (node.pci(PFS[0]) / "net/rail0", node.pci(VF) / "net/rail0v0"):
        write(path, type=32)
    (port,) = (node.pci(VF) / "infiniband").glob("*/ports/1")
    write(port, state="1: DOWN")
    yield WARNING
    write(port, state="4: ACTIVE")
    for path in (node.pci(PFS[0]) / "net/rail0", node.pci(VF) / "net/rail0v0"):
        write(path, type=1)


@case
def vf_needed(node: Node) -> Iterator[Severity]:
    over = node.sys.root / "class/net/rail0v0.7"
    node.sys.netdev("rail0v0.7", below=["rail0v0"])
    yield WARNING
    over.unlink()


@case
def network_broken(node: Node) -> Iterator[Severity]:
    for name, text in (("00-new.conflist", "{"), ("00-new.conflist", '{"name": "a"}'), ("00-new.conf", "[]")):
        path = node.at(f"etc/cni/net.d/{name}")
        path.write_text(text)
        assert [one for one, _ in node.findings()] == ["network-broken"]
        path.unlink()
    path.write_text("{}")
    yield ERROR
    path.unlink()


@case
def device_nodes_differ(node: Node) -> Iterator[Severity]:
    """After another pod's ADD the finding no longer applies."""
    uid = "IgnoreUnknown=1;K8S_POD_UID=one"
    node.save(ALIVE, link={"device": VF}, args=uid)
    durable.write(node.at(f"run/hpn/rdma/{VF}"), {"pod": "one", "nodes": ["uverbs7", "umad2", "issm2"]})
    yield WARNING
    node.save(ALIVE, link={"device": VF}, args=uid.replace("one", "two"))


@case
def state_unsafe(node: Node) -> Iterator[Severity]:
    node.at("run/hpn").chmod(0o777)
    yield ERROR
    node.at("run/hpn").chmod(0o700)


@case
def record_unreadable(node: Node) -> Iterator[Severity]:
    path = node.at("run/hpn/attachments/rail0/1:hpn0.json")
    path.write_text("{")
    yield ERROR
    path.unlink()  # as its DEL does


@case
def leases_unreadable(node: Node) -> Iterator[Severity]:
    node.lease("1")
    path = node.at("var/lib/cni/hpn/ipam/net/quarantine/leases.1")
    path.write_text("?")
    yield ERROR
    path.unlink()


@case
def attachment_dead(node: Node) -> Iterator[Severity]:
    path = node.save(ALIVE, boot="another")
    yield WARNING
    path.unlink()  # as hpn gc does


@case
def attachment_incomplete(node: Node) -> Iterator[Severity]:
    path = node.save(ALIVE, complete=False, time="2026-01-02T03:04:05.678+00:00")
    yield WARNING
    path.unlink()


@case
def attachment_stranded(node: Node) -> Iterator[Severity]:
    path = node.at("run/hpn/refused/rail0/0123456789abcdef:hpn0.json.1")
    node.save(ALIVE, trouble="no daemon").rename(path)
    yield WARNING
    path.unlink()


@case
def pool_nearly_full(node: Node) -> Iterator[Severity]:
    for number in range(9):
        node.lease(f"{number}", "10.9.0.1", "10.9.0.10")
    yield WARNING
    node.net.call("DEL", "0")


@case
def not_readable(node: Node) -> Iterator[Severity]:
    folders = [node.at("run/hpn/attachments/rail0"), node.at("dev/infiniband")]
    for folder in folders:
        folder.chmod(0)
    yield NOTE
    for folder in folders:
        folder.chmod(0o700)
