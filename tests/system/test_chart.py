"""packaging/helm: the chart's objects are those of packaging/kubernetes, and it refuses unknown values."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml
from conftest import require
from support import helm
from support.pages import ROOT, shown

BASE = ROOT / "packaging" / "kubernetes"
PAGE = ROOT / "docs" / "user" / "kubernetes.md"
NAMESPACE = "kube-system"
# Helm leaves these, as `kubectl delete -k packaging/kubernetes` leaves the files of earlier rollouts.
KEPT = ("ConfigMap hpn-node", *(f"CustomResourceDefinition hpn{one}s.hpn-cni.io" for one in ("block", "grid")))
NAMESPACED = ("ServiceAccount", "DaemonSet", "ConfigMap", "CronJob")
DIGEST = f"sha256:{'0123456789abcdef' * 4}"

Objects: TypeAlias = dict[str, dict[str, Any]]


def by_name(text: str) -> Objects:
    """The objects by kind and name, without the digests at the end of ConfigMaps' names."""
    text = re.sub(r"\b(hpn-node|hpn-ipam-gc)-[0-9a-z]{10}\b", r"\1", text)
    return {f"{one['kind']} {one['metadata']['name']}": one for one in yaml.safe_load_all(text) if one}


class Chart:
    """The chart, rendered without a cluster."""

    def __init__(self, program: Path) -> None:
        self.program = program

    def run(self, *words: str, **values: Any) -> "subprocess.CompletedProcess[str]":
        argv = [self.program, "template", "hpn", helm.CHART, f"--namespace={NAMESPACE}", "--values=-", *words]
        return subprocess.run(argv, input=json.dumps(values), capture_output=True, text=True, check=False)

    def objects(self, *words: str, **values: Any) -> Objects:
        done = self.run(*words, **values)
        assert done.returncode == 0, done.stderr
        return by_name(done.stdout)

    def like_kustomize(self, **values: Any) -> Objects:
        """The objects without what only Helm has: the annotation that keeps some, and its default namespace."""
        found = self.objects(**values)
        for name, one in found.items():
            if name in KEPT:
                assert one["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
            if one["kind"] in NAMESPACED:
                one["metadata"].setdefault("namespace", NAMESPACE)
        return found


@pytest.fixture(scope="session")
def chart() -> Chart:
    return Chart(helm.built("system"))


@pytest.fixture(scope="session")
def kustomize() -> Callable[[Path], Objects]:
    """Returns the objects of a folder with a kustomization."""
    built = subprocess.run([ROOT / "netns-fixtures/cluster/build"], capture_output=True, text=True, check=False)
    if built.returncode:
        require("system", built.stderr.strip())
    kubectl = Path(built.stdout.strip(), "kubectl")
    return lambda folder: by_name(subprocess.check_output([kubectl, "kustomize", folder], text=True))


@pytest.mark.parametrize(
    ("folder", "more", "values"),
    [
        (".", "", {}),
        (".", shown(PAGE, "As a DaemonSet", "yaml"), {"metrics": {"address": "127.0.0.1:9617"}}),
        (".", "components: [cluster/token]\n", {"clusterAddresses": {"token": True}}),
        (".", "components: [way/pod]\n", {"way": "pod"}),
        (".", "components: [way/service]\n", {"way": "service"}),
        ("cluster", "", {"clusterAddresses": {"enabled": True}}),
        ("cluster-gc", "", {"clusterAddresses": {"gc": {"enabled": True}}}),
    ],
    ids=["defaults", "metrics", "a credential of its own", "pod", "service", "cluster addresses", "the job"],
)
def test_its_objects_are_those_of_kustomize(
    chart: Chart, kustomize: Callable[[Path], Objects], tmp_path: Path, folder: str, more: str, values: dict[str, Any]
) -> None:
    shutil.copytree(BASE, tmp_path / "base")
    with (tmp_path / "base" / folder / "kustomization.yaml").open("a") as file:
        file.write(more)
    ours, theirs = chart.like_kustomize(**values), kustomize(tmp_path / "base" / folder)
    for name, one in theirs.items():
        assert ours[name] == one
    assert ours.keys() - theirs.keys() == (set() if folder == "." else chart.objects().keys())


def test_the_label_is_that_of_kustomize(chart: Chart, kustomize: Callable[[Path], Objects]) -> None:
    ours, theirs = chart.objects(label={"enabled": True}), kustomize(BASE / "label")
    assert ours.keys() - theirs.keys() == chart.objects().keys()
    assert {name: meaning(ours[name]) for name in theirs} == {name: meaning(one) for name, one in theirs.items()}


def meaning(policy: dict[str, Any]) -> dict[str, Any]:
    """The policy with the label's values as parsed JSON."""
    for one in policy["spec"].get("variables", ()):
        if one["name"] == "values":
            one["expression"] = json.loads(one["expression"])
    return policy


def test_another_label(chart: Chart) -> None:
    values = {"fast": {"networks": ["a/b@c"], "resources": ["d.e/f"]}}
    found = chart.objects("--kube-version=1.35", label={"enabled": True, "name": "x.y/z", "values": values})
    for kind in ("Mutating", "Validating"):
        policy = meaning(found[f"{kind}AdmissionPolicy hpn-label"])
        variables = {one["name"]: one["expression"] for one in policy["spec"]["variables"]}
        assert (variables["label"], variables["values"]) == ("'x.y/z'", values)
        (selected,) = policy["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"]
        assert selected["key"] == "x.y/z"
        version = "v1beta1" if kind == "Mutating" else "v1"
        for one in (policy, found[f"{kind}AdmissionPolicyBinding hpn-label"]):
            assert one["apiVersion"] == f"admissionregistration.k8s.io/{version}"


def test_another_namespace(chart: Chart) -> None:
    """The chart's account gets the rights wherever it is, and the node's leases stay where they are."""
    addresses = {"enabled": True, "gc": {"enabled": True}}
    found = chart.objects("--namespace=other", clusterAddresses=addresses)
    accounts = [
        (subject["name"], subject["namespace"])
        for one in found.values()
        for subject in one.get("subjects", ())
        if subject["kind"] == "ServiceAccount"
    ]
    assert sorted(accounts) == [("hpn", "other"), ("hpn", "other"), ("hpn-ipam-gc", "other")]
    assert found["Role hpn-node"]["metadata"]["namespace"] == "kube-node-lease"


def test_networks(chart: Chart) -> None:
    plugins = [{"type": "hpn", "master": "rail0"}]
    short = {"name": "a", "config": {"plugins": plugins}}
    full = {
        "name": "b", "namespace": "jobs", "resourceName": "example.com/rail0",
        "config": {"cniVersion": "1.1.0", "name": "fabric", "plugins": plugins},
    }  # fmt: skip
    found = chart.objects(networks=[short, full])
    a, b = (found[f"NetworkAttachmentDefinition {name}"] for name in "ab")
    assert (a["metadata"]["namespace"], b["metadata"]["namespace"]) == ("default", "jobs")
    assert b["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/resourceName": "example.com/rail0"}
    assert json.loads(a["spec"]["config"]) == {"cniVersion": "1.0.0", "name": "a", "plugins": plugins}
    assert json.loads(b["spec"]["config"]) == full["config"]
    tests = [found[f"Pod hpn-test-{name}"] for name in "ab"]
    assert [one["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] for one in tests] == ["default/a", "jobs/b"]
    limits = [one["spec"]["containers"][0]["resources"]["limits"] for one in tests]
    assert limits == [{}, {"example.com/rail0": 1}]


def test_an_archive_of_it(chart: Chart, tmp_path: Path) -> None:
    """Helm finds no fault with the chart, and its archive has the files behind the link."""
    subprocess.run([chart.program, "lint", "--strict", helm.CHART], check=True, capture_output=True)
    subprocess.run([chart.program, "package", helm.CHART, f"--destination={tmp_path}"], check=True, capture_output=True)
    (archive,) = tmp_path.iterdir()
    words = [chart.program, "template", "hpn", archive, f"--namespace={NAMESPACE}"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert (by_name(done.stdout), done.stderr) == (chart.objects(), "")


def test_paths_of_the_node(chart: Chart) -> None:
    """Of MicroK8s, whose kubelet and runtime have other directories."""
    kubelet, plugins = "/var/snap/microk8s/common/var/lib/kubelet", "/var/snap/microk8s/current/opt/cni/bin"
    found = chart.objects(kubeletDir=kubelet, cniBinDir=plugins, clusterAddresses={"token": True})
    pod = found["DaemonSet hpn"]["spec"]["template"]["spec"]
    paths = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    assert (paths["registry"], paths["plugins"]) == (f"{kubelet}/plugins_registry", plugins)
    # A link there would lead to a program that does not exist.
    assert "commands" not in paths
    node, (install,) = pod["containers"][0], pod["initContainers"]
    assert f"--kubelet-dir={kubelet}" in node["args"]
    assert {"name": "registry", "mountPath": f"{kubelet}/plugins_registry"} in node["volumeMounts"]
    assert f"--kubelet-dir={kubelet}" in install["args"]
    assert install["args"][-1].startswith(f"--credential={kubelet}/pods/")


def test_what_the_pods_get(chart: Chart) -> None:
    values = {
        "image": {"digest": DIGEST, "pullPolicy": "Always"}, "imagePullSecrets": [{"name": "s"}], "env": {"A": "1"},
        "nodeSelector": {"rdma": "yes"}, "tolerations": [{"key": "gpu"}], "resources": {"requests": {"cpu": 1}},
        "clusterAddresses": {"token": True}, "metrics": {"address": "[::1]:9617"}, "maxUnavailable": 1,
    }  # fmt: skip
    daemon = chart.objects(**values)["DaemonSet hpn"]
    assert daemon["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1}
    pod = daemon["spec"]["template"]["spec"]
    assert {key: pod[key] for key in ("imagePullSecrets", "tolerations")} == {
        key: values[key] for key in ("imagePullSecrets", "tolerations")
    }
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "rdma": "yes"}
    for one in (*pod["initContainers"], *pod["containers"]):
        assert one["image"] == f"registry.example.com/hpn@{DIGEST}"
        assert (one["imagePullPolicy"], one["resources"]["requests"]) == ("Always", {"cpu": 1, "memory": "64Mi"})
    names = {
        one["name"]: [entry["name"] for entry in one.get("env", ())]
        for one in (*pod["initContainers"], *pod["containers"])
    }
    assert names == {"install": ["POD", "A"], "node": ["HPN_PROGRAM_DIR", "A"], "agent": []}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"nodeselector": {}}, "nodeselector"),
        ({"metrics": {"adress": "127.0.0.1:9617"}}, "adress"),
        ({"metrics": {"address": "0.0.0.0:9617"}}, "/metrics/address"),
        ({"networks": [{"name": "rail0", "config": {}}]}, "plugins"),
        ({"networks": [{"name": "rail0", "conf": {}}]}, "conf"),
        ({"image": {"digest": "0123"}}, "/image/digest"),
        ({"label": {"values": {"rdma": {"network": []}}}}, "network"),
        ({"clusterAddresses": {"gc": True}}, "/clusterAddresses/gc"),
        ({"way": "host"}, "/way"),
        ({"cniBinDir": "opt"}, "/cniBinDir"),
        ({"devices": {"resources": []}}, "/devices"),
    ],
    ids=str,
)
def test_what_is_refused(chart: Chart, values: dict[str, Any], key: str) -> None:
    done = chart.run(**values)
    assert done.returncode == 1
    assert re.search(rf"'{key}'|at '[^']*{key}'", done.stderr)
