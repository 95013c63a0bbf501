"""packaging/helm: the chart's objects are those of packaging/kubernetes."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from conftest import require
from support import helm
from support.helm import NAMESPACE, Chart, Objects, by_name
from support.pages import ROOT, shown
from support.plans import dgx, planned
from support.shipped import DASHBOARD, PROMETHEUS
from support.sysfs_tree import Tree
from support.topology import until
from system.prometheus import Prometheus

from ctl.plan.command import answer

BASE = ROOT / "packaging" / "kubernetes"
PAGE = ROOT / "docs" / "user" / "kubernetes.md"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"


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
        (".", shown(PAGE, "As a DaemonSet", "yaml provision.yaml"), {"provision": True}),
        (".", "components: [cluster/token]\n", {"clusterAddresses": {"token": True}}),
        (".", "components: [mode/container]\n", {"mode": "container"}),
        (".", "components: [mode/systemd]\n", {"mode": "systemd"}),
        ("cluster", "", {"clusterAddresses": {"enabled": True, "gc": {"enabled": False}}}),
        ("cluster-gc", "", {"clusterAddresses": {"gc": {"enabled": True}}}),
    ],
    ids=["defaults", "metrics", "VFs", "a credential of its own", "pod", "service", "cluster addresses", "the job"],
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


def test_claims_are_those_of_kustomize(chart: Chart, kustomize: Callable[[Path], Objects], tmp_path: Path) -> None:
    """hpn node has its own token, so kubelet's credential gets no permission."""
    shutil.copytree(BASE, tmp_path / "base")
    with (tmp_path / "base" / "kustomization.yaml").open("a") as file:
        file.write("components: [cluster/token, dra/daemonset]\n")
    theirs = kustomize(tmp_path / "base") | kustomize(BASE / "dra")
    of_nodes = {f"ClusterRole{what} hpn-claim-status" for what in ("", "Binding")}
    assert of_nodes <= theirs.keys()
    ours = chart.like_kustomize(claims={"enabled": True})
    assert ours == {name: one for name, one in theirs.items() if name not in of_nodes}


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


def test_a_pool_brings_the_job_that_releases_dead_nodes_blocks(chart: Chart) -> None:
    """Without it, the pool's count of free blocks falls with each node that leaves."""
    assert "CronJob hpn-ipam-gc" not in chart.objects()
    assert "CronJob hpn-ipam-gc" in chart.objects(clusterAddresses={"enabled": True})
    assert "CronJob hpn-ipam-gc" not in chart.objects(clusterAddresses={"enabled": True, "gc": {"enabled": False}})


