"""The first steps of docs/user/cluster-addresses.md, typed verbatim, then a released node and a dead one."""

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import image, manifests
from cluster.space import Failed, until
from cluster.two_nodes import CONTROL, Cluster
from support.api_server import apply, await_leases, put_kubeconfig
from support.pages import ROOT, sections
from support.shipped import documents

HPN = "/opt/cni/bin/hpn"
SPEC = {"network": "net", "index": 0, "start": 0, "size": 16, "node": "nobody", "machine": "gone", "claim": "c",
        "suspect": 0, "taken": False}  # fmt: skip
JOB = "localhost/hpn:1"
NODES, ADMIN, ACCOUNT = "/etc/cni/net.d/hpn.kubeconfig", "/etc/kubernetes/admin.conf", "/run/account.kubeconfig"


def steps(title: str = "First steps") -> dict[str, str]:
    """The code blocks of the page's section, by kind."""
    page = ROOT / "docs" / "user" / "cluster-addresses.md"
    (section,) = (one for one in sections(page) if one.title == title)
    return {block.kind: block.text for block in section.blocks}


def ipam(cluster: Cluster, node: str, *words: str, check: bool = True) -> Any:
    """The decoded output of hpn ipam on that node."""
    return json.loads(cluster.nodes[node].run(HPN, "ipam", *words, "--json", check=check).stdout)


def address(cluster: Cluster, pod: str) -> str:
    """The pod's IPv4 address on hpn0."""
    said = cluster.execute(pod, "ip", "-oneline", "-family", "inet", "address", "show", "hpn0")
    return said.split()[3].partition("/")[0]


