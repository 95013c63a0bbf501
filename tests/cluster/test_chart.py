"""packaging/helm on nodes without any part of hpn, with the commands of docs/user/kubernetes.md."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml
from cluster.space import Failed, until
from cluster.two_nodes import Cluster
from support import crowd, helm
from support.bare_nodes import (
    NAME,
    PAGE,
    RESOURCE,
    daemons,
    make_another,
    offered,
    pair,
    pings,
    pods_outlive_the_daemons,
    programs,
    put_image,
    status,
    typed,
)
from support.distributions import USUAL, imitated
from support.doctor_cases import offering
from support.pages import shown

TITLE = "With Helm"
Shell: TypeAlias = Callable[[str], str]


def resources(*kinds: str) -> str:
    """A device file with rail0, rail1 ... of these kinds."""
    listed = [
        {"name": f"example.com/rail{at}", "kind": kind, "selectors": {"ifNames": [f"rail{at}"]}}
        for at, kind in enumerate(kinds)
    ]
    return json.dumps({"resources": listed})


def pods(cluster: Cluster) -> dict[str, str]:
    """The uid of each node's pod of the DaemonSet."""
    return {node: pod["metadata"]["uid"] for node, pod in daemons(cluster).items()}


def second(cluster: Cluster) -> set[str]:
    """What the nodes offer of rail1."""
    return {node["status"]["allocatable"].get("example.com/rail1", "0") for node in cluster.get("nodes")["items"]}


def test_from_an_empty_node_to_two_pods_and_away(bare: Cluster, tree: Path, shell: Shell) -> None:
    install, check, upgrade, _, uninstall, *_ = typed(TITLE)
    shell(install)
    until(lambda: set(offered(bare).values()) == {"100"}, "both nodes to offer rail0", 120, 0.2)
    said = shell(f"{check.strip()} --logs")
    assert said.count("Phase:          Succeeded") == 2
    assert "POD LOGS: hpn-test" in said
    assert list(attached_by_helm(bare)) == ["hpn-test"]  # the others have gone
    a_test_that_fails(bare, tree, shell)
    bare.kubectl("apply", "--filename=-", stdin=pair())
    bare.wait("Ready", "pod/a", "pod/b")
    pings(bare)
    containers, before = bare.containers("a", "b"), pods(bare)

    # These values restart no pod of the DaemonSet, another file does.
    helm.write(tree, metrics={"address": ""}, clusterAddresses={"enabled": True})
    shell(upgrade)
    assert pods(bare) == before
    assert sys_is_read_only(bare) == ["True"] * 2
    helm.write(tree, devices=resources("master", "master"), provision=True)
    shell(upgrade)
    assert not pods(bare).items() & before.items()
    assert sys_is_read_only(bare) == ["False"] * 2
    until(lambda: second(bare) == {"100"}, "both nodes to offer rail1", 120, 0.2)

    a_file_that_is_refused(bare, tree, shell)
    assert second(bare) == {"100"}
    with pytest.raises(Failed, match="additional properties 'nodeselector' not allowed"):
        shell(f"{upgrade.splitlines()[0]} --set nodeselector.a=b")

    shell(uninstall)
    pods_outlive_the_daemons(bare, containers)
    left = bare.kubectl("get", "secrets,configmaps,serviceaccounts", "--namespace=kube-system", "--output=name")
    assert [one for one in left.splitlines() if "hpn" in one] == []
    # Nor does it forget who owns an address.
    kept = bare.kubectl("get", "crds", "--selector=app.kubernetes.io/name=hpn", "--output=name").splitlines()
    assert [one.rpartition("/")[2] for one in kept] == ["hpnblocks.hpn-cni.io", "hpnpools.hpn-cni.io"]
    bare.delete(*kept)


