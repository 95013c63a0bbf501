"""A pod with the label gets network and resource from the API server, or it is refused, and the message says why."""

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
    """The pods as the API server would keep them.  Raises Failed where it refuses one."""
    words = ("create", "--dry-run=server", "--output=json", f"--namespace={namespace}", "--filename=-")
    said = cluster.kubectl(*words, stdin="\n---\n".join(json.dumps(pod) for pod in pods))
    kept = []
    while said := said.lstrip():  # an object after the other
        pod, end = json.JSONDecoder().raw_decode(said)
        kept.append(pod)
        said = said[end:]
    return kept


def gained(pod: dict[str, Any]) -> tuple[str, list[dict[str, str]]]:
    """The annotation, and the limits of each container."""
    limits = [one["resources"].get("limits", {}) for one in pod["spec"]["containers"]]
    return pod["metadata"].get("annotations", {}).get(NETWORKS, ""), limits


def refusal(cluster: Cluster, pod: dict[str, Any]) -> str:
    """Why the API server refuses the pod; empty where it does not."""
    try:
        admitted(cluster, pod)
    except Failed as e:
        return str(e)
    return ""


def await_meaning(cluster: Cluster, networks: str, known: str, **labels: str) -> None:
    """Until a pod with these labels gets these networks, and one with an unknown value hears ``known``, or is taken.

    The API server takes a second or so to see that policies are there, are others, or are gone.
    """
    pod, wrong = labelled(), labelled()
    pod["metadata"]["labels"] = labels
    wrong["metadata"]["labels"] = dict.fromkeys(labels, "unknown")

    def so() -> bool:
        # The two policies are not seen at once: what a pod gets and whether it is taken are of one and the same answer.
        try:
            (kept,) = admitted(cluster, pod)
        except Failed:
            return False
        refused = refusal(cluster, wrong)
        return gained(kept)[0] == networks and (known in refused if known else refused == "")

    until(so, f"the label to mean {networks or 'nothing'}", 120, 0.2)


def apply(cluster: Cluster) -> None:
    """Make the policies as they are in the tree, whatever they were."""
    cluster.kubectl("apply", f"--kustomize={POLICIES}")
    await_meaning(cluster, RAIL, "known are: rdma.", **RDMA)


@pytest.fixture(scope="module")
def policies(whole: Cluster) -> Iterator[None]:
    """The policies, for the time of all tests here."""
    apply(whole)
    yield
    whole.kubectl("delete", f"--kustomize={POLICIES}", "--ignore-not-found")
    await_meaning(whole, "", "", **RDMA)


@pytest.fixture
def label(cluster: Cluster, policies: None) -> Cluster:
    """The cluster, where the label means what it does in the tree."""
    return cluster


WITH_IPS = '[{"name": "rail0", "interface": "hpn0", "ips": ["10.56.0.12/24"]}]'
AS_JSON = '{"name": "rail0", "namespace": "default", "interface": "hpn0"}'
STORAGE = '{"name": "storage", "cni-args": {"a": [1]}}'
# Of each pod: what it has itself, and what it has when the API server has taken it.
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
    """An expression may cost so much and no more.  An annotation may have 256 KiB: these have not much less."""
    names = [f"network-number-{n}" for n in range(6500)]
    others = ",".join(names), json.dumps([{"name": name} for name in names])
    kept = admitted(label, *(labelled(networks) for networks in others))
    assert [gained(pod)[0] for pod in kept] == [f"{others[0]},{RAIL}", f"{others[1][:-1]}, {AS_JSON}]"]


