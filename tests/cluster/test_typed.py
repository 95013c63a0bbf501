"""Blocks of commands of docs/user/kubernetes.md that no other test of this tier types."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.host import Host
from cluster.services import PKI
from cluster.two_nodes import Cluster
from support import api_server
from support.bare_nodes import PAGE
from support.pages import ROOT, sections

KUBECONFIG = "/etc/cni/net.d/hpn.kubeconfig"
ACCOUNT = "/etc/hpn/account"


def typed(title: str) -> list[str]:
    """Return the section's commands, of kubectl and of a node, by block."""
    (section,) = (one for one in sections(PAGE) if one.title == title)
    return [block.text for block in section.blocks if block.kind.startswith("sh ")]


def on(node: Host, folder: Path, lines: str) -> str:
    """The output of commands on a node where hpn is in PATH."""
    return node.run("sh", "-ec", f"PATH=/opt/cni/bin:$PATH; cd {folder}\n{lines}").stdout


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Host]:
    """A node that keeps nothing of these tests."""
    it = cluster.nodes["node1"]
    # A host sees the machine's own directory, which the test must not change.
    it.run("mount", "-t", "tmpfs", "tmpfs", "/usr/local/sbin")
    yield it
    it.run("umount", "/usr/local/sbin")
    it.run("sh", "-c", f"rm -rf {KUBECONFIG} /etc/hpn /etc/systemd/system/hpn-* /etc/systemd/system/*.wants/hpn-*")
    cluster.delete("serviceaccount", "hpn", "--namespace=kube-system")
    api_server.remove(cluster)


def test_a_pool_and_a_credential_without_a_daemonset(cluster: Cluster, node: Host, tmp_path: Path) -> None:
    pool, token, install = typed("One pool of addresses for all nodes")
    (tmp_path / "packaging").symlink_to(ROOT / "packaging")
    cluster.shell(f"cd {tmp_path}\n{pool}{token}")
    node.run("mkdir", "-p", ACCOUNT)
    node.run("cp", tmp_path / "token", f"{ACCOUNT}/token")
    node.run("sh", "-c", f"cat >{ACCOUNT}/ca.crt", stdin=cluster.control.path(f"{PKI}/apiserver.crt").read_text())
    assert KUBECONFIG in on(node, tmp_path, install)
    # It knows its node, and may read what a node reads.
    assert json.loads(on(node, tmp_path, "hpn ipam show --cluster --json"))["networks"] == []
    claims = node.run("sh", "-c", f"cut -d. -f2 {ACCOUNT}/token | tr _- /+ | base64 -d 2>/dev/null", check=False)
    assert '"node":{"name":"node1"' in claims.stdout


def test_the_file_of_another_device_plugin(cluster: Cluster, node: Host, tmp_path: Path) -> None:
    resource = {"resourceName": "rail0", "resourcePrefix": "example.com", "selectors": {"pfNames": ["rail0"]}}
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps({"resourceList": [resource]}))
    cluster.kubectl("-n", "kube-system", "create", "configmap", "sriovdp-config", f"--from-file=config.json={file}")
    try:
        fetch, check = typed("Coming from another device plugin")
        cluster.shell(f"cd {tmp_path}\n{fetch}")
        assert "example.com/rail0" in on(node, tmp_path, check)
    finally:
        cluster.delete("configmap", "sriovdp-config", "--namespace=kube-system")