def test_another_namespace(chart: Chart) -> None:
    """The chart's account gets the rights wherever it is, and the node's leases stay where they are."""
    found = chart.objects("--namespace=other", clusterAddresses={"enabled": True})
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
    rails = {"name": "c", "config": {"plugins": [{"type": "hpn", "rails": ["a.b/c", "a.b/d"]}, {"type": "x"}]}}
    masters = {"name": "d", "config": {"plugins": [{"type": "hpn", "rails": ["rail0", "rail1"]}]}}
    found = chart.objects(networks=[short, full, rails, masters])
    a, b = (found[f"NetworkAttachmentDefinition {name}"] for name in "ab")
    assert (a["metadata"]["namespace"], b["metadata"]["namespace"]) == ("default", "jobs")
    assert b["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/resourceName": "example.com/rail0"}
    assert json.loads(a["spec"]["config"]) == {"cniVersion": "1.0.0", "name": "a", "plugins": plugins}
    assert json.loads(b["spec"]["config"]) == full["config"]
    tests = [found[f"Pod hpn-test-{name}-{number}"] for name in "abcd" for number in (1, 2)]
    asked = [one["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] for one in tests]
    assert asked[::2] == asked[1::2] == ["default/a", "jobs/b", "default/c", "default/d"]
    limits = [one["spec"]["containers"][0]["resources"]["limits"] for one in tests]
    assert limits[::2] == limits[1::2] == [{}, {"example.com/rail0": 1}, {"a.b/c": 1, "a.b/d": 1}, {}]
    # The logs that Helm reads are those of a pod that always starts.
    assert "networks" not in f"{found['Pod hpn-test']['metadata']}"


class Page(BaseHTTPRequestHandler):
    """Traffic of a pod's port and of the host's, as hpn node's page names them."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        for pod, namespace in (("train-0", "ml"), ("", "")):
            labels = f'rdma_dev="mlx5_{len(pod)}",namespace="{namespace}",pod="{pod}"'
            self.wfile.write(f"hpn_rdma_port_counter_total{{{labels}}} 1\n".encode())


def snake(endpoint: Any) -> Any:
    """The endpoint with Prometheus's own spelling of its keys."""
    if isinstance(endpoint, list):
        return [snake(one) for one in endpoint]
    if not isinstance(endpoint, dict):
        return endpoint
    return {re.sub("[A-Z]", lambda it: f"_{it[0].lower()}", key): snake(value) for key, value in endpoint.items()}


def test_a_prometheus_on_the_node_reads_by_the_monitor(chart: Chart, prometheus: Path, tmp_path: Path) -> None:
    """A real Prometheus with the configuration that the Prometheus Operator makes of the PodMonitor
    (generatePodMonitorConfig of its pkg/prometheus/promcfg.go), and the labels of a found container."""
    page = HTTPServer(("127.0.0.1", 0), Page)
    metrics = {"address": f"127.0.0.1:{page.server_port}", "podMonitor": {"enabled": True, "labels": {"team": "a"}}}
    found = chart.objects(metrics=metrics)
    monitor, daemon = found["PodMonitor hpn"], found["DaemonSet hpn"]["spec"]["template"]
    assert monitor["metadata"]["labels"]["team"] == "a"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= daemon["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    config = snake(endpoint)
    operators = [
        {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target, "regex": "(.+)"}
        for source, target in (
            ("namespace", "namespace"), ("pod_container_name", "container"), ("pod_name", "pod"),
            (f"pod_label_{re.sub('[^a-z]', '_', monitor['spec']['jobLabel'])}", "job"),
        )
    ]  # fmt: skip
    config["relabel_configs"] = operators + config.pop("relabelings")
    config["job_name"] = "podMonitor/kube-system/hpn/0"
    of_pod = {"namespace": NAMESPACE, "pod_name": "hpn-x", "pod_node_name": "node7"}
    of_pod |= {f"pod_label_{key.replace('.', '_').replace('/', '_')}": value
               for key, value in daemon["metadata"]["labels"].items()}  # fmt: skip
    config["static_configs"] = [
        {
            "targets": [f"192.0.2.{at}"],
            "labels": {
                f"__meta_kubernetes_{key}": value
                for key, value in (of_pod | {"pod_container_name": container["name"]}).items()
            },
        }
        for at, container in enumerate(daemon["spec"]["containers"])
    ]
    it = Prometheus(prometheus, tmp_path)
    (tmp_path / PROMETHEUS.name).write_text(
        json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [config]})
    )
    with page, it:
        Thread(target=page.serve_forever, daemon=True).start()
        try:
            until(lambda: it.ready() and it.query("up == 1"), 120)
            counted, up = it.query("hpn_rdma_port_counter_total"), it.query("up")
        finally:
            page.shutdown()
    node = {"job": "hpn", "instance": "node7"}
    assert [labels for labels, _ in up] == [{"__name__": "up"} | node]
    shown = [{key: value for key, value in labels.items() if key != "__name__"} for labels, _ in counted]
    theirs = {"rdma_dev": "mlx5_7", "namespace": "ml", "pod": "train-0"}
    assert sorted(shown, key=lambda one: one["rdma_dev"]) == [{"rdma_dev": "mlx5_0"} | node, theirs | node]


def test_the_dashboard(chart: Chart) -> None:
    found = chart.objects(metrics={"dashboard": {"enabled": True}})["ConfigMap hpn-dashboard"]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"] == {"hpn.json": DASHBOARD.read_text()}


@pytest.mark.parametrize("words", [[], ["--each"], ["--as", "master"]], ids=str)
def test_values_of_a_plan(chart: Chart, tmp_path: Path, words: list[str]) -> None:
    """Helm makes the objects of the plan's other documents."""
    tree = Tree(tmp_path / "sys")
    dgx(tree)
    plan, (values, _) = planned(tree.root, *words), answer([*words, "--helm"], tree.root)
    (tmp_path / "values.yaml").write_text(values)
    found = chart.objects(f"--values={tmp_path}/values.yaml")
    assert found["ConfigMap hpn-node"]["data"] == {"devices.yaml": plan.text.split("---\n")[0]}
    made = [one for name, one in found.items() if name.startswith("NetworkAttachmentDefinition ")]
    wanted = [yaml.safe_load(text) for text in plan.text.split("---\n")[1:-1]]
    assert [one["metadata"].get("annotations") for one in made] == [
        one["metadata"].get("annotations") for one in wanted
    ]
    assert [json.loads(one["spec"]["config"]) for one in made] == [json.loads(one["spec"]["config"]) for one in wanted]
    policy = meaning(found["MutatingAdmissionPolicy hpn-label"])
    assert {one["name"]: one["expression"] for one in policy["spec"]["variables"]}["values"] == plan.label
    assert "CustomResourceDefinition hpnblocks.hpn-cni.io" in found
    assert "/sys" in node_paths(found["DaemonSet hpn"]["spec"]["template"]["spec"])


def test_a_cluster_without_multus(chart: Chart) -> None:
    """Helm gives the reason.  Without a cluster it makes the objects."""
    values = {"networks": [{"name": "a", "config": {"plugins": [{"type": "hpn", "master": "rail0"}]}}]}
    served = "--api-versions=apiregistration.k8s.io/v1"
    done = chart.run(served, **values)
    assert (done.returncode, ": networks: this cluster has no NetworkAttachmentDefinition, which " in done.stderr) == (
        1,
        True,
    )
    with_multus = f"{served},k8s.cni.cncf.io/v1/NetworkAttachmentDefinition"
    assert chart.objects(with_multus, **values) == chart.objects(**values)
    assert chart.objects(served) == chart.objects()


def test_the_notes_name_networks_with_the_same_addresses_on_each_node(chart: Chart, tmp_path: Path) -> None:
    """Helm shows the notes only with a cluster, so a template of this test's own shows them."""
    shutil.copytree(helm.CHART, tmp_path / "hpn")
    shows = '{{ dict "kind" "Notes" "text" (include "hpn/templates/NOTES.txt" .) | toJson }}'
    (tmp_path / "hpn/templates/shown.yaml").write_text(shows)

    def notes(**ipam: Any) -> str:
        plugin = {"type": "hpn", "master": "rail0", "ipam": {"type": "hpn-ipam", "subnet": "10.56.0.0/16", **ipam}}
        values = {"networks": [{"name": "a", "config": {"plugins": [plugin, {"type": "tuning"}]}}]}
        argv = [chart.program, "template", "hpn", tmp_path / "hpn", "--values=-", "--show-only=templates/shown.yaml"]
        text = subprocess.run(argv, input=json.dumps(values), stdout=subprocess.PIPE, text=True, check=True).stdout
        return str(yaml.safe_load(text)["text"])

    assert "Network a: its ipam has no cluster, so each node allocates the same addresses" in notes()
    of_parent: dict[str, Any] = {"ranges": [[{"subnet": "parent-ipv4"}], [{"subnet": "fd00::/64", "embedIPv4": True}]]}
    assert "Network a: its ipam has no cluster" in notes(**of_parent)
    own = {"subnet": "parent-ipv4", "ranges": of_parent["ranges"]}
    for right in ({"cluster": {"backend": "kubernetes"}}, {"overlaps": True}, {"type": "static"}, own, {"node": "a"}):
        assert "Network" not in notes(**right).replace("NetworkAttachmentDefinition", "")


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
    node, (install,) = pod["containers"][0], pod["initContainers"]
    assert {f"--kubelet-dir={kubelet}", f"--cni-bin-dir={plugins}"} <= set(node["args"])
    assert {"name": "registry", "mountPath": f"{kubelet}/plugins_registry"} in node["volumeMounts"]
    assert {f"--kubelet-dir={kubelet}", f"--cni-bin-dir={plugins}"} <= set(install["args"])
    assert install["args"][-1].startswith(f"--credential={kubelet}/pods/")


POOLS = (
    {"name": "a", "nodeSelector": {"p": "a", "q": "x"}, "devices": "{}"},
    {"name": "b", "nodeSelector": {"p": "b"}, "maxUnavailable": 1, "env": {"A": "2"}},
)


def test_pools(chart: Chart) -> None:
    """Each node has one DaemonSet's pod at most; what a pool does not set is as for all nodes."""
    values = {"env": {"A": "1", "B": "1"}, "nodeSelector": {"all": "yes"}, "devices": "resources: []"}
    found = chart.objects(**values, pools=POOLS)
    rest = chart.objects(**values)
    daemons = {name: found.pop(f"DaemonSet {name}")["spec"] for name in ("hpn", "hpn-a", "hpn-b")}
    alone = rest.pop("DaemonSet hpn")["spec"]
    pods = {name: one["template"]["spec"] for name, one in daemons.items()}
    nodes = [{"all": "yes"} | more for more in ({}, {"p": "a"}, {"p": "a", "q": "x"}, {"p": "b"}, {"p": "b", "q": "x"})]
    assert [[name for name, pod in pods.items() if schedules(pod, node)] for node in nodes] == [
        ["hpn"], ["hpn"], ["hpn-a"], ["hpn-b"], ["hpn-b"]
    ]  # fmt: skip
    assert not any(schedules(pod, {"p": "b"}) for pod in pods.values())
    # Two pools select these: the first has them.
    both = chart.objects(pools=[POOLS[1], {"name": "c", "nodeSelector": {"q": "x"}}])
    shared = {name: both[f"DaemonSet {name}"]["spec"]["template"]["spec"] for name in ("hpn", "hpn-b", "hpn-c")}
    assert [name for name, pod in shared.items() if schedules(pod, {"p": "b", "q": "x"})] == ["hpn-b"]

    # A selector of a DaemonSet cannot change, so that of the first is the same with pools and without.
    assert daemons["hpn"]["selector"] == alone["selector"]
    for name, one in daemons.items():
        assert one["selector"]["matchLabels"] == one["template"]["metadata"]["labels"]
        assert one["selector"]["matchLabels"].get("hpn-cni.io/pool", "") == name[4:]
    env = {name: {it["name"]: it["value"] for it in pod["containers"][0]["env"]} for name, pod in pods.items()}
    assert env == {"hpn": values["env"], "hpn-a": values["env"], "hpn-b": {"A": "2", "B": "1"}}
    most = {name: one["updateStrategy"]["rollingUpdate"]["maxUnavailable"] for name, one in daemons.items()}
    assert most == {"hpn": "10%", "hpn-a": "10%", "hpn-b": 1}
    for pod in (alone["template"]["spec"], *pods.values()):
        for key in ("affinity", "nodeSelector"):
            pod.pop(key, None)
        for one in (*pod["initContainers"], *pod["containers"]):
            one.pop("env", None)
    # The names of ConfigMaps are without their digests here.
    assert list(pods.values()) == [alone["template"]["spec"]] * 3
    assert found.keys() == rest.keys()


def test_the_device_files_of_pools(chart: Chart) -> None:
    made = [one for one in yaml.safe_load_all(chart.run(pools=POOLS).stdout) if one]
    files = {one["metadata"]["name"]: one["data"]["devices.yaml"] for one in made if one["kind"] == "ConfigMap"}
    used = {
        one["metadata"]["name"]: files[volume["configMap"]["name"]]
        for one in made
        if one["kind"] == "DaemonSet"
        for volume in one["spec"]["template"]["spec"]["volumes"]
        if "configMap" in volume
    }
    shipped = (BASE / "devices.yaml").read_text()
    assert {name: text.strip() for name, text in used.items()} == {
        "hpn": shipped.strip(), "hpn-a": "{}", "hpn-b": shipped.strip()
    }  # fmt: skip
    assert len(files) == 2


def test_what_provisioning_gets(chart: Chart) -> None:
    """hpn node can write to /sys, only for the RDMA mode to /etc/modprobe.d, and has raw sockets only for LLDP."""
    pools = [
        {"name": "mode", "nodeSelector": {"p": "a"}, "devices": "rdmaNamespaces: exclusive\nlldp: true"},
        {"name": "none", "nodeSelector": {"p": "b"}, "devices": "rdmaNamespaces: exclusive", "provision": False},
    ]
    found = chart.objects(pools=pools, provision=True)
    of = {name: found[f"DaemonSet {name}"]["spec"]["template"]["spec"] for name in ("hpn", "hpn-mode", "hpn-none")}
    writable = {name: node_paths(pod) & {"/sys", "/etc/modprobe.d"} for name, pod in of.items()}
    assert writable == {"hpn": {"/sys"}, "hpn-mode": {"/sys", "/etc/modprobe.d"}, "hpn-none": set()}
    told = {name for name, pod in of.items() if "--provision" in pod["initContainers"][0]["args"]}
    assert told == {"hpn", "hpn-mode"}
    security = {name: pod["containers"][0]["securityContext"] for name, pod in of.items()}
    own = security["hpn-none"]
    assert own["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    more = own | {"appArmorProfile": {"type": "Unconfined"}}
    hears = more | {"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]}}
    assert security == {"hpn": more, "hpn-mode": hears, "hpn-none": own}


def node_paths(pod: dict[str, Any]) -> set[str]:
    """The node's directories in which the first container can write, at the same places there."""
    host = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    mounts = [one for one in pod["containers"][0]["volumeMounts"] if not one.get("readOnly")]
    return {one["mountPath"] for one in mounts if host.get(one["name"]) == one["mountPath"]}


def schedules(pod: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a node with these labels, of Linux, may get the pod: nodeSelector, and any term of its affinity."""
    labels = labels | {"kubernetes.io/os": "linux"}
    terms = [[]]
    if "affinity" in pod:
        required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        terms = [term["matchExpressions"] for term in required["nodeSelectorTerms"]]
    assert {one["operator"] for term in terms for one in term} <= {"NotIn"}
    kept_off = all(any(labels.get(one["key"]) in one["values"] for one in term) for term in terms)
    return pod["nodeSelector"].items() <= labels.items() and not kept_off


FARGATE = {"key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": ["fargate"]}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    """An affinity to nodes."""
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}}


def test_every_pod_of_the_chart(chart: Chart) -> None:
    """A private registry, tainted nodes, and nodes that are none: each kind of pod pulls and runs as the others do."""
    placed = {
        "imagePullSecrets": [{"name": "s"}], "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": required({"matchExpressions": [FARGATE]}),
    }  # fmt: skip
    values = placed | {"image": {"pullPolicy": "Always", "tag": "7"}, "nodeSelector": {"kubernetes.io/arch": "amd64"}}
    values |= {
        "clusterAddresses": {"gc": {"enabled": True}},
        "networks": [{"name": "a", "config": {"plugins": [{"type": "hpn"}]}}],
    }
    found = chart.objects(**values)
    pods = {name: pod for name, one in found.items() for pod in specifications(one)}
    assert pods.keys() == {
        "DaemonSet hpn",
        "CronJob hpn-ipam-gc",
        *(f"Pod hpn-test{one}" for one in ("", "-a-1", "-a-2")),
    }
    for name, pod in pods.items():
        assert {key: pod.get(key) for key in placed} == placed, name
        assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}, name
        for one in (*pod.get("initContainers", ()), *pod["containers"]):
            assert (one["image"], one["imagePullPolicy"]) == ("registry.example.com/hpn:7", "Always"), name


def test_the_affinity_of_pools(chart: Chart) -> None:
    """Each term has that of the pools too."""
    other = {"matchExpressions": [{"key": "a", "operator": "Exists"}], "matchFields": [{"key": "metadata.name"}]}
    weak = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    values = {"affinity": required({"matchExpressions": [FARGATE]}, other) | weak}
    found = chart.objects(**values, pools=[POOLS[0]])
    of_pool, of_rest = (found[f"DaemonSet {name}"]["spec"]["template"]["spec"]["affinity"] for name in ("hpn-a", "hpn"))
    assert of_pool == values["affinity"]
    denied = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in POOLS[0]["nodeSelector"].items()]
    first, second = [FARGATE], other["matchExpressions"]
    assert of_rest == weak | required(
        *({"matchExpressions": [*first, one]} for one in denied),
        *(other | {"matchExpressions": [*second, one]} for one in denied),
    )


def specifications(one: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of the object's pods."""
    if one["kind"] == "Pod":
        return [one["spec"]]
    template = one["spec"].get("jobTemplate", one)["spec"].get("template") if "spec" in one else None
    return [template["spec"]] if template else []


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
