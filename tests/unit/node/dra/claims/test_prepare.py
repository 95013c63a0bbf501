"""The decision for Prepare: an allocated claim becomes a prepared one, or is refused by a sentence with its remedy."""

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cni
from base.kernel import rdma_netlink
from base.state.claims import Claim, ClaimedDevice
from cni import chain
from cni import config as cni_config
from node.dra.claims import prepare
from node.dra.claims.parameters import Refused
from node.dra.claims.prepare import Asked, Found

UID = "0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f"
POD = "a1b2c3d4-0000-4000-8000-000000000001"
ASKED = Asked(UID, "default", "rails")
VF = Found("0000:3b:00.2", "vf", "example.com/rail0", {"kind": {"string": "vf"}}, nodes=("/dev/infiniband/uverbs4",))
MASTER = Found("rail0", "master", "example.com/rail0", {})
DEVICES = {"vf2": VF, "vf3": replace(VF, id="0000:3b:00.3"), "rail0": MASTER, "broken": replace(VF, problem="no link")}
Change = Callable[[dict[str, Any]], None]


def result(device: str = "vf2", request: str = "rails", **more: Any) -> dict[str, Any]:
    return {"request": request, "driver": "hpn-cni.io", "pool": "node1/pci-0000-3b-00-0", "device": device, **more}


def config(source: str = "FromClass", requests: tuple[str, ...] = (), **keys: Any) -> dict[str, Any]:
    parameters = {"apiVersion": "hpn-cni.io/v1", "kind": "Attachment", **keys}
    entry = {"source": source, "opaque": {"driver": "hpn-cni.io", "parameters": parameters}}
    return {**entry, "requests": list(requests)} if requests else entry


def claim(*configs: dict[str, Any], results: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """A ResourceClaim as the API server has it."""
    devices = {"results": list(results or (result(),)), "config": list(configs)}
    return {
        "metadata": {"name": "rails", "namespace": "default", "uid": UID},
        "spec": {},
        "status": {
            "allocation": {"devices": devices},
            "reservedFor": [{"resource": "pods", "name": "a", "uid": POD}],
        },
    }


def find(_: str, device: str) -> Found | None:
    return DEVICES.get(device)


def decide(document: dict[str, Any] | None) -> Claim:
    return prepare.decide(ASKED, document, find)


def refused(document: dict[str, Any] | None) -> str:
    with pytest.raises(Refused) as refusal:
        decide(document)
    return str(refusal.value)


def test_a_device_for_multus() -> None:
    document = claim(
        config(allow=["ips", "mac"]),
        config("FromClaim", ips=["10.0.0.7/24"], mac="02:00:00:00:00:07"),
        {"source": "FromClass", "opaque": {"driver": "gpu.example.com", "parameters": {"anything": 1}}},
        results=(result(), {**result("gpu0"), "driver": "gpu.example.com"}),
    )
    document["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "rails-of-pod"}
    made = decide(document)
    device = ClaimedDevice(
        request="rails",
        pool="node1/pci-0000-3b-00-0",
        device="vf2",
        share="",
        id="0000:3b:00.2",
        kind="vf",
        resource="example.com/rail0",
        attach="multus",
        ips=("10.0.0.7/24",),
        mac="02:00:00:00:00:07",
        attributes={"kind": {"string": "vf"}},
        nodes=("/dev/infiniband/uverbs4",),
    )
    assert made == Claim(UID, "default", "rails", (POD,), (device,), pod_claim="rails-of-pod")


@pytest.mark.parametrize("name", ["../../../../../etc/x", "a/b", "A", "x" * 64, "\n", None])
def test_a_name_in_the_pod_that_leads_elsewhere(name: Any) -> None:
    """A path in the container has the name, and anyone who may make a claim may annotate it."""
    document = claim()
    document["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": name}
    assert decide(document).pod_claim == ""


def test_a_claim_that_is_prepared_already() -> None:
    """The devices have left the slices, and one is ill.  Only another allocation is refused."""
    made = replace(decide(claim(results=(result(), result("vf3", "b")))), pods=("another",), ended=True)

    def ill(_: str, device: str) -> Found | None:
        return replace(VF, problem="no link") if device == "vf3" else None

    document = claim(results=(result(), result("vf3", "b")))
    assert prepare.decide(ASKED, document, ill, made) == replace(made, pods=(POD,), ended=False)
    for changed in (result(), result("vf3", "c"), result("vf4", "b"), result("vf3", "b", shareID="s")):
        with pytest.raises(Refused, match="is none of this node's devices now"):
            prepare.decide(ASKED, claim(results=(result(), changed)), ill, made)
    with pytest.raises(Refused, match="is reserved for no pod"):
        prepare.decide(ASKED, {**document, "status": {**document["status"], "reservedFor": []}}, ill, made)


def test_a_pod_group_is_no_pod() -> None:
    document = claim()
    document["status"]["reservedFor"] = [
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "x"},
        {"resource": "pods", "name": "a", "uid": POD},
    ]
    assert decide(document).pods == (POD,)


def test_who_waits_for_an_interface() -> None:
    """A claim for extended resources only if its class says how the interface comes: a pod has no place for that."""
    extended = {"resource.kubernetes.io/extended-resource-claim": "true"}
    attached = config(attach="multus")
    for annotations, configs, waits in (
        (extended, (), False),
        (extended, (config(mac="02:00:00:00:00:07"),), False),
        (extended, (attached,), True),
        ({}, (), True),
        ({"resource.kubernetes.io/extended-resource-claim": "false"}, (), True),
    ):
        document = claim(*configs)
        document["metadata"]["annotations"] = annotations
        (device,) = decide(document).devices
        assert (device.attach, device.waits, device.is_awaited) == ("multus", waits, waits)
    document = claim(config(attach="none"))
    assert not decide(document).devices[0].is_awaited


@pytest.mark.parametrize("keys", [{}, {"attach": "none"}, {"attach": "chain"}])
def test_whose_limit_of_locked_memory(monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]) -> None:
    """The class's is instead of the device file's, in every way of attachment, and no key of the network."""
    monkeypatch.setitem(DEVICES, "vf3", replace(DEVICES["vf3"], memlock=4096))
    results = (result(), result("vf3", "b"), result("vf2", "c"), result("vf3", "d"))
    configs = [config(**keys), config(requests=("c", "d"), memlock="keep")]
    found = decide(claim(*configs, results=results)).devices
    assert [one.memlock for one in found] == ["", 4096, "keep", "keep"]
    assert not any("memlock" in one.config for one in found)


