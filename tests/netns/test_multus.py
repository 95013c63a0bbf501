"""The cluster tier's stand-in for Multus: its calls of plugins with their order, and its network-status of a pod.

Each test also ran with the real Multus 4.3.0 in place of the stand-in (docs/develop/testing.md).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from netns.under_multus import World, world
from support.topology import Host, Pod, ip

TWO = '[{"name": "a", "interface": "hpn0"}, {"name": "b"}]'
CAPABILITIES = {"ips": True, "mac": True, "infinibandGUID": True, "deviceID": True, "CNIDeviceInfoFile": True}
GUID = "00:11:22:33:44:55:66:77"


@pytest.fixture
def node(host: Host, tmp_path: Path) -> Iterator[World]:
    ip("link", "set", "lo", "up")
    with world(tmp_path) as made:
        made.define("a", {"ips": [{"address": "10.1.0.5/24"}, {"address": "fd00::5/64"}]})
        made.define("b", {})
        made.define("b", {}, namespace="other")
        yield made


@pytest.mark.parametrize(
    ("annotation", "attached"),
    [
        (TWO, [("a", "hpn0"), ("b", "net2")]),
        ("a@, other/b@x0,b", [("a", "net1"), ("b", "x0"), ("b", "net3")]),
        ('[{"name": "b", "namespace": "other"}]', [("b", "net1")]),
        ("", []),
    ],
)
def test_networks_of_the_annotation(node: World, pod: Pod, annotation: str, attached: list[tuple[str, str]]) -> None:
    node.annotate(annotation)
    assert node.run("ADD", pod)["ips"] == [{"address": "10.0.0.5/24"}]
    expected = [("cluster", "eth0"), *attached]
    assert node.told() == [("ADD", *each) for each in expected]
    assert node.run("DEL", pod) is None
    assert node.told() == [("DEL", *each) for each in reversed(expected)]


@pytest.mark.parametrize(
    "annotation",
    [
        *("a@sixteen-letters-x", "A", "x/y/a", "nowhere", "[{}]"),
        *('[{"name": "a", "mac": "x"}]', '[{"name": "a", "ips": ["x"]}]'),
        '[{"name": "a", "default-route": ["10.1.0.1", "10.1.0.2"]}]',
    ],
)
def test_an_annotation_that_is_refused(node: World, pod: Pod, annotation: str) -> None:
    node.annotate(annotation)
    assert node.run("ADD", pod)["code"] == 999
    assert node.told() == []


def test_network_status(node: World, pod: Pod) -> None:
    node.annotate(TWO)
    node.run("ADD", pod)
    mac = "02:00:00:00:00:01"
    assert node.status() == [
        {"name": "cluster", "interface": "eth0", "ips": ["10.0.0.5"], "mac": mac, "default": True, "dns": {}},
        {"name": "default/a", "interface": "hpn0", "ips": ["10.1.0.5", "fd00::5"], "mac": mac, "dns": {}},
        {"name": "default/b", "interface": "net2", "mac": mac, "dns": {}},
    ]


def test_network_status_of_a_bridge(node: World, pod: Pod) -> None:
    """The status lists only interfaces in the pod; an address refers to its interface by index."""
    there = [{"name": "cni0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": "/x", "mac": "02:00:00:00:00:02"}]
    of_pod = {"address": "10.0.0.5/24", "gateway": "10.0.0.1", "interface": 2}
    routes = [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}, {"dst": "10.0.0.0/8"}]
    node.conf["delegates"][0] |= {"interfaces": there, "ips": [of_pod], "routes": routes}
    node.annotate("")
    node.run("ADD", pod)
    (status,) = node.status()
    assert (status["interface"], status["ips"], status["gateway"]) == ("eth0", ["10.0.0.5"], ["10.0.0.1"])
    assert status["default"]


def test_another_cluster_network_for_one_pod(node: World, pod: Pod) -> None:
    node.define("own", {}, namespace="kube-system")
    node.annotate("own", key="v1.multus-cni.io/default-network")
    node.run("ADD", pod)
    assert node.told() == [("ADD", "own", "eth0")]


def test_what_a_pod_asks_of_a_network(node: World, pod: Pod) -> None:
    """Multus passes a pod's requests on if the plugin declares the capability, and cni-args always."""
    asked = {"ips": ["10.1.0.9/24"], "mac": "02:00:00:00:00:77", "infiniband-guid": GUID, "cni-args": {"class": 106}}
    node.define(
        "some", {"capabilities": CAPABILITIES | {"mac": False, "portMappings": True}, "args": {"cni": {"kept": 1}}}
    )
    more = {"portMappings": [{"hostPort": 80, "containerPort": 8080}], "bandwidth": {"ingressRate": 1000}}
    node.annotate([{"name": "some", **asked, **more}])
    node.run("ADD", pod)
    node.run("DEL", pod)
    added, deleted = (c for c in node.calls() if c["conf"]["name"] == "some")
    assert added["conf"]["runtimeConfig"] == {
        "ips": ["10.1.0.9/24"],
        "infinibandGUID": GUID,
        "portMappings": more["portMappings"],
    }
    assert added["conf"]["args"] == {"cni": {"kept": 1, "class": 106}}
    pod_args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u-1"
    twice = f"IgnoreUnknown=true;{pod_args};IgnoreUnknown=1;{pod_args}"
    assert added["env"]["CNI_ARGS"] == f"{twice};MAC=02:00:00:00:00:77;IP=10.1.0.9/24"
    assert deleted["env"]["CNI_ARGS"] == twice
    assert deleted["conf"].pop("prevResult")["interfaces"][0]["name"] == "net1"
    del added["conf"]["runtimeConfig"]["portMappings"]
    assert deleted["conf"] == added["conf"]