@pytest.fixture
def pool(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with credentials on its nodes; afterwards it has no trace of a shared pool."""
    # Of the stand-in for Multus, which does not verify the server.
    before = {name: node.run("cat", ADMIN).stdout for name, node in cluster.nodes.items()}
    for node in cluster.nodes:
        put_kubeconfig(cluster, node, NODES, f"token-system:node:{node}")
        put_kubeconfig(cluster, node, ADMIN, "token-admin")
    yield cluster
    cluster.delete("pods", "a", "b", "c", "--grace-period=1")
    for name in ("cluster-gc", "cluster"):
        folder = ROOT / "packaging" / "kubernetes" / name
        cluster.kubectl("delete", f"--kustomize={folder}", "--ignore-not-found", "--timeout=120s", check=False)
    for name, host in cluster.nodes.items():
        host.run("sh", "-c", f"rm -rf {NODES} {ACCOUNT} /run/rail0.conflist /var/lib/cni/hpn/ipam/rail0")
        host.run("sh", "-c", f"cat >{ADMIN}", stdin=before[name])


def forged(cluster: Cluster) -> str:
    """The API server's answer to node1 about a block of node2's, in a dry run."""
    document = {"apiVersion": "hpn-cni.io/v1", "kind": "HpnBlock", "metadata": {"name": "forged.0"},
                "spec": SPEC | {"network": "forged", "node": "node2"}}  # fmt: skip
    words = ("create", "--dry-run=server", "--as=system:node:node1", "--as-group=system:nodes", "--filename=-")
    try:
        return cluster.kubectl(*words, stdin=json.dumps(document))
    except Failed as e:
        return f"{e}"


def test_first_steps_and_the_end_of_a_node(pool: Cluster, tmp_path: Path) -> None:
    page = steps()
    own = f"image: {image.NAME}, imagePullPolicy: Never, "
    (tmp_path / "pods.yaml").write_text(page["yaml pods.yaml"].replace("image: busybox, ", own))
    for name in ("conf", "packaging"):
        (tmp_path / name).symlink_to(ROOT / name)
    said = [pool.shell(f"cd {tmp_path}; {line}") for line in page["sh kubectl"].splitlines()]
    assert "10.57." in said[-2]
    assert {line.split()[2] for line in said[-1].splitlines()[1:]} == {"node1", "node2"}
    for line in page["sh node"].splitlines():
        program, *words = shlex.split(line)
        assert program == "hpn"
        assert "rail0" in pool.nodes["node1"].run(HPN, *words).stdout
    assert address(pool, "a") != address(pool, "b")
    assert " 0% packet loss" in pool.execute("a", "ping", "-c", "1", "-I", "hpn0", address(pool, "b"))

    # The API server and each node agree on the owner of each block.
    blocks = {one["spec"]["node"]: one["spec"]["index"] for one in pool.get("hpnblocks")["items"]}
    for node in ("node1", "node2"):
        (block,) = ipam(pool, node, "blocks")["blocks"]
        assert (block["index"], block["held"], block["free"] > 0) == (blocks[node], 1, True)
    (network,) = ipam(pool, "node2", "show", "--cluster")["networks"]
    assert (network["held"], network["suspect"], network["lost"]) == (2, 0, [])

    # One command for the whole cluster, of a person who may list pods; a node may not list those of other nodes.
    listed = {one["pod"]: one for one in ipam(pool, "node2", "pods", "--kubeconfig", ADMIN)["pods"]}
    for pod, node in (("a", "node1"), ("b", "node2")):
        one = listed[f"default/{pod}"]
        assert (one["node"], one["definition"], one["network"]) == (node, "default/rail0", "rail0")
        assert (one["ifname"], one["addresses"][0]) == ("hpn0", address(pool, pod))
        assert (one["blocks"], one["wrong"]) == ([f"rail0.{blocks[node]}"], [])
    refusal = pool.nodes["node1"].run(HPN, "ipam", "pods", f"--kubeconfig={NODES}", check=False)
    assert "does not list network-attachment-definitions: " in refusal.stderr

    until(lambda: "denied request" in forged(pool), "the API server to see the policy", 120, 0.2)
    await_leases(pool)
    # A node may not remove another node's blocks.  An administrator must force the removal of a live node's blocks.
    refused = ipam(pool, "node1", "release-node", "node2", "--force", check=False)
    assert (refused["blocks"][0]["what"], "node2" in refused["blocks"][0]["why"]) == ("failed", True)
    words = ("release-node", "node2", "--kubeconfig", ADMIN)
    assert "was last alive at" in ipam(pool, "node1", *words, check=False)["refused"]
    assert ipam(pool, "node1", "gc", "--cluster", "--kubeconfig", ADMIN)["blocks"] == []
    pool.delete("pod", "b", "--grace-period=1")
    gone = ipam(pool, "node1", *words, "--force")["blocks"]
    assert [one["what"] for one in gone] == ["removed"]
    (left,) = pool.get("hpnblocks")["items"]
    assert left["spec"]["node"] == "node1"
    (network,) = ipam(pool, "node2", "show", "--cluster", check=False)["networks"]
    assert network["lost"] == [blocks["node2"]]
    # The network is retired: first the pod that has an address, then all that the API server holds.
    retire, *_ = steps("Retire a network")["sh node"].splitlines()
    _, *words_of_page = shlex.split(retire)
    refusal = pool.nodes["node2"].run(HPN, *words_of_page, check=False)
    assert refusal.stdout.startswith("pods have addresses of network rail0: default/a:hpn0; delete them first; ")
    pool.delete("pod", "a", "--grace-period=1")
    for line in steps("Retire a network")["sh node"].splitlines():
        said_last = pool.nodes["node2"].run(HPN, *shlex.split(line)[1:]).stdout
    assert said_last == "no network has a pool in the cluster's backend\n"
    assert pool.get("hpnblocks")["items"] == pool.get("hpnpools")["items"] == []


@pytest.fixture
def job(pool: Cluster, tmp_path: Path) -> Iterator[Path]:
    """The CronJob's folder, with its image on the nodes."""
    folder, archive = tmp_path / "cluster-gc", tmp_path / "image.tar"
    shutil.copytree(ROOT / "packaging" / "kubernetes" / "cluster-gc", folder)
    (tmp_path / "dist").mkdir()
    shutil.copy(pool.nodes["node1"].path(HPN), tmp_path / "dist" / "hpn")
    image.build(ROOT / "packaging" / "image" / "Dockerfile", tmp_path, JOB, archive)
    # This cluster has no Services and no registry, and the pods' network does not lead to the API server.
    for file, written, ours in (
        ("gc.yaml", "restartPolicy: Never", "restartPolicy: Never\n          hostNetwork: true"),
        ("kubeconfig", "https://kubernetes.default.svc", f"https://{CONTROL}:6443"),
        (
            "kustomization.yaml",
            "newName: registry.example.com/hpn\n  newTag: 0.1.0",
            f"newName: {JOB[:-2]}\n  newTag: '1'",
        ),
    ):
        text = (folder / file).read_text()
        assert written in text
        (folder / file).write_text(text.replace(written, ours))
    for node in pool.nodes.values():
        pool.load(node, archive)
    yield folder
    pool.delete("--namespace=kube-system", "jobs", "--all")
    for node in pool.nodes.values():
        pool.unload(node, JOB)


def ended(cluster: Cluster) -> bool:
    """Report whether a pod of the Job has ended, successfully or not."""
    pods = cluster.get("pods", "--namespace=kube-system", "--selector=job-name=now")["items"]
    return any(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in pods)


def test_the_job_that_gives_back_what_dead_nodes_have(pool: Cluster, job: Path) -> None:
    """The Job suspects an unknown node, with an account that permits that."""
    apply(pool)
    pool.apply({"apiVersion": "hpn-cni.io/v1", "kind": "HpnBlock", "metadata": {"name": "net.0"}, "spec": SPEC})
    pool.kubectl("apply", f"--kustomize={job}")
    may = ("auth", "can-i", "list", "hpnblocks", "--as=system:serviceaccount:kube-system:hpn-ipam-gc")
    until(lambda: pool.kubectl(*may, check=False).strip() == "yes", "the API server to see the role", 120, 0.2)
    account = pool.kubectl("-n", "kube-system", "create", "token", "hpn-ipam-gc").strip()
    put_kubeconfig(pool, "node1", ACCOUNT, account)
    pool.kubectl("-n", "kube-system", "create", "job", "now", "--from=cronjob/hpn-ipam-gc")
    until(lambda: ended(pool), "the Job's pod to end", 120, 0.5)
    said = pool.kubectl("-n", "kube-system", "logs", "job/now")
    assert "block net.0 of node nobody: its node is suspected from now on" in said
    (block,) = pool.get("hpnblocks")["items"]
    assert block["spec"]["suspect"] > 1
    assert ipam(pool, "node1", "gc", "--cluster", "--kubeconfig", ACCOUNT)["blocks"][0]["what"] == "waiting"


def test_pools_of_the_nodes_become_one_while_pods_run(pool: Cluster) -> None:
    """docs/user/migration.md: the import runs on every node before the configuration changes, and the export reverses
    it."""
    (config,) = documents(ROOT / "conf" / "nad-cluster.yaml")
    (plugin,) = config["plugins"]
    own = {key: value for key, value in plugin["ipam"].items() if key != "cluster"}
    pool.apply(manifests.network("rail0", plugin | {"ipam": own}))
    # fd00:57::20 is number 32, and fd00:57::70 number 112.
    before = {"a": ("node1", "10.57.0.20"), "b": ("node2", "10.57.0.70")}
    for name, (node, ip) in before.items():
        asked = [{"name": "rail0", "interface": "hpn0", "ips": [f"{ip}/16", f"fd00:57::{ip[-2:]}/64"]}]
        pool.apply(manifests.pod(name, node=node, networks=json.dumps(asked)))
    pool.wait("Ready", "pod/a", "pod/b")
    apply(pool)
    for node in pool.nodes.values():
        node.run("sh", "-c", "cat >/run/rail0.conflist", stdin=json.dumps(config))
        node.run(HPN, "ipam", "import", "--from", "node", "/run/rail0.conflist")
    held = {one["spec"]["index"]: one["spec"]["node"] for one in pool.get("hpnblocks")["items"]}
    assert held == {1: "node1", 2: "node1", 4: "node2", 7: "node2"}
    pool.apply(manifests.network("rail0", plugin))
    pool.apply(manifests.pod("c", node="node2", networks="rail0@hpn0"))
    pool.wait("Ready", "pod/c")
    for name, (_, ip) in before.items():
        assert address(pool, name) == ip
        assert " 0% packet loss" in pool.execute("c", "ping", "-c", "1", "-I", "hpn0", ip)
    number = int(address(pool, "c").rpartition(".")[2])
    assert held[number // 16] == "node2"
    pool.delete("pod", "a", "b", "c", "--grace-period=1")
    assert all(node.leases() == [] for node in pool.nodes.values())
    first, *_ = pool.nodes["node1"].run(HPN, "ipam", "export", "--to", "node", "rail0").stdout.splitlines()
    assert json.loads(first)["subnet"] == "10.57.0.0/16"
    assert ipam(pool, "node1", "blocks")["blocks"] == []