def test_admin_access_attaches_nothing() -> None:
    (device,) = decide(claim(results=(result(adminAccess=True),))).devices
    assert device.attach == "none"


def test_admin_access_to_a_device_that_is_ill() -> None:
    """An administrator observes such a device; a pod that needs a device gets no sick one."""
    assert decide(claim(results=(result("broken", adminAccess=True),))).devices[0].id
    assert "no link" in refused(claim(results=(result("broken"),)))


@pytest.mark.parametrize(
    ("of_class", "attached"),
    [
        ({}, {"kind": "sriov", "pfOnly": True}),
        ({"config": {"kind": "sriov"}}, {"kind": "sriov", "pfOnly": True}),
        ({"config": {"kind": "host-device"}}, {"kind": "host-device"}),
    ],
)
def test_a_whole_pf_in_chain_mode(
    of_class: dict[str, Any], attached: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deviceID alone is that of a VF for ADD, which would refuse it."""
    monkeypatch.setitem(DEVICES, "pf", replace(VF, id="0000:3b:00.0", kind="pf"))
    (device,) = decide(claim(config(attach="chain", **of_class), results=(result("pf"),))).devices
    assert attached.items() <= device.config.items()
    made = chain._configuration(device, {"cniVersion": "1.1.0", "type": "hpn"})
    assert cni_config.load(made, "").attach.kind == attached["kind"]


def test_a_mac_that_the_kind_cannot_have() -> None:
    keys = {"attach": "chain", "mac": "02:00:00:00:00:07", "config": {"kind": "host-device"}}
    assert "host-device moves an interface as it is" in refused(claim(config(**keys)))


def test_a_share() -> None:
    (device,) = decide(claim(results=(result("rail0", shareID="s-1"),))).devices
    assert (device.kind, device.share, device.id) == ("master", "s-1", "rail0")


def test_configurations_of_requests() -> None:
    """The class's keys come first, those of the claim win, and each is for the requests that it names."""
    document = claim(
        config(attach="chain", mtu=1500, allow=["interface", "rps"]),
        config("FromClaim", ("a",), interface="hpn0"),
        config("FromClaim", ("b", "c/first"), interface="hpn1", rps="0-3"),
        results=(result(request="a"), result("vf3", request="c/first")),
    )
    one, other = decide(document).devices
    assert (one.interface, one.config["mtu"], "rps" in one.config) == ("hpn0", 1500, False)
    assert (other.interface, other.config["rps"]) == ("hpn1", "0-3")


def test_the_chains_configuration() -> None:
    keys = {
        "vlan": 100,
        "trust": "on",
        "mtu": 9000,
        "ipam": {"type": "hpn-ipam", "ranges": [[{"subnet": "10.0.0.0/24"}]]},
    }
    document = claim(config(attach="chain", allow=["sticky"], **keys), config("FromClaim", sticky="trainer-0"))
    (device,) = decide(document).devices
    assert device.attach == "chain"
    assert device.config == {
        "cniVersion": "1.0.0",
        "name": "example.com-rail0",
        "type": "hpn",
        **keys,
        "runtimeConfig": {"sticky": "default/trainer-0"},
    }


def test_whose_sticky_name() -> None:
    """A claim's is of its own namespace: another namespace's pods have their addresses kept under the same names."""
    for of, name in (("FromClaim", "default/trainer-0"), ("FromClass", "other/trainer-0"), ("FromClass", "trainer-0")):
        (device,) = decide(claim(config(attach="chain", allow=["sticky"]), config(of, sticky=name))).devices
        assert device.config["runtimeConfig"] == {"sticky": name}


def test_a_network_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "FOLDER", str(tmp_path))
    plugin = {"type": "hpn", "mtu": 9000, "multiRail": True, "ipam": {"type": "hpn-ipam"}}
    list_ = {"cniVersion": "1.1.0", "name": "fabric", "plugins": [plugin]}
    (tmp_path / "rail0.conflist").write_text(json.dumps(list_))
    (device,) = decide(claim(config(attach="chain", network="rail0", mtu=1500))).devices
    assert device.config == {"cniVersion": "1.1.0", "name": "fabric", **plugin, "mtu": 1500}
    (tmp_path / "rail0.conflist").write_text(json.dumps({**list_, "plugins": [plugin, plugin]}))
    assert "has not one plugin" in refused(claim(config(attach="chain", network="rail0")))
    for key, value in (("rails", ["rail0", "rail1"]), ("claims", True)):
        (tmp_path / "rail0.conflist").write_text(json.dumps({**list_, "plugins": [{**plugin, key: value}]}))
        for named in ({"network": "rail0"}, {"config": {**plugin, key: value}}):
            words = refused(claim(config(attach="chain", **named)))
            assert f"{key} in the network of a DeviceClass: a claim's device gets one interface; remove {key}" in words
    (tmp_path / "rail0.conflist").write_text("{")
    assert "cannot be read" in refused(claim(config(attach="chain", network="rail0")))
    (tmp_path / "rail0.conflist").chmod(0o666)
    assert "can be written by others" in refused(claim(config(attach="chain", network="rail0")))