def test_a_list_of_plugins(node: World, pod: Pod) -> None:
    """Each plugin gets the list's name and version, and the result so far.  DEL gets the whole result, in reverse
    order."""
    plugins = [{"type": "recorder", "n": 1, "ips": [{"address": "10.1.0.5/24"}]}, {"type": "recorder", "n": 2}]
    node.define("a", {"type": "", "plugins": plugins, "cniVersion": "0.4.0", "cniVersions": ["1.0.0", "9.0.0"]})
    node.annotate("a")
    node.run("ADD", pod)
    first, second = node.calls()[1:]
    assert {(c["conf"]["name"], c["conf"]["cniVersion"]) for c in (first, second)} == {("a", "1.0.0")}
    assert "prevResult" not in first["conf"]
    assert second["conf"]["prevResult"]["ips"] == [{"address": "10.1.0.5/24"}]
    node.run("DEL", pod)
    gone = node.calls()[:2]
    assert [c["conf"]["n"] for c in gone] == [2, 1]
    assert [c["conf"]["prevResult"]["ips"] for c in gone] == [[{"address": "10.1.0.5/24"}]] * 2


def test_a_failed_add_is_taken_back(node: World, pod: Pod) -> None:
    node.define("bad", {"fails": ["ADD"]})
    node.annotate("a,bad,b")
    error = node.run("ADD", pod)
    assert error["msg"] == ('[default/p/u-1:bad]: error adding container to network "bad": no; for the test')
    added = [("ADD", "cluster", "eth0"), ("ADD", "a", "net1"), ("ADD", "bad", "net2")]
    deleted = [("DEL", name, ifname) for _, name, ifname in reversed(added)]
    assert node.told() == added + deleted
    # The runtime's own DEL names all of them again.
    node.run("DEL", pod)
    assert node.told() == [("DEL", "b", "net3"), *deleted]


def test_del_goes_on_after_a_failure(node: World, pod: Pod) -> None:
    node.define("bad", {"fails": ["DEL"]})
    node.annotate("a,bad")
    node.run("ADD", pod)
    node.calls()
    assert "no; for the test" in node.run("DEL", pod)["msg"]
    assert node.told() == [("DEL", "bad", "net2"), ("DEL", "a", "net1"), ("DEL", "cluster", "eth0")]


def test_del_has_what_add_had(node: World, pod: Pod) -> None:
    """DEL does not need the pod or the definition; a second DEL calls nothing."""
    node.annotate("a")
    node.run("ADD", pod)
    assert sorted(p.name for p in (node.folder / "cni" / "results").iterdir()) == ["a-c1-net1", "cluster-c1-eth0"]
    node.objects.clear()
    node.calls()
    node.run("DEL", pod)
    assert node.told() == [("DEL", "a", "net1"), ("DEL", "cluster", "eth0")]
    assert [p.name for p in (node.folder / "cni").rglob("*")] == ["results"]
    node.run("DEL", pod)
    assert node.told() == []


def test_a_pod_that_has_gone(node: World, pod: Pod) -> None:
    assert node.run("ADD", pod)["interfaces"] == [{"name": "eth0", "sandbox": pod.path}]
    assert node.told() == []


