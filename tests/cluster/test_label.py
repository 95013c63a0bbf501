"""The API server gives a labelled pod its network and resource, or refuses it with a reason."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import image, manifests, services
from cluster.space import Failed, until
from cluster.two_nodes import Cluster
from support import bare_nodes
from support.pages import ROOT, sections

LABEL, NETWORKS = "hpn.io/type", "k8s.v1.cni.cncf.io/networks"
POLICIES = ROOT / "packaging" / "kubernetes" / "label"
RAIL, RESOURCE = "default/rail0@hpn0", "example.com/rail0"
ONE = {RESOURCE: "1"}
RDMA = {LABEL: "rdma"}


def labelled(networks: str = "", resources: dict[str, int] | None = None, **spec: Any) -> dict[str, Any]:
    pod = manifests.pod("a", networks=networks, resources=resources)
    pod["metadata"]["labels"] = dict(RDMA)
    pod["spec"] |= spec
    return pod


def container(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": image.NAME, **more}


def asking(name: str, **more: Any) -> dict[str, Any]:
    return container(name, resources={"limits": {RESOURCE: "1"}}, **more)


def admitted(cluster: Cluster, *pods: dict[str, Any], namespace: str = "default") -> list[dict[str, Any]]:
    """The pods as the API server would store them.  Raises Failed if it refuses one."""
    words = ("create", "--dry-run=server", "--output=json", f"--namespace={namespace}", "--filename=-")
    said = cluster.kubectl(*words, stdin="\n---\n".join(json.dumps(pod) for pod in pods))
    kept = []
    while said := said.lstrip():  # concatenated objects
        pod, end = json.JSONDecoder().raw_decode(said)
        kept.append(pod)
        said = said[end:]
    return kept


def gained(pod: dict[str, Any]) -> tuple[str, list[dict[str, str]]]:
    """The annotation, and the limits of each container."""
    limits = [one["resources"].get("limits", {}) for one in pod["spec"]["containers"]]
    return pod["metadata"].get("annotations", {}).get(NETWORKS, ""), limits


def refusal(cluster: Cluster, pod: dict[str, Any]) -> str:
    """The API server's reason to refuse the pod; empty if it accepts the pod."""
    try:
        admitted(cluster, pod)
    except Failed as e:
        return str(e)
    return ""


def await_meaning(cluster: Cluster, networks: str, known: str, **labels: str) -> None:
    """Wait until a pod with these labels gets these networks, and an unknown value is refused with ``known``, or
    accepted.

    The API server takes about a second to notice new, changed or removed policies.
    """
    pod, wrong = labelled(), labelled()
    pod["metadata"]["labels"] = labels
    wrong["metadata"]["labels"] = dict.fromkeys(labels, "unknown")

    def so() -> bool:
        # The API server notices the two policies at different times.  One answer must show both the networks and the
        # refusal.
        try:
            (kept,) = admitted(cluster, pod)
        except Failed:
            return False
        refused = refusal(cluster, wrong)
        return gained(kept)[0] == networks and (known in refused if known else refused == "")

    until(so, f"the label to mean {networks or 'nothing'}", 120, 0.2)


def apply(cluster: Cluster) -> None:
    """Restore the policies of the source tree."""
    cluster.kubectl("apply", f"--kustomize={POLICIES}")
    await_meaning(cluster, RAIL, "known are: rdma.", **RDMA)


@pytest.fixture(scope="module")
def policies(whole: Cluster) -> Iterator[None]:
    """The policies, which all tests of this module share."""
    apply(whole)
    yield
    whole.kubectl("delete", f"--kustomize={POLICIES}", "--ignore-not-found")
    await_meaning(whole, "", "", **RDMA)


@pytest.fixture
def label(cluster: Cluster, policies: None) -> Cluster:
    """The cluster with the label's meaning from the source tree."""
    return cluster