RANGES = {"type": "hpn-ipam", "ranges": [[{"subnet": "10.0.0.0/24"}]]}
OPEN = ["interface", "ips", "mac", "sticky", "rps"]


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ([config(mtuu=1)], "mtuu is an unknown key; did you mean mtu?"),
        ([config(zzzz=1)], "zzzz is an unknown key; remove zzzz"),
        ([config(kind="Attachmen")], 'kind "Attachmen" is unknown; the parameters of hpn-cni.io have kind Attachment'),
        ([config(apiVersion="v2")], 'apiVersion "v2" is unknown'),
        ([{"source": "FromClaim", "opaque": {"driver": "hpn-cni.io", "parameters": [1]}}], "parameters [1] is not an"),
        ([config("FromClaim", vlan=1)], "vlan 1: only a DeviceClass may set vlan, and not a claim; remove vlan"),
        (
            [config("FromClaim", memlock="unlimited")],
            'memlock "unlimited": only a DeviceClass may set memlock, and not',
        ),
        ([config(memlock=0)], "memlock 0 is not a limit of locked memory; write unlimited, keep, or bytes"),
        ([config("FromClaim", attach="none")], "only a DeviceClass may set attach"),
        ([config("FromClaim", allow=OPEN)], "only a DeviceClass may set allow"),
        ([config(allow=[]), config("FromClaim", interface="a")], "the DeviceClass does not let a claim set interface"),
        ([config("FromClaim", mac="02:00:00:00:00:01")], "does not let a claim set mac; remove it, or have"),
        ([config(mtu=1), config(mtu=2)], "mtu is given twice, as 1 and as 2; remove one"),
        ([config("FromClaim", interface="a"), config("FromClaim", interface="b")], "interface is given twice"),
        ([config(interface="interface-too-long")], "cannot name an interface: 1 to 15 bytes"),
        ([config(interface="a/b")], "cannot name an interface"),
        ([config(interface="default")], "cannot name an interface: 'all', 'default'"),
        ([config(interface=5)], "interface 5 is not text"),
        ([config(mac="01:00:00:00:00:01")], "is a multicast MAC; the first byte must be even"),
        ([config(mac="00:00:00:00:00:00")], "is the zero MAC"),
        ([config(mac="02-00-00-00-00-01")], "is not a MAC address; write aa:bb:cc:dd:ee:ff"),
        ([config(ips="10.0.0.1/24")], "is not a list of addresses"),
        ([config(ips=["10.0.0.256/24"])], "which is not an address"),
        ([config(attach="nri")], 'attach "nri" is not one of multus, chain, none'),
        ([config(allow=["vlan"])], "is not a list of interface, ips, mac, sticky, rps"),
        ([config(config=5)], "config 5 is not an object"),
        ([config(mtu=9000)], "mtu 9000 needs attach chain, not multus; set it in the NetworkAttachmentDefinition"),
        ([config(attach="none", ips=["10.0.0.1/24"])], "ips needs an interface, and attach none makes none"),
        ([config(attach="chain", network="rail9")], "has no /etc/cni/hpn.d/rail9.conflist; put it there, or name"),
        ([config(attach="chain", network="../x")], 'network "../x" names a file in /etc/cni/hpn.d'),
        ([config(attach="chain", network="a", config={})], 'network "a" and config are both given; remove one'),
        ([config(attach="chain", config={"mtuu": 1})], "mtuu 1 is an unknown key"),
        ([config(attach="chain", mtu="big")], 'mtu "big": '),
        ([config(attach="chain", ipam=RANGES, ips=["10.9.0.1/24"])], 'ips "10.9.0.1/24" is in none of the ranges 10.0'),
        ([config(attach="chain", ips=["10.9.0.1/24"])], "needs ipam in the DeviceClass"),
        (
            [config(attach="chain", allow=OPEN), config("FromClaim", sticky="other/a")],
            'sticky "other/a": a claim of namespace default has no other namespace\'s name; remove it',
        ),
        ([config(interface="x", sysctl={"a": "b" * 10_300})], "parameters has more than 10240 bytes"),
    ],
)
def test_a_configuration_that_is_refused(configs: list[dict[str, Any]], words: str) -> None:
    assert words in refused(claim(*configs))


