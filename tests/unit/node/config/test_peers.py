"""Files of other device plugins: they have the same meaning here, and what those programs refuse is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.node_files import HCA, SHARED, SRIOV, VHCA, only, read, shared, sriov

from hardware.model import Kind
from node.config import BadFile
from node.config.values import entries
from node.model import PfName, Selector, Sharing, Verbs

FUNCTIONS = frozenset({Kind.PF, Kind.VF})


def test_the_shared_plugins_file() -> None:
    settings = read(SHARED)
    assert settings.dialect == "k8s-rdma-shared-dev-plugin"
    first, second = settings.resources
    assert (first.full_name, first.count, first.source) == ("example.com/hca_a", 1000, "configList[0]")
    assert (second.full_name, second.count) == ("rdma/hca_b", 500)
    assert first.selectors == (Selector(kinds=FUNCTIONS, netdevs=frozenset({"ib0", "ib1"}), rdma=True),)
    assert second.selectors == (
        Selector(
            kinds=FUNCTIONS,
            vendors=frozenset({"15b3"}),
            products=frozenset({"1017"}),
            netdevs=frozenset({"ib3"}),
            link_types=frozenset({"infiniband"}),
            rdma=True,
        ),
    )
    for one in settings.resources:
        assert (one.sharing, one.pooled, one.verbs) == (Sharing.SHARED, True, Verbs.ALL)


def test_the_sriov_plugins_file() -> None:
    settings = read(SRIOV)
    assert settings.dialect == "sriov-network-device-plugin"
    plain, dpdk, rdma, vdpa, sf, fpga = settings.resources
    assert plain.full_name == "intel.com/netdevice"
    assert plain.selectors == (
        Selector(
            kinds=FUNCTIONS,
            vendors=frozenset({"8086"}),
            products=frozenset({"154c"}),
            drivers=frozenset({"iavf"}),
        ),
    )
    assert (plain.sharing, plain.verbs, plain.topology, plain.vhost_net) == (Sharing.EXCLUSIVE, Verbs.NONE, True, False)
    assert (dpdk.full_name, dpdk.topology, dpdk.vhost_net) == ("example.com/dpdk", False, True)
    assert dpdk.selectors[0].pf_names == (PfName("ens1f0", (range(1), range(2, 8))),)
    assert (rdma.verbs, rdma.selectors[0].rdma, rdma.selectors[0].pkeys) == (Verbs.MANAGEMENT, True, {1})
    assert (vdpa.selectors[0].vdpa, vdpa.selectors[0].pf_addresses[0].name) == ("vhost", "0000:86:00.0")
    assert (sf.selectors[0].kinds, sf.extra) == ({Kind.SF}, {"*": {"token": "t"}})
    assert fpga.selectors == (
        Selector(kinds=frozenset({Kind.ACCELERATOR}), vendors=frozenset({"8086"}), drivers=frozenset({"vfio-pci"})),
    )
    assert settings.notes == ()


def test_the_old_plugins_file() -> None:
    (hca,) = read(HCA).resources
    assert (hca.full_name, hca.count, hca.pooled, hca.verbs) == ("rdma/hca", 1000, True, Verbs.DIRECTORY)
    (vhca,) = read(VHCA).resources
    assert (vhca.full_name, vhca.sharing, vhca.verbs) == ("rdma/vhca", Sharing.EXCLUSIVE, Verbs.DIRECTORY)
    assert vhca.selectors == (Selector(kinds=frozenset({Kind.VF}), pf_names=(PfName("ens1f0"), PfName("ens1f1"))),)


@pytest.mark.parametrize("mode", ["HCA", "", 5, None, [], {}])
def test_every_other_mode_is_hca(mode: Any) -> None:
    settings = read({"mode": mode})
    assert settings.resources[0].full_name == "rdma/hca"
    assert any("is read as" in note for note in settings.notes)


def test_flags() -> None:
    assert [one.prefix for one in read(SRIOV, prefix="nvidia.com").resources][:2] == ["nvidia.com", "example.com"]
    assert [one.prefix for one in read(SHARED, prefix="nvidia.com").resources] == ["example.com", "rdma"]
    for file in (SHARED, SRIOV, HCA, VHCA):
        assert all(one.cdi for one in read(file, cdi=True).resources)
        assert not any(one.cdi for one in read(file).resources)


def test_keys_in_any_case_and_null() -> None:
    odd = {"CONFIGLIST": [{"ResourceName": "a", "RDMAHCAMAX": 3, "Selectors": {"IFNAMES": ["x"], "vendors": None}}]}
    assert only(odd) == only(shared(rdmaHcaMax=3))
    twice = (
        '{"resourceList": [{"resourceName": "x", "resourceName": "a", "selectors": {"isrdma": true, "IsRdma": false}}]}'
    )
    settings = read(twice)
    assert settings.resources[0] == only(sriov())
    assert [note.partition(" ")[0] for note in settings.notes] == ["the", "resourceList[0].selectors.IsRdma"]


def test_null_in_a_list_is_empty_text() -> None:
    file = sriov(selectors={"drivers": ["a", None]}, additionalInfo={"*": None, "x": {"y": None}})
    assert only(file).selectors[0].drivers == {"a", ""}
    assert only(file).extra == {"*": {}, "x": {"y": ""}}


@pytest.mark.parametrize(
    ("file", "note"),
    [
        (shared(selectors={"ifName": ["y"], "ifNames": ["x"]}), "configList[0].selectors.ifName is ignored"),
        (shared(selectors={"ifName": ["y"], "ifNames": ["x"]}), "did you mean ifNames?"),
        (sriov(checkHealthOnPf=True), "resourceList[0].checkHealthOnPf is ignored, there and here"),
        (sriov(selectors=[{}, {"auxTypes": ["sf"]}]), "resourceList[0].selectors[1].auxTypes is ignored"),
        (sriov(selectors={"\u2028": 1}), r'resourceList[0].selectors."\u2028" is ignored'),
        (sriov(selectors={"pfNames": ["a#1", "A#2"]}), "'A#2' is ignored, because 'a' stands before it"),
        (sriov(selectors={"pfNames": ["a#1,x,2"]}), "'x' is not a number or range"),
        (sriov(selectors={"rootDevices": ["a#1#2"]}), "a text with two '#' selects nothing"),
        (sriov(selectors={"pfNames": ["a#4-1"]}), "begins above its end"),
        *(
            (sriov(selectors={"pKeys": [text]}), "is not a partition key")
            for text in ("x", "+8001", "80_01", "0x18001")
        ),
        (sriov(selectors={"vdpaType": "x"}), "vdpaType"),
        (sriov(selectors=[{"isRdma": True}, {}]), "resourceList[0].selectors[0].isRdma counts here for all devices"),
        (
            sriov(deviceType="auxNetDevice", selectors={"auxTypes": ["sf"], "acpiIndexes": ["1"]}),
            "acpiIndexes selects n",
        ),
        (shared(rdmaHcaMax=10**9), "50000 are offered"),
        (shared(rdmaHcaMax=0), "rdmaHcaMax is 0"),
        ({**shared(), "periodicUpdateInterval": 0}, "periodicUpdateInterval has no effect here"),
    ],
)
def test_notes(file: Any, note: str) -> None:
    settings = read(file)
    assert len(settings.resources) == 1
    assert [one for one in settings.notes if note in one], settings.notes


# Files that end the peers' programs; entries that they only ignore come below.
@pytest.mark.parametrize(
    ("file", "why"),
    [
        ({"configList": []}, "configList [] has no entry"),
        ({"configList": {}}, "configList {} is not a list"),
        ({"configList": None}, "configList is missing"),
        ({**shared(), "periodicUpdateInterval": -1}, "periodicUpdateInterval -1 is negative"),
        ({**shared(), "periodicUpdateInterval": 1.5}, "periodicUpdateInterval 1.5 is not a whole number"),
        (shared(resourceName="a-b"), 'configList[0].resourceName "a-b" must be of'),
        (shared(resourceName=None), 'configList[0].resourceName "" must be of'),
        (shared(resourceName="a\n"), "must be of"),
        (shared(rdmaHcaMax=-1), "configList[0].rdmaHcaMax -1 is negative"),
        (shared(rdmaHcaMax="5"), 'configList[0].rdmaHcaMax "5" is not a whole number'),
        (shared(rdmaHcaMax=2**63), "configList[0].rdmaHcaMax 9223372036854775808 is too large"),
        ({**shared(), "periodicUpdateInterval": 2**64}, "periodicUpdateInterval 18446744073709551616 is too large"),
        (shared(selectors=0, devices=["x"]), "configList[0].selectors 0 is not an object"),
        (shared(rdmaHcaMax=True), "configList[0].rdmaHcaMax true is not a whole number"),
        (shared(devices=["x"]), "both devices and selectors"),
        (shared(selectors=None), "neither selectors nor devices"),
        (shared(selectors={"vendors": []}), "neither selectors nor devices"),
        (shared(selectors=[{"ifNames": ["x"]}]), "configList[0].selectors [{"),
        (shared(selectors={"ifNames": "x"}), 'configList[0].selectors.ifNames "x" is not a list'),
        (shared(selectors={"ifNames": ["x", 5]}), "configList[0].selectors.ifNames[1] 5 is not text"),
        ({"configList": [5]}, "configList[0] 5 is not an object"),
        ({"configList": shared()["configList"] * 2}, 'configList[0] and configList[1] are both called "rdma/a"'),
        (
            {"configList": [*shared()["configList"], *shared(resourcePrefix="x")["configList"]]},
            "accepts a name once, whatever the prefix",
        ),
        ({"resourceList": []}, "resourceList [] has no entry"),
        (sriov(resourceName="a.b"), 'resourceList[0].resourceName "a.b" must be of'),
        (sriov(selectors=None), "resourceList[0].selectors is missing"),
        (sriov(selectors=[{}, None]), "resourceList[0].selectors[1] is null"),
        (sriov(deviceType="netdevice"), "did you mean netDevice?"),
        (sriov(excludeTopology="yes"), 'resourceList[0].excludeTopology "yes" is neither true nor false'),
        (sriov(additionalInfo={"*": {"a": 1}}), "resourceList[0].additionalInfo.*.a 1 is not text"),
        (sriov(selectors={"isRdma": True, "vdpaType": "vhost"}), "both isRdma and vdpaType"),
        (sriov(deviceType="auxNetDevice"), 'selectors.auxTypes [] must be ["sf"]'),
        (sriov(deviceType="auxNetDevice", selectors={"auxTypes": ["sf", "eth"]}), 'must be ["sf"]'),
        ({"resourceList": sriov()["resourceList"] * 2}, 'both called "intel.com/a"'),
        ({"mode": "sriov"}, "pfNetdevices null names no PF"),
        ({"mode": "sriov", "pfNetdevices": ["a", 5]}, 'pfNetdevices ["a", 5] names no PF'),
    ],
)
def test_refused(file: Any, why: str) -> None:
    with pytest.raises(BadFile) as refused:
        read(file)
    assert why in refused.value.msg


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"selectors": []}, "resourceList[1].selectors [] has no entry"),
        ({"selectors": "x"}, 'resourceList[1].selectors "x" is not an object'),
        ({"selectors": {"vendors": 5}}, "resourceList[1].selectors.vendors 5 is not a list"),
        ({"selectors": [{}, {"isRdma": 1}]}, "resourceList[1].selectors[1].isRdma 1 is neither"),
        (
            {"resourceName": "b", "selectors": {"ddpProfiles": ["x"]}},
            'ddpProfiles ["x"]: hpn does not read the profile of a NIC',
        ),
        ({"resourcePrefix": "a_b"}, 'resourceList[1] "a_b/a": kubelet accepts a prefix only if'),
        ({"resourceName": "b-"}, 'resourceList[1] "intel.com/b-": kubelet accepts a name only'),
    ],
)
def test_an_entry_that_is_left_out(entry: Any, why: str) -> None:
    """The other entries are offered."""
    file = {"resourceList": [*sriov()["resourceList"], *sriov(**entry)["resourceList"]]}
    settings = read(file)
    assert [one.full_name for one in settings.resources] == ["intel.com/a"]
    assert len(settings.left_out) == 1
    assert why in settings.left_out[0]


def test_nothing_is_left() -> None:
    with pytest.raises(BadFile, match=r'configList\[0\] "example_prefix/a": kubelet accepts a prefix only if'):
        read(shared(resourcePrefix="example_prefix"))


def test_a_name_that_only_those_have_twice_that_are_left_out() -> None:
    """That program, which reads the profiles, would refuse them."""
    file = sriov(selectors={"ddpProfiles": ["x"]})["resourceList"]
    with pytest.raises(BadFile, match="both called"):
        read({"resourceList": file * 2})


def test_what_selects_nothing_does_not_select_everything() -> None:
    """An empty set would select everything."""
    (selector,) = only(sriov(selectors={"pKeys": ["x"], "pfNames": ["a#x"], "vdpaType": "x"})).selectors
    assert selector.pkeys
    assert not any(pkey in selector.pkeys for pkey in range(0x8000))
    assert not selector.pf_names[0].has(0)


@given(st.lists(st.tuples(st.integers(0, 2**32), st.integers(0, 2**32))))
def test_ranges(parts: list[tuple[int, int]]) -> None:
    ((found,), _) = entries([f"pf#{','.join(f'{low}-{high}' for low, high in parts)}"])
    for low, high in parts:
        assert found.has(low) == any(a <= low <= b for a, b in parts)
        assert found.has(high + 1) == any(a <= high + 1 <= b for a, b in parts)


def test_ranges_cost_no_memory() -> None:
    ((found,), wrong) = entries(["pf#0-999999999999999999"])
    assert (found.has(10**17), wrong) == (True, [])
