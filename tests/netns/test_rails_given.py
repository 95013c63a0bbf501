"""Rails by resources: the devices that kubelet gave the pod, from its checkpoint."""

from pathlib import Path

import pytest
from support import chained, pod_resources
from support.listed_rails import RAILS, conf
from support.pod_resources import CNI_ARGS, UID
from support.topology import Host, Pod, ip


@pytest.fixture(autouse=True)
def second_rail(host: Host) -> None:
    chained.add_rails()


@pytest.fixture
def kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return pod_resources.kubelet(tmp_path / "kubelet", monkeypatch)


def test_the_pods_resources(host: Host, pod: Pod, kubelet: Path) -> None:
    """All devices that kubelet gave this pod are its rails; an earlier pod of the same name lends none."""
    earlier = "99999999-2222-3333-4444-555555555555"
    pod_resources.keep(
        kubelet,
        pod_resources.entry(earlier, "example.com/rail", "rail0-1"),
        pod_resources.entry(UID, "example.com/rail", "rail1-7"),
        pod_resources.entry(UID, "example.com/other", "rail0-4"),
    )
    listed = conf(host, rails=["example.com/other", "example.com/rail"])
    result = host.ok("ADD", pod, listed, CNI_ARGS=CNI_ARGS)
    masters = {i["ifname"]: i["ifindex"] for i in ip("link")}
    assert [(pod.link(name) or {})["link_index"] for name in ("hpn0", "hpn1")] == [masters[name] for name in RAILS]
    assert host.checked(pod, listed, result, CNI_ARGS=CNI_ARGS).exit_code == 0
    assert host.ok("STATUS", None, listed, CNI_IFNAME="") == {}
    host.ok("DEL", pod, listed, CNI_ARGS=CNI_ARGS)
    assert (pod.links(), host.state_files()) == (set(), set())


def test_several_devices_of_one_resource(host: Host, pod: Pod, kubelet: Path) -> None:
    """Also of several containers."""
    given = [pod_resources.entry(UID, "example.com/rail", one) for one in ("rail1-0", "rail0-9")]
    pod_resources.keep(kubelet, *given)
    result = host.ok("ADD", pod, conf(host, rails=["example.com/rail"]), CNI_ARGS=CNI_ARGS)
    assert [one["gateway"] for one in result["ips"] if "." in one["gateway"]] == ["10.56.0.1", "10.57.0.1"]


def test_all_resources_of_a_domain(host: Host, pod: Pod, kubelet: Path) -> None:
    """Nodes with other resources share the definition.  The pod's rails are in the order of the resources' numbers."""
    named = {"example.com/rail10": "rail1-0", "example.com/rail9": "rail0-0", "other.com/rail1": "absent-1"}
    pod_resources.keep(kubelet, *(pod_resources.entry(UID, name, unit) for name, unit in named.items()))
    result = host.ok("ADD", pod, conf(host, rails=["example.com/*"]), CNI_ARGS=CNI_ARGS)
    assert [one["gateway"] for one in result["ips"] if "." in one["gateway"]] == ["10.56.0.1", "10.57.0.1"]
    twice = conf(host, rails=["example.com/*", "example.com/rail9"])
    error = host.refused("ADD", pod, twice, CNI_ARGS=CNI_ARGS, CNI_IFNAME="net0")
    assert (error["code"], "are the same master, 'rail0'" in error["msg"]) == (7, True), error
    error = host.refused("ADD", pod, conf(host, rails=["example.org/*"]), CNI_ARGS=CNI_ARGS)
    part = "rails 'example.org/*': kubelet gave pod default/a no device of this resource"
    assert (error["code"], part in error["msg"]) == (7, True), error