def a_test_that_fails(cluster: Cluster, tree: Path, shell: Shell) -> None:
    """Only node1 has the master of the first network: the pod on node2 fails by itself, its events have the reason, and
    the other networks are tried all the same."""
    _, check, upgrade, *_ = typed(TITLE)
    plugin = {"type": "hpn", "master": "rail9", "ipam": {"type": "hpn-ipam", "subnet": "10.56.9.0/24"}}
    another = {"name": "rail9", "config": {"plugins": [plugin]}}
    helm.write(tree, networks=[another, *helm.values()["networks"]])
    shell(upgrade.splitlines()[0])
    cluster.nodes["node1"].run("ip", "link", "add", "rail9", "up", "type", "bridge")
    with pytest.raises(Failed, match=r"pod hpn-test-rail9-[12] failed"):
        shell(f"{check.strip()} --logs")
    found = attached_by_helm(cluster)
    assert found.pop("hpn-test")[1] == "Succeeded"
    assert sorted(one for name, one in found.items() if "rail0" in name) == [
        ("node1", "Succeeded"), ("node2", "Succeeded"),
    ]  # fmt: skip
    assert sorted(one for name, one in found.items() if "rail9" in name) == [
        ("node1", "Succeeded"), ("node2", "Failed"),
    ]  # fmt: skip
    (failed,) = (name for name, one in found.items() if one[1] == "Failed")
    words = ("get", "events", "--namespace=kube-system", f"--field-selector=involvedObject.name={failed}")
    assert "'rail9' is not an interface of" in cluster.kubectl(*words)
    cluster.delete("pod", *found, "--namespace=kube-system", "--grace-period=1")
    cluster.nodes["node1"].run("ip", "link", "delete", "rail9")


