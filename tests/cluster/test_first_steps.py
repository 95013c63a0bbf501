"""The steps of kubernetes.md without a DaemonSet, typed verbatim, and the removal by install.md."""

import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.host import Host
from cluster.two_nodes import Cluster
from support import bare_nodes
from support.pages import ROOT, sections

UNIT = "hpn-node.service"


def steps() -> dict[str, str]:
    """The code blocks of the page's section, by kind."""
    page = ROOT / "docs" / "user" / "kubernetes.md"
    (section,) = (one for one in sections(page) if one.title == "Without a DaemonSet")
    return {block.kind: block.text for block in section.blocks}


def removal() -> list[str]:
    """The commands of install.md's section on removal."""
    (section,) = (
        one for one in (ROOT / "docs" / "user" / "install.md").read_text().split("\n## ") if one.startswith("Remove")
    )
    return [line.strip() for line in section.splitlines() if line.startswith(" " * 7)]


def left(node: Host) -> str:
    """The files of hpn on the node, by name.

    The search omits /run/written, which holds copies that hide the machine's own files.  It also omits
    /var/lib/containerd: containerd removes remains of other tests' containers later.
    """
    names = ("-name", "*hpn*", "-o", "-name", "*example.com*")
    others = ("(", "-path", "/run/written", "-o", "-path", "/run/proc", "-o", "-path", "/var/lib/containerd", ")")
    return node.run("find", "/etc", "/opt/cni", "/run", "/var/lib", *others, "-prune", "-o",
                    "(", *names, ")", "-print").stdout  # fmt: skip


@pytest.fixture
def tree(whole: Cluster) -> Iterator[Path]:
    """A folder like the source tree after `make binary`, visible to all hosts."""
    with tempfile.TemporaryDirectory(prefix="hpn-test-") as folder:
        Path(folder, "packaging").symlink_to(ROOT / "packaging")
        Path(folder, "dist").mkdir()
        shutil.copy(whole.nodes["node1"].path("/opt/cni/bin/hpn"), Path(folder, "dist"))
        yield Path(folder)


def typed(node: Host, line: str, folder: Path) -> str:
    """Type a line and return its output; take the steps that systemd would take for hpn."""
    if line == "hpn uninstall":
        for name in ("agent", "node"):
            node.service(name).stop()
    said = node.run("sh", "-ec", f"cd {folder}; {line}").stdout
    if line == "dist/hpn install":
        unit = node.run("cat", f"/etc/systemd/system/multi-user.target.wants/{UNIT}").stdout
        assert f"ExecStart={' '.join(node.service('node').command)}\n" in unit
        node.service("node").start()
    return said


@pytest.fixture
def bare(cluster: Cluster, tree: Path) -> Iterator[Cluster]:
    """The cluster with no hpn on its nodes; the state is restored after the test."""
    plugins = ("hpn", "hpn-ipam")
    for node in cluster.nodes.values():
        node.service("agent").stop()
        # A host sees the machine's own directory, which the test must not change.
        node.run("mount", "-t", "tmpfs", "tmpfs", "/usr/local/sbin")
        for name in plugins:
            node.path(f"/opt/cni/bin/{name}").unlink()
    yield cluster
    for node in cluster.nodes.values():
        node.service("node").stop()
        node.run("umount", "/usr/local/sbin")
        for name in plugins:
            node.path(f"/opt/cni/bin/{name}").unlink(missing_ok=True)
            shutil.copy(tree / "dist" / "hpn", node.path(f"/opt/cni/bin/{name}"))
        node.run("sh", "-c", "rm -rf /etc/hpn /etc/systemd/system/hpn-* /etc/systemd/system/*.wants/hpn-*")
    cluster.restore()


def test_from_nothing_to_two_pods_and_back(bare: Cluster, tree: Path) -> None:
    page = steps()
    assert sum(page[kind].count("\n") for kind in ("sh node", "sh kubectl")) == 7
    for node in bare.nodes.values():
        said = [typed(node, line, tree) for line in page["sh node"].splitlines()]
        assert "example.com/rail0" in "".join(said)
    tree.joinpath("network.yaml").write_text(page["yaml network.yaml"])
    tree.joinpath("pods.yaml").write_text(bare_nodes.pair())
    for line in page["sh kubectl"].splitlines():
        words = [str(tree / word) if word.endswith(".yaml") else word for word in shlex.split(line)]
        assert words[0] == "kubectl"
        said_last = bare.kubectl(*words[1:])
    assert " 0% packet loss" in said_last
    given = {pod: bare.execute(pod, "env") for pod in "ab"}
    assert all("PCIDEVICE_EXAMPLE_COM_RAIL0=" in environ for environ in given.values())

    bare.delete("pod", "a", "b", "--grace-period=1")
    bare.delete("network-attachment-definition", "rail0")
    for node in bare.nodes.values():
        assert (node.attachments(), node.leases()) == ([], [])
        for line in removal():
            typed(node, line, tree)
        assert left(node) == ""