WITH_IPS = '[{"name": "rail0", "interface": "hpn0", "ips": ["10.56.0.12/24"]}]'
AS_JSON = '{"name": "rail0", "namespace": "default", "interface": "hpn0"}'
STORAGE = '{"name": "storage", "cni-args": {"a": [1]}}'
# Each pod before and after admission.
PODS = {
    "with the label alone": (labelled(), (RAIL, [ONE])),
    "on another network too": (labelled("storage@net1"), (f"storage@net1,{RAIL}", [ONE])),
    "of names alike": (labelled("other/rail0, rail00"), (f"other/rail0, rail00,{RAIL}", [ONE])),
    "on the network by another name": (labelled("storage,rail0@net7"), ("storage,rail0@net7", [ONE])),
    "on the network with its namespace": (labelled("default/rail0"), ("default/rail0", [ONE])),
    "with JSON of the network": (labelled(WITH_IPS), (WITH_IPS, [ONE])),
    "with JSON of another": (labelled(f"[{STORAGE}] "), (f"[{STORAGE}, {AS_JSON}]", [ONE])),
    "with JSON of none": (labelled("[ ]"), (f"[ {AS_JSON}]", [ONE])),
    "with another limit": (labelled(resources={"cpu": 1}), (RAIL, [{"cpu": "1"} | ONE])),
    "that asks for two": (labelled(resources={RESOURCE: 2}), (RAIL, [{RESOURCE: "2"}])),
    "of two containers": (labelled(containers=[container("x"), container("y")]), (RAIL, [ONE, {}])),
    "whose second container asks": (labelled(containers=[container("x"), asking("y")]), (RAIL, [{}, ONE])),
    "whose sidecar asks": (labelled(initContainers=[asking("s", restartPolicy="Always")]), (RAIL, [{}])),
    "whose init container asks": (labelled(initContainers=[asking("i")]), (RAIL, [ONE])),
    "with a variable twice": (labelled(containers=[container("x", env=[{"name": "E"}] * 2)]), (RAIL, [ONE])),
    "without it": (manifests.pod("a"), ("", [{}])),
}  # fmt: skip


def test_what_a_pod_gets(label: Cluster) -> None:
    kept = admitted(label, *(pod for pod, _ in PODS.values()))
    got = dict(zip(PODS, map(gained, kept), strict=True))
    assert got == {name: wanted for name, (_, wanted) in PODS.items()}
    for one in (one for pod in kept for one in pod["spec"]["containers"]):
        limits, requests = (one["resources"].get(key, {}) for key in ("limits", "requests"))
        assert limits.get(RESOURCE) == requests.get(RESOURCE)
    annotated = labelled()
    annotated["metadata"]["annotations"] = {"its": "own"}
    (pod,) = admitted(label, annotated)
    assert pod["metadata"]["annotations"] == {"its": "own", NETWORKS: RAIL}


def test_a_pod_as_large_as_can_be(label: Cluster) -> None:
    """The policies admit annotations close to the limit of 256 KiB, so the cost limit of expressions suffices."""
    names = [f"network-number-{n}" for n in range(6500)]
    others = ",".join(names), json.dumps([{"name": name} for name in names])
    kept = admitted(label, *(labelled(networks) for networks in others))
    assert [gained(pod)[0] for pod in kept] == [f"{others[0]},{RAIL}", f"{others[1][:-1]}, {AS_JSON}]"]


def test_pods_of_other_namespaces(label: Cluster) -> None:
    """The network is in the namespace default, whatever the pod's namespace; a name without one is another network."""
    wanted = {
        "": RAIL,
        "rail0": f"rail0,{RAIL}",
        "default/rail0": "default/rail0",
        '[{"name": "rail0"}]': f'[{{"name": "rail0"}}, {AS_JSON}]',
    }
    for namespace in ("kube-system", "kube-public"):
        kept = admitted(label, *map(labelled, wanted), namespace=namespace)
        assert [gained(pod) for pod in kept] == [(networks, [ONE]) for networks in wanted.values()]


