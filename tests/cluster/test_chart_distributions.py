"""packaging/helm/hpn/distributions on nodes that imitate them, with the commands of docs/user/kubernetes.md."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from cluster import claims
from cluster.host import Host
from cluster.space import until
from cluster.two_nodes import CONTROL, Cluster
from support import helm
from support.bare_nodes import RESOURCE, offered, status, typed
from support.distributions import NETWORKS, USUAL, imitated

TITLE = "With Helm"
Shell: TypeAlias = Callable[[str], str]


@pytest.fixture
def of_another_user(bare: Cluster) -> Iterator[None]:
    """The directories of CNI belong to another user on both nodes, as kubespray makes them."""
    for node in bare.nodes.values():
        node.run("chown", "1000", USUAL["cniBinDir"], NETWORKS)
    yield
    for node in bare.nodes.values():
        node.run("chown", "0", USUAL["cniBinDir"], NETWORKS)


@pytest.fixture
def dirs_of_cdi(bare: Cluster) -> Iterator[Host]:
    """node1, whose containerd has the cdi_spec_dirs of Talos."""
    node = bare.nodes["node1"]
    service = node.service("containerd")
    before, file = service.command, "/etc/kubernetes/containerd.toml"
    (given,) = (word.partition("=")[2] for word in before if word.startswith("--config="))
    section = "[plugins.'io.containerd.cri.v1.runtime']\n"
    text = Path(given).read_text()
    assert text.count(section) == 1
    node.path(file).write_text(
        text.replace(section, f"{section}  cdi_spec_dirs = ['/var/cdi/static', '/var/cdi/dynamic']\n")
    )

    def restart(command: Sequence[str]) -> None:
        service.stop()
        service.command = command
        service.start()
        bare.wait_ready()

    restart([word.replace(given, file) for word in before])
    yield node
    restart(before)


def test_the_distributions(bare: Cluster, tree: Path, shell: Shell, of_another_user: None, dirs_of_cdi: Host) -> None:
    """One after the other on the same nodes: each installs hpn, offers devices, and attaches pods on both nodes."""
    install, check, upgrade, rollback, *_ = typed(TITLE)
    a_policy_file_that_no_add_reads(bare, shell)
    shell(install.splitlines()[1])
    for name in ("", "k0s", "openshift", "bottlerocket", "talos"):
        with imitated(bare, name) if name else nullcontext({}) as values:
            if name:
                helm.write(tree, **values)
                shell(upgrade)
            until(lambda: set(offered(bare).values()) == {"100"}, f"devices with the values of {name}", 120, 0.2)
            assert shell(check).count("Phase:          Succeeded") == 2, name
            if name == "talos":
                a_claim_by_cdi(bare, tree, shell, values)
                shell(rollback)
                until(lambda: set(offered(bare).values()) == {"100"}, "the plugin's devices after claims", 240, 0.5)


def a_policy_file_that_no_add_reads(cluster: Cluster, shell: Shell) -> None:
    """The pod's status has the sentence, and nothing is installed until the file is corrected."""
    node, file = cluster.nodes["node2"], "/etc/hpn/policy.json"
    node.run("sh", "-c", f'mkdir -p /etc/hpn; echo \'{{"allowedPaths": {{"dataDir": ["*"]}}}}\' >{file}')
    shell(typed(TITLE)[0].splitlines()[0])
    sentence = f"every ADD of this version would fail; nothing was replaced.  the policy file {file}: allowedPaths."
    until(lambda: sentence in status(cluster, "node2"), "the pod's status to have the reason", 120, 0.5)
    assert not node.path("/opt/cni/bin/hpn").exists()
    node.run("rm", file)


def a_claim_by_cdi(cluster: Cluster, tree: Path, shell: Shell, values: dict[str, Any]) -> None:
    """A container gets a claim's device by a file in the CDI directory of the values."""
    _, _, upgrade, *_ = typed(TITLE)
    entry = {"name": RESOURCE, "kind": "master", "by": "dra", "selectors": {"ifNames": ["rail0"]}}
    # This cluster has no kube-proxy.
    server = {"KUBERNETES_SERVICE_HOST": CONTROL, "KUBERNETES_SERVICE_PORT": "6443"}
    by_dra = {"devices": json.dumps({"resources": [entry]}), "claims": {"enabled": True}, "env": server}
    helm.write(tree, **values, **by_dra)
    shell(upgrade)
    until(lambda: cluster.get("resourceslices")["items"], "the nodes' slices", 120, 0.5)
    cluster.apply(
        claims.device_class("rail0", RESOURCE, attach="none"),
        claims.template("rail0", claims.spec("rail0")),
        claims.pod("claimed", node="node1", template="rail0"),
    )
    cluster.wait("Ready", "pod/claimed")
    files = cluster.nodes["node1"].run("sh", "-c", "ls /var/cdi/dynamic /var/run/cdi").stdout
    assert [line for line in files.splitlines() if line.startswith("hpn-claim-")], files
    findings = cluster.nodes["node1"].run("/opt/cni/bin/hpn", "doctor", "--json", check=False).stdout
    found = {one["id"]: one for one in json.loads(findings)["findings"]}
    assert not found.keys() & {"slices-missing", "claim-waits", "not-readable"}, found
    cluster.delete("pod", "claimed")
    cluster.delete("resourceclaimtemplates,deviceclasses", "rail0")