def attached_by_helm(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """The node and the phase of each pod of `helm test`."""
    found = cluster.get("pods", "--namespace=kube-system")["items"]
    pods = {pod["metadata"]["name"]: (pod["spec"].get("nodeName", ""), pod["status"]["phase"]) for pod in found}
    return {name: one for name, one in pods.items() if name.startswith("hpn-test")}


# Whether the containers of hpn node, by the paths of their processes, have a read-only /sys.
READ_ONLY = """
import glob, os
for path in glob.glob("/proc/[0-9]*/comm"):
    if open(path).read() == "hpn-node\\n":
        print(bool(os.statvfs(path.replace("comm", "root/sys")).f_flag & os.ST_RDONLY))
"""


def sys_is_read_only(cluster: Cluster) -> list[str]:
    return [node.run(sys.executable, "-c", READ_ONLY).stdout.strip() for node in cluster.nodes.values()]


def a_file_that_is_refused(cluster: Cluster, tree: Path, shell: Shell) -> None:
    """It stops the rollout at the first node; after the rollback all pods have the earlier file."""
    _, _, upgrade, rollback, *_ = typed(TITLE)
    before = pods(cluster)
    helm.write(tree, devices=resources("master", "mistake"))
    shell(upgrade.splitlines()[0])
    explain = typed("As a DaemonSet")[3]
    # The command fails until the container exists.
    until(lambda: "mistake" in shell(f"{explain.strip()} || true"), "the reason", 120, 0.5)
    assert len(pods(cluster).items() & before.items()) == 1
    # A reboot starts the other node's pod again, with its own file.
    files = cluster.get("configmaps", "--namespace=kube-system")["items"]
    used = [volume for pod in daemons(cluster).values() for volume in pod["spec"]["volumes"] if "configMap" in volume]
    names = {volume["configMap"]["name"] for volume in used}
    assert len(names) == 2
    assert names <= {one["metadata"]["name"] for one in files}
    shell(rollback)
    until(lambda: len(pods(cluster)) == 2, "the pod of the other node", 120, 0.2)


def test_from_kustomize_to_helm_and_another_version_and_back(bare: Cluster, tree: Path, shell: Shell) -> None:
    """Pods stay, and others come and go.  After the end of `hpn node` only those without a device do."""
    apply, (cordon, *_, uncordon), *_ = (block.splitlines() for block in typed("As a DaemonSet"))
    _, check, upgrade, rollback, uninstall, *_, install = typed(TITLE)
    shell("\n".join(apply))
    until(lambda: set(offered(bare).values()) == {"100"}, "both nodes to offer rail0", 120, 0.2)
    with crowd.undisturbed(bare, last=("plain",)):
        before = pods(bare)
        shell(f"{cordon}\n{install}{uncordon}")
        assert not pods(bare).items() & before.items()
        original = programs(bare)
        make_another(bare, tree)
        put_image(bare, tree, "2")
        helm.write(tree, image={"repository": NAME, "tag": "2"})
        shell(f"{cordon}\n{upgrade}")
        assert programs(bare) == {(tree / "dist" / "hpn").read_bytes()} != original
        shell(f"{rollback}{uncordon}")
        assert programs(bare) == original
        assert shell(check).count("Phase:          Succeeded") == 2
        crowd.await_more(bare)
        shell(cordon)
        crowd.await_end(bare, "devices")
        shell(uninstall)
        until(lambda: not daemons(bare), "the DaemonSet's pods to end", 120, 0.2)


@pytest.fixture(params=["k3s", "microk8s"])
def elsewhere(bare: Cluster, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    with imitated(bare, request.param) as values:
        yield values


def test_what_stops_an_installation(bare: Cluster, tree: Path, shell: Shell, elsewhere: dict[str, str]) -> None:
    """Helm or the pod's status gives the reason, and nothing is replaced."""
    install, _, upgrade, rollback, *_ = typed(TITLE)
    helm.write(tree, **elsewhere)
    start, ready = install.splitlines()

    name = "network-attachment-definitions.k8s.cni.cncf.io"
    definition = bare.kubectl("get", "crd", name, "--output=json")
    bare.delete("crd", name)
    try:
        until(lambda: "k8s.cni.cncf.io" not in bare.kubectl("api-versions"), "the API server to forget it", 120, 0.5)
        with pytest.raises(
            Failed, match="networks: this cluster has no NetworkAttachmentDefinition, which comes with M"
        ):
            shell(start)
    finally:
        bare.kubectl("apply", "--filename=-", stdin=definition)
        bare.kubectl("wait", "--for=condition=Established", f"crd/{name}")
    assert daemons(bare) == {}

    plugins = elsewhere["cniBinDir"]
    kubelet = elsewhere.get("kubeletDir", "")
    first, second = bare.nodes.values()
    if kubelet:
        first.run("umount", "--recursive", kubelet)
    # Read-only by this path, and not by the usual one, to which a shared mount would propagate.
    first.run("mount", "--make-private", plugins)
    first.run("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", plugins)
    second.run("ln", "-s", "/usr/lib/cni/hpn", f"{plugins}/hpn")
    shell(start)
    until(lambda: "Read-only file system" in status(bare, "node1"), "node1 to refuse the program", 120, 0.5)
    package = "the Debian package hpn-cni installed /opt/cni/bin/hpn; install with apt, or remove "
    until(lambda: package in status(bare, "node2"), "node2 to keep the package", 120, 0.5)
    assert second.run("readlink", f"{plugins}/hpn").stdout == "/usr/lib/cni/hpn\n"
    first.run("mount", "-o", "remount,rw", plugins)
    what_stops_none(bare, plugins, kubelet)
    first.run("umount", plugins)
    if kubelet:
        first.run("mount", "--rbind", USUAL["kubeletDir"], kubelet)
    bare.kubectl("--namespace=kube-system", "delete", "pod", daemons(bare)["node1"]["metadata"]["name"])
    shell(ready)
    until(lambda: set(offered(bare).values()) == {"100"}, "both nodes to offer rail0", 120, 0.2)

    of_another_architecture(tree)
    put_image(bare, tree, "2")
    before = programs(bare)
    helm.write(tree, image={"repository": NAME, "tag": "2"}, **elsewhere)
    shell(upgrade.splitlines()[0])
    until(lambda: any("exec format error" in status(bare, node) for node in bare.nodes), "a refusal", 120, 0.5)
    assert programs(bare) == before
    shell(rollback)


def what_stops_none(cluster: Cluster, plugins: str, kubelet: str) -> None:
    """kubelet shows the notes of an installation: on node1 the plugins' directory is wrong, and that of kubelet if it
    was given; node2 has no Multus, and another device plugin.  node2 keeps a package until both are so."""
    second, socket = cluster.nodes["node2"], "/var/lib/kubelet/plugins_registry/other.sock"
    second.run("mv", f"{plugins}/multus", f"{plugins}/away")
    try:
        with offering(second.path(socket), RESOURCE):
            second.run("rm", f"{plugins}/hpn")
            # Kubelet tries again by itself.
            until(lambda: all(noted(cluster, node) for node in cluster.nodes), "both to be installed", 300, 0.5)
    finally:
        second.run("mv", f"{plugins}/away", f"{plugins}/multus")
    mode = "this node runs hpn in containers: systemd does not run on this node"
    wanted = {
        "node1": [mode, f"{kubelet} is another directory than kubelet's, ", "/opt/cni/bin has no other plugin: "],
        "node2": [mode, f"{RESOURCE}: {kubelet or USUAL['kubeletDir']}/", "/opt/cni/bin has no Multus: "],
    }
    if not kubelet:
        del wanted["node1"][1]
    for node, lines in wanted.items():
        found = noted(cluster, node)
        assert [one[: len(line)] for one, line in zip(found, lines, strict=True)] == lines


def noted(cluster: Cluster, node: str) -> list[str]:
    """The lines of the container install in the pod's status, once it has succeeded."""
    (one,) = daemons(cluster)[node]["status"].get("initContainerStatuses", [{"state": {}}])
    ended = one["state"].get("terminated", {"exitCode": 1})
    return [] if ended["exitCode"] else ended.get("message", "nothing").splitlines()


def of_another_architecture(tree: Path) -> None:
    """Give the program the machine number of arm64 (man 5 elf)."""
    file = tree / "dist" / "hpn"
    data = bytearray(file.read_bytes())
    data[18:20] = (183).to_bytes(2, "little")
    file.write_bytes(data)


@pytest.fixture
def unlabelled(bare: Cluster) -> Iterator[None]:
    yield
    bare.kubectl("label", "nodes", "--all", "node.kubernetes.io/instance-type-", "zone-")


def test_pools_of_nodes(bare: Cluster, tree: Path, shell: Shell, unlabelled: None) -> None:
    """node2 joins a pool, and later two of them; the DaemonSets never have two pods on a node."""
    install, *_ = typed(TITLE)
    (upgrade,) = (block for block in typed(TITLE) if "pools.yaml" in block)
    shown_pools = yaml.safe_load(shown(PAGE, TITLE, "yaml pools.yaml"))
    (tree / "pools.yaml").write_text(json.dumps(shown_pools))
    (pool,) = shown_pools["pools"]
    shell(install)
    until(lambda: set(offered(bare).values()) == {"100"}, "both nodes to offer rail0", 120, 0.2)

    label = next(f"{key}={value}" for key, value in pool["nodeSelector"].items())
    bare.kubectl("label", "node", "node2", label)
    shell(upgrade)
    assert owners(bare) == [("node1", "hpn"), ("node2", "hpn-dgx")]
    until(lambda: offered(bare)["node1"] == "100" and second(bare) == {"0", "100"}, "each node's resource", 120, 0.2)

    # Both pools select node2: Helm refuses it, and changes nothing.
    before = pods(bare)
    other = {"name": "zone", "nodeSelector": {"zone": "z"}, "devices": resources("master")}
    bare.kubectl("label", "node", "node2", "zone=z")
    (tree / "pools.yaml").write_text(json.dumps({"pools": [pool, other]}))
    with pytest.raises(Failed, match="pools: node node2 is in dgx and zone; change a nodeSelector, or "):
        shell(upgrade.splitlines()[0])
    assert pods(bare) == before
    # The node gets its second label later: the first pool has it.
    bare.kubectl("label", "node", "node2", label.partition("=")[0] + "-")
    shell(upgrade)
    assert owners(bare) == [("node1", "hpn"), ("node2", "hpn-zone")]
    bare.kubectl("label", "node", "node2", label)
    until(lambda: owners(bare) == [("node1", "hpn"), ("node2", "hpn-dgx")], "the first pool to have node2", 120, 0.2)
    until(lambda: second(bare) == {"0", "100"}, "its resource", 120, 0.2)


def owners(cluster: Cluster) -> list[tuple[str, str]]:
    """The node and the DaemonSet of each pod."""
    found = cluster.get("pods", "--namespace=kube-system", "--selector=app.kubernetes.io/name=hpn")["items"]
    owned = [(pod["spec"].get("nodeName", ""), pod["metadata"]["ownerReferences"][0]["name"]) for pod in found]
    return sorted(owned)


MONITORS = "podmonitors.monitoring.coreos.com"


@pytest.fixture
def monitors(cluster: Cluster) -> Iterator[None]:
    """A definition of PodMonitors with the fields that the chart writes."""
    label, text = {"type": "object", "additionalProperties": {"type": "string"}}, {"type": "string"}
    rule = dict.fromkeys(("action", "regex", "replacement", "targetLabel"), text)
    rules = thing(relabelings=each(thing(sourceLabels=each(text), **rule)))
    spec = thing(jobLabel=text, selector=thing(matchLabels=label), podMetricsEndpoints=each(rules))
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": thing(spec=spec)}}
    names = {"kind": "PodMonitor", "plural": "podmonitors"}
    cluster.apply({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": MONITORS},
        "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": [version]},
    })  # fmt: skip
    cluster.wait("Established", f"crd/{MONITORS}")
    yield
    cluster.delete("crd", MONITORS)


def thing(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def each(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


@pytest.fixture
def account(cluster: Cluster) -> Iterator[None]:
    """The chart's account, which the API server looks up for a pod, also in a dry run."""
    cluster.kubectl("create", "serviceaccount", "hpn", "--namespace=kube-system")
    yield
    cluster.kubectl("delete", "serviceaccount", "hpn", "--namespace=kube-system")


def test_the_api_server_takes_every_object(cluster: Cluster, monitors: None, account: None) -> None:
    values = helm.values() | {
        "label": {"enabled": True},
        "metrics": {
            "address": "127.0.0.1:9617", "podMonitor": {"enabled": True, "labels": {"team": "a"}},
            "dashboard": {"enabled": True},
        },
        "image": {"pullPolicy": "Never"},
        "clusterAddresses": {"enabled": True, "token": True, "gc": {"enabled": True}}, "claims": {"enabled": True},
        "pools": [
            {"name": "a", "nodeSelector": {"p": "a"}, "devices": "rdmaNamespaces: exclusive", "provision": True},
            {"name": "b", "nodeSelector": {"q": "b", "r": "c"}, "env": {"A": "2"}, "maxUnavailable": 1},
        ],
        "env": {"A": "1"}, "imagePullSecrets": [{"name": "secret"}],
    }  # fmt: skip
    words = (str(helm.built("cluster")), "template", "hpn", str(helm.CHART), "--namespace=kube-system", "--values=-")
    made = subprocess.run(words, input=json.dumps(values), capture_output=True, text=True, check=True).stdout
    taken = cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "--filename=-", stdin=made)
    kinds = [one["kind"] for each in yaml.safe_load_all(made) if each for one in each.get("items", [each])]
    assert len(taken.splitlines()) == len(kinds)
    assert (kinds.count("PodMonitor"), kinds.count("DaemonSet")) == (1, 3)