def test_who_is_refused(label: Cluster) -> None:
    misspelled = labelled()
    misspelled["metadata"]["labels"][LABEL] = "rmda"
    of_value, of_network, _ = refusals()
    assert of_value.search(refusal(label, misspelled))
    assert of_network.search(refusal(label, labelled(hostNetwork=True)))
    # The policies leave the messages about other faults of a pod unchanged.
    assert "spec.containers: Required value" in refusal(label, labelled(containers=[]))
    twice = labelled(containers=[container("x"), container("x")])
    assert 'spec.containers[1].name: Duplicate value: "x"' in refusal(label, twice)
    # kubelet shows a static pod as a mirror; a file of the node determines the real pod.
    static = misspelled | {"spec": misspelled["spec"] | {"nodeName": "node1"}}
    static["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "it"}
    assert [gained(pod) for pod in admitted(label, static)] == [("", [{}])]


def test_the_policy_that_gives_is_missing(label: Cluster) -> None:
    """Without that policy no labelled pod starts, and every other pod does."""
    label.delete("mutatingadmissionpolicybinding", "hpn-label")
    try:
        *_, row = refusals()
        until(lambda: row.search(refusal(label, labelled())), "it to be noticed", 120, 0.2)
        assert refusal(label, manifests.pod("a")) == ""
    finally:
        apply(label)


def test_another_label(label: Cluster, tmp_path: Path) -> None:
    """One file of the user defines the label's name and meaning."""
    meaning = {"fast": {"networks": ["rails@hpn0", "rails@hpn1"], "resources": ["example.com/rails"] * 2},
               "plain": {"networks": ["default/plain"]}}  # fmt: skip
    data = {"label": "example.com/fabric", "values": json.dumps(meaning)}
    here = {"name": "hpn-label", "annotations": {"config.kubernetes.io/local-config": "true"}}
    (tmp_path / "label.yaml").write_text(
        json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": here, "data": data})
    )
    shown = page("One label")
    assert set(shown["yaml label.yaml"].splitlines()) <= set((POLICIES / "label.yaml").read_text().splitlines())
    tree = os.path.relpath(ROOT, tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(shown["yaml kustomization.yaml"].replace("hpn-cni/", f"{tree}/"))
    label.kubectl("apply", f"--kustomize={tmp_path}")
    try:
        await_meaning(label, "default/plain", "known are: ", **{"example.com/fabric": "plain"})
        fast, plain, empty = labelled(), labelled(), labelled()
        for pod, value in ((fast, "fast"), (plain, "plain"), (empty, "")):
            pod["metadata"]["labels"] = {"example.com/fabric": value}
        kept = admitted(label, fast, plain, labelled(), namespace="kube-public")
        asked = "kube-public/rails@hpn0,kube-public/rails@hpn1"
        wanted = [(asked, [{"example.com/rails": "2"}]), ("default/plain", [{}]), ("", [{}])]
        assert [gained(pod) for pod in kept] == wanted
        assert 'label example.com/fabric: "" is not known' in refusal(label, empty)
    finally:
        apply(label)


def test_the_line_for_older_versions(label: Cluster) -> None:
    label.kubectl("delete", f"--kustomize={POLICIES}")
    await_meaning(label, "", "", **RDMA)
    label.shell(f"cd {ROOT}\n{older()}")
    try:
        await_meaning(label, RAIL, "known are: rdma.", **RDMA)
        policy = label.get("mutatingadmissionpolicies.v1beta1.admissionregistration.k8s.io", "hpn-label")
        made = policy["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"]
        assert json.loads(made)["apiVersion"] == "admissionregistration.k8s.io/v1beta1"
    finally:
        apply(label)


@pytest.fixture
def offering(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with nodes that offer rail0, and with the page's network."""
    one = {"name": RESOURCE, "kind": "master", "count": 2, "selectors": {"ifNames": ["rail0"]}}
    for node in cluster.nodes.values():
        services.offer(node, one).start()
    for name in cluster.nodes:  # the scheduler may still use another test's amounts
        until(lambda name=name: allocatable(cluster, name) == "2", f"{name} to tell", 120, 0.2)
    cluster.kubectl("apply", "--filename=-", stdin=page("Without a DaemonSet")["yaml network.yaml"])
    yield cluster
    cluster.delete("deployment", "b", "--namespace=default", "--cascade=foreground")
    cluster.delete("pods", "--all", "--namespace=default", "--grace-period=1")
    for node in cluster.nodes.values():
        services.withdraw(node)


def allocatable(cluster: Cluster, node: str) -> str:
    found: dict[str, str] = cluster.get("node", node)["status"]["allocatable"]
    return found.get(RESOURCE, "")


def page(title: str) -> dict[str, str]:
    """The code blocks of the page's section, the first of each kind."""
    (section,) = (one for one in sections(ROOT / "docs" / "user" / "kubernetes.md") if one.title == title)
    return {block.kind: block.text for block in reversed(section.blocks)}


def older() -> str:
    """The section's second block of commands."""
    _, line = bare_nodes.typed("One label")
    return line


def refusals() -> list[re.Pattern[str]]:
    """The pattern of each message in the page's table; "..." is a wildcard."""
    _, _, rest = (
        (ROOT / "docs" / "user" / "kubernetes.md").read_text().partition("### When a labelled pod is refused\n")
    )
    cells = re.findall(r"^\| `(.+?)` \|", rest.partition("\n#")[0], re.MULTILINE)
    return [re.compile(re.escape(cell).replace(r"\.\.\.", ".*")) for cell in cells]


def deployment(networks: str) -> dict[str, Any]:
    """A Deployment with a labelled pod on node2; the policies do not change the Deployment itself."""
    pod = labelled(networks, nodeSelector={"kubernetes.io/hostname": "node2"})
    metadata = pod["metadata"] | {"labels": RDMA | {"app": "b"}}
    spec = {"selector": {"matchLabels": {"app": "b"}}, "template": {"metadata": metadata, "spec": pod["spec"]}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "b"}, "spec": spec}


def test_a_labelled_pod_as_the_page_has_it(offering: Cluster, label: Cluster) -> None:
    """The pod of the page and a Deployment's pod that requests its address reach each other over hpn0."""
    lines = page("One label")["sh kubectl"]
    assert lines.startswith(f"kubectl apply -k {POLICIES.relative_to(ROOT)}\n")
    offering.kubectl("delete", f"--kustomize={POLICIES}")
    await_meaning(offering, "", "", **RDMA)
    own = lines.replace("--image=busybox", f"--image={image.NAME} --image-pull-policy=Never")
    said = offering.shell(f"cd {ROOT}\n{own}")
    (given,) = re.findall(r"inet (10\.56\.0\.\d+)/", said)
    # The pod may be on node2, and have any address that follows the last of another test there.
    free = "10.56.0.13" if given == "10.56.0.12" else "10.56.0.12"
    networks = WITH_IPS.replace("10.56.0.12", free)
    await_meaning(offering, RAIL, "known are: rdma.", **RDMA)
    offering.apply(deployment(networks))
    offering.wait("Available", "deployment/b")
    assert " 0% packet loss" in offering.execute("c", "ping", "-c", "1", "-w", "60", "-I", "hpn0", free)
    assert "PCIDEVICE_EXAMPLE_COM_RAIL0=" in offering.execute("c", "env")
    assert gained(offering.get("deployment", "b")["spec"]["template"]) == (networks, [{}])
    # The policies check a pod only at its creation.
    offering.kubectl("label", "pod", "c", f"{LABEL}=unknown", "--overwrite")
    assert gained(offering.get("pod", "c"))[0] == RAIL