ODD = "claim default/rails is not as the API server makes it: "


def changed(change: Change) -> dict[str, Any]:
    document = copy.deepcopy(claim())
    change(document)
    return document


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "claim default/rails does not exist"),
        (changed(lambda d: d["metadata"].update(uid="other")), "claim default/rails has UID other now"),
        (changed(lambda d: d["status"].pop("allocation")), "claim default/rails is not allocated"),
        (changed(lambda d: d.pop("status")), "claim default/rails is not allocated"),
        (changed(lambda d: d["status"].pop("reservedFor")), "claim default/rails is reserved for no pod"),
        (claim(results=({**result(), "driver": "x"},)), "has no device of hpn-cni.io"),
        (claim(results=(result("gone"),)), "device node1/pci-0000-3b-00-0/gone is none of this node's devices now"),
        (claim(results=(result("broken"),)), "device 0000:3b:00.2 (node1/pci-0000-3b-00-0/broken): no link"),
        (claim(config(interface="a"), results=(result(), result("vf3"))), 'interface "a" is for one device, and'),
        (claim(results=(result(request=["a"]),)), f'{ODD}request ["a"]'),  # type: ignore[arg-type]
        (claim(results=(result(request="../../x"),)), f'{ODD}request "../../x"'),
        (claim(results=(result(request="a/b/c"),)), f'{ODD}request "a/b/c"'),
        (claim(results=(result(request="r\n\x1b[0m"),)), f'{ODD}request "r\\n'),
        (claim(results=(result(pool={}),)), f"{ODD}pool {{}}"),
        (claim(results=(result(device=7),)), f"{ODD}device 7"),  # type: ignore[arg-type]
        (claim(results=(result(),) * 33), f"{ODD}33 devices"),
        (changed(lambda d: d["status"]["reservedFor"][0].update(uid={})), f"{ODD}UID {{}} of a pod"),
    ],
)
def test_a_claim_that_is_refused(document: dict[str, Any] | None, words: str) -> None:
    assert words in refused(document)