def test_an_interface_that_is_there_already(node: World, pod: Pod) -> None:
    pod.stranger("net1")
    node.annotate("a")
    assert "interface name net1 already exists" in node.run("ADD", pod)["msg"]


def by_a_file(node: World) -> tuple[Path, dict[str, Any]]:
    """A network in a file, not yet configured as cluster network; return the file and its only plugin."""
    own = {
        "type": "recorder",
        "dataDir": "/x",
        "capabilities": {"mac": True},
        "ipam": {"type": "i", "subnet": "10.0.0.0/24"},
    }
    file = node.folder / "net.d" / "10-own.conflist"
    file.parent.mkdir()
    file.write_text(json.dumps({"cniVersion": "1.1.0", "name": "own", "plugins": [own]}))
    del node.conf["delegates"]
    node.annotate("")
    return file, own


def test_a_cluster_network_by_its_path(node: World, pod: Pod) -> None:
    """DEL and STATUS get only types and capabilities of the configuration."""
    file, own = by_a_file(node)
    for command in ("ADD", "DEL", "STATUS"):
        assert (node.run(command, pod, clusterNetwork=str(file)) is None) == (command != "ADD")
    added, deleted, status = (call["conf"] for call in node.calls())
    named = {"name": "own", "cniVersion": "1.1.0"}
    del deleted["prevResult"]
    assert added == own | named
    stripped = {"type": "recorder", "capabilities": {"mac": True}, "ipam": {"type": "i"}}
    assert [deleted, status] == [stripped | named] * 2


def test_a_cluster_network_by_its_name(node: World, pod: Pod) -> None:
    """DEL gets the whole configuration.  STATUS reads the definition, and ignores the file."""
    _, own = by_a_file(node)
    node.run("ADD", pod, clusterNetwork="own")
    node.run("DEL", pod, clusterNetwork="own")
    _, deleted = (call["conf"] for call in node.calls())
    assert deleted.items() >= own.items()
    node.define("own", own | {"cniVersion": "1.1.0"}, namespace="kube-system")
    assert node.run("STATUS", pod, clusterNetwork="own") is None
    assert node.told() == [("STATUS", "own", "")]


def test_status_and_gc_are_of_the_cluster_network(node: World, pod: Pod) -> None:
    node.annotate("a")
    node.run("ADD", pod)
    node.calls()
    assert node.run("STATUS", pod) is None
    assert node.run("GC", pod) is None
    status, collected = node.calls()
    assert (status["env"]["CNI_COMMAND"], collected["env"]["CNI_COMMAND"]) == ("STATUS", "GC")
    valid = collected["conf"]["cni.dev/valid-attachments"]
    assert valid == [{"containerID": "c1", "ifname": "net1"}, {"containerID": "c1", "ifname": "eth0"}]
    node.conf["delegates"][0]["fails"] = ["STATUS"]
    assert node.run("STATUS", pod)["code"] == 55


def test_default_route(node: World, pod: Pod) -> None:
    """Multus 4.3.0 adds the requested default route beside the pod's others; the cached results do not show it."""

    def routed(name: str, net: int) -> dict[str, Any]:
        gateway = f"10.{net}.0.1"
        words = [f"link add {name} type bridge", f"addr add 10.{net}.0.5/24 dev {name}", f"link set {name} up",
                 f"route add default via {gateway} dev {name} metric {net}"]  # fmt: skip
        address = {"address": f"10.{net}.0.5/24", "gateway": gateway}
        run = [["ip", *line.split()] for line in words]
        return {"ips": [address], "routes": [{"dst": "0.0.0.0/0", "gw": gateway}], "run": run}

    node.conf["delegates"] = [{"cniVersion": "1.0.0", "name": "cluster", "type": "recorder"} | routed("eth0", 1)]
    node.define("a", routed("net1", 2))
    node.annotate([{"name": "a", "default-route": ["10.2.0.9"]}])
    assert node.run("ADD", pod)["routes"] == [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]
    assert {route["gateway"]: route["dev"] for route in pod.ip("route", "show", "default")} == {
        "10.2.0.9": "net1",
        "10.1.0.1": "eth0",
        "10.2.0.1": "net1",
    }
    kept = [
        json.loads((node.folder / "cni" / "results" / name).read_text()) for name in ("cluster-c1-eth0", "a-c1-net1")
    ]
    assert [k["result"].get("routes", []) for k in kept] == [[], [{"dst": "0.0.0.0/0", "gw": "10.2.0.9"}]]
    assert [s.get("gateway") for s in node.status()] == [["10.1.0.1"], ["10.2.0.1"]]