def test_pods_of_other_namespaces(label: Cluster) -> None:
    """The network is default's, whatever the pod's namespace: a name without one is another network."""
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
    # What is wrong with a pod besides is said as it is without the policies.
    assert "spec.containers: Required value" in refusal(label, labelled(containers=[]))
    twice = labelled(containers=[container("x"), container("x")])
    assert 'spec.containers[1].name: Duplicate value: "x"' in refusal(label, twice)
    # kubelet shows a static pod so, and what it runs is in a file of the node.
    static = misspelled | {"spec": misspelled["spec"] | {"nodeName": "node1"}}
    static["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "it"}
    assert [gained(pod) for pod in admitted(label, static)] == [("", [{}])]


def test_the_policy_that_gives_is_missing(label: Cluster) -> None:
    """No pod starts without what its label promises, and all others start."""
    label.delete("mutatingadmissionpolicybinding", "hpn-label")
    try:
        *_, row = refusals()
        until(lambda: row.search(refusal(label, labelled())), "it to be noticed", 120, 0.2)
        assert refusal(label, manifests.pod("a")) == ""
    finally:
        apply(label)


def test_another_label(label: Cluster, tmp_path: Path) -> None:
    """Its name and what it means are in one file of the user's own."""
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


@pytest.fixture
def offering(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whose nodes offer rail0 and whose network is the page's."""
    one = {"name": RESOURCE, "kind": "master", "count": 2, "selectors": {"ifNames": ["rail0"]}}
    for node in cluster.nodes.values():
        services.offer(node, one).start()
    for name in cluster.nodes:  # the scheduler may still have what another test's kubelet said
        until(lambda name=name: allocatable(cluster, name) == "2", f"{name} to tell", 120, 0.2)
    cluster.kubectl("apply", "--filename=-", stdin=page("From nothing to two pods with RDMA")["yaml network.yaml"])
    yield cluster
    cluster.delete("deployment", "b", "--namespace=default", "--cascade=foreground")
    cluster.delete("pods", "--all", "--namespace=default", "--grace-period=1")
    for node in cluster.nodes.values():
        services.withdraw(node)


def allocatable(cluster: Cluster, node: str) -> str:
    found: dict[str, str] = cluster.get("node", node)["status"]["allocatable"]
    return found.get(RESOURCE, "")


def page(title: str) -> dict[str, str]:
    (section,) = (one for one in sections(ROOT / "docs" / "user" / "kubernetes.md") if one.title == title)
    return {block.kind: block.text for block in section.blocks}


def refusals() -> list[re.Pattern[str]]:
    """What the message of each row of the page's table is like: "..." stands for anything."""
    _, _, rest = (
        (ROOT / "docs" / "user" / "kubernetes.md").read_text().partition("### When a labelled pod is refused\n")
    )
    cells = re.findall(r"^\| `(.+?)` \|", rest.partition("\n#")[0], re.MULTILINE)
    return [re.compile(re.escape(cell).replace(r"\.\.\.", ".*")) for cell in cells]


def deployment(networks: str) -> dict[str, Any]:
    """A pod on node2 as a Deployment has it, which is not changed itself."""
    pod = labelled(networks, nodeSelector={"kubernetes.io/hostname": "node2"})
    metadata = pod["metadata"] | {"labels": RDMA | {"app": "b"}}
    spec = {"selector": {"matchLabels": {"app": "b"}}, "template": {"metadata": metadata, "spec": pod["spec"]}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "b"}, "spec": spec}


def test_a_labelled_pod_as_the_page_has_it(offering: Cluster, label: Cluster) -> None:
    """And a Deployment's, which names its address: they reach each other over hpn0."""
    lines = page("One label")["sh kubectl"]
    assert lines.startswith(f"kubectl apply -k {POLICIES.relative_to(ROOT)}\n")
    offering.kubectl("delete", f"--kustomize={POLICIES}")
    await_meaning(offering, "", "", **RDMA)
    own = lines.replace("--image=busybox", f"--image={image.NAME} --image-pull-policy=Never")
    assert "inet 10.56.0." in offering.shell(f"cd {ROOT}\n{own}")
    await_meaning(offering, RAIL, "known are: rdma.", **RDMA)
    offering.apply(deployment(WITH_IPS))
    offering.wait("Available", "deployment/b")
    assert " 0% packet loss" in offering.execute("c", "ping", "-c", "1", "-w", "10", "-I", "hpn0", "10.56.0.12")
    assert "PCIDEVICE_EXAMPLE_COM_RAIL0=" in offering.execute("c", "env")
    assert gained(offering.get("deployment", "b")["spec"]["template"]) == (WITH_IPS, [{}])
    # Only a pod that is made is looked at.
    offering.kubectl("label", "pod", "c", f"{LABEL}=unknown", "--overwrite")
    assert gained(offering.get("pod", "c"))[0] == RAIL