@pytest.mark.parametrize(
    ("units", "code", "part"),
    [
        ([], 7, "kubelet gave pod default/a no device of this resource; request it in the limits"),
        (["3"], 7, "its unit '3' names no device, as where devices are pooled"),
        (["absent-1"], 101, "absent"),
        (["rail0-1", "rail0-2"], 7, "are the same master, 'rail0'"),
    ],
)
def test_resources_that_are_no_rails(
    host: Host, pod: Pod, kubelet: Path, units: list[str], code: int, part: str
) -> None:
    pod_resources.keep(kubelet, pod_resources.entry(UID, "example.com/rail", *units))
    before = host.picture(pod)
    error = host.refused("ADD", pod, conf(host, rails=["example.com/rail"]), CNI_ARGS=CNI_ARGS)
    assert (error["code"], part in error["msg"]) == (code, True), error
    error = host.refused("ADD", pod, conf(host, rails=["example.com/rail"]), CNI_ARGS="K8S_POD_NAME=a")
    assert (error["code"], "CNI_ARGS has no K8S_POD_UID" in error["msg"]) == (7, True), error
    assert host.picture(pod) == before


@pytest.mark.parametrize("text", ["{", "[]", '{"Data": {"PodDeviceEntries": [{"PodUID": 1}]}}', None])
def test_a_checkpoint_that_cannot_be_read(host: Host, pod: Pod, kubelet: Path, text: str | None) -> None:
    file = kubelet / pod_resources.CHECKPOINT
    if text is None:
        file.parent.rmdir()
    else:
        file.write_text(text)
    error = host.refused("ADD", pod, conf(host, rails=["example.com/rail"]), CNI_ARGS=CNI_ARGS)
    assert (error["code"], f"kubelet's checkpoint {file} cannot be read" in error["msg"]) == (11, True), error


@pytest.mark.parametrize("unit", ["", "\0", "\ud800", "../x", "rail0-٣", "a b"])
def test_units_that_name_no_device(host: Host, pod: Pod, kubelet: Path, unit: str) -> None:
    pod_resources.keep(kubelet, pod_resources.entry(pod_resources.UID, "example.com/rail", unit))
    for kind in (..., "sriov", "macvlan"):
        listed = conf(host, rails=["example.com/rail"], kind=kind)
        error = host.refused("ADD", pod, listed, CNI_ARGS=pod_resources.CNI_ARGS)
        assert (error["code"], "names no device" in error["msg"]) == (7, True), error


def test_a_share_is_not_moved(host: Host, pod: Pod, kubelet: Path) -> None:
    pod_resources.keep(kubelet, pod_resources.entry(pod_resources.UID, "example.com/rail", "0000:3b:10.1-1"))
    for kind in ("sriov", "host-device"):
        listed = conf(host, rails=["example.com/rail"], kind=kind)
        error = host.refused("ADD", pod, listed, CNI_ARGS=pod_resources.CNI_ARGS)
        assert (error["code"], "would take 0000:3b:10.1 from all pods that share it" in error["msg"]) == (7, True)


def test_status_of_resources(host: Host) -> None:
    """It asks the IPAM plugin, and the journal."""
    full = conf(host, rails=["example.com/rail"], ipam={"rails": []})
    assert host.refused("STATUS", None, full, CNI_IFNAME="")["code"] == 7


def test_keys_of_several(host: Host, pod: Pod, kubelet: Path) -> None:
    """The pod's devices count, not the entries; one rail may have them."""
    given = [pod_resources.entry(pod_resources.UID, "example.com/rail", one) for one in ("rail0-0", "rail1-0")]
    pod_resources.keep(kubelet, *given)
    listed = conf(host, rails=["example.com/rail"], policyRouting={"table": 500})
    error = host.refused("ADD", pod, listed, CNI_ARGS=pod_resources.CNI_ARGS)
    assert (error["code"], "policyRouting.table 500 beside rails: 2 interfaces" in error["msg"]) == (7, True), error
    host.ok("ADD", pod, conf(host, rails=["rail0"], mac="02:00:00:00:00:07", ipam={"align": False}))
    assert (pod.link() or {})["address"] == "02:00:00:00:00:07"