@pytest.mark.parametrize(
    ("is_exclusive", "mode", "words"),
    [(False, "exclusive", "RDMA is in shared mode on node"), (True, "shared", "RDMA is in exclusive mode on node")],
)
def test_another_rdma_mode_than_the_kernels(
    is_exclusive: bool, mode: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = claim(config(attach="chain", rdma={"mode": mode}))
    monkeypatch.setattr(rdma_netlink, "is_exclusive", lambda: is_exclusive)
    assert words in refused(asked)
    monkeypatch.setattr(rdma_netlink, "is_exclusive", lambda: not is_exclusive)
    assert decide(asked).devices[0].config["rdma"] == {"mode": mode}


# Beside other claims


def test_the_same_name_in_one_pod() -> None:
    made = decide(claim(config(interface="hpn0")))
    other = replace(made, uid=UID.replace("0d", "1d"), name="another", devices=(replace(made.devices[0], id="x"),))
    with pytest.raises(Refused, match='interface "hpn0": claim default/another gives the pod'):
        prepare.refuse_same_names(made, (other,))
    two = decide(claim(config(interface="hpn0"), results=(result(), result("vf3", request="b"))))
    with pytest.raises(Refused, match='interface "hpn0": another request of claim default/rails gives'):
        prepare.refuse_same_names(two, ())


def test_the_devices_that_a_decision_needs() -> None:
    """Those of this driver, and none that the API server makes of no claim."""
    results = (result(), result("vf3", request="b"), result("vf2", request="c"), {"driver": "other", "pool": 1})
    pool = "node1/pci-0000-3b-00-0"
    assert prepare.devices(claim(results=results)) == {(pool, "vf2"), (pool, "vf3")}
    many = tuple(result(f"vf{number}") for number in range(99))
    assert len(prepare.devices(claim(results=many))) == 32
    odd = claim(results=(result(), result(pool=["x"]), result(device=1)))  # type: ignore[arg-type]
    assert prepare.devices(odd) == {(pool, "vf2")}
    for document in (None, "why", {}, {"status": None}, {"status": {"allocation": []}}, claim(results=(1,))):  # type: ignore[arg-type]
        assert not prepare.devices(document)


def test_an_accepted_configuration_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parser takes most of the time of a Prepare, and each child process would import it."""
    monkeypatch.setattr(prepare, "_accepted", {})
    first = decide(claim(config(attach="chain", mtu=1500)))
    accepted = prepare.accepted()
    assert len(accepted) == 1
    assert not prepare.accepted(accepted.keys())
    monkeypatch.setattr(prepare, "_accepted", {})  # the parent's
    prepare.remember(accepted)
    monkeypatch.delattr(cni, "config")
    monkeypatch.setitem(sys.modules, "cni.config", None)  # an import fails now
    assert decide(claim(config(attach="chain", mtu=1500))) == first
    with pytest.raises(ImportError):
        decide(claim(config(attach="chain", mtu=9000)))
