"""ResourceSlices of a node's offers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hardware.model import Device, Kind, RdmaDevice
from hardware.neighbors import Neighbor
from node.dra.slices import content
from node.dra.slices.content import Facts, Features
from node.model import Offer, Resource, Sharing, Unit

RDMA = (RdmaDevice("mlx5_1", "/dev/infiniband/uverbs1"),)
PF = Device("0000:3b:00.0", Kind.PF, vendor="15b3", product="101d", driver="mlx5_core", names=("ens1",),
            pf="0000:3b:00.0", pf_netdev="ens1", link_type="ether", vfs=2, numa=1, rdma=RDMA)  # fmt: skip
VF = Resource("example.com", "rail0_vf", Sharing.EXCLUSIVE, (), kind="vf", by_dra=True)
WHOLE = replace(VF, name="rail0_pf", kind="pf")
MASTER = Resource("example.com", "rail0", Sharing.SHARED, (), count=100, kind="master", by_dra=True)
Pools = dict[str, list[dict[str, Any]]]
ROOTS = {"0000:3b:00.0": "pci0000:3a", "0000:3b:00.2": "pci0000:3a"}


def vf(number: int, pf: str = PF.id) -> Device:
    """A VF by its number, from function 2 of the PF's device on."""
    at = 2 + number
    return Device(f"0000:3b:{at // 8:02x}.{at % 8}", Kind.VF, vendor="15b3", product="101e", driver="mlx5_core",
                  names=(f"ens1v{number}",), pf=pf, pf_netdev="ens1", link_type="ether", index=number, numa=1,
                  rdma=RDMA)  # fmt: skip


def offer(resource: Resource, *devices: Device) -> Offer:
    if resource.sharing is Sharing.EXCLUSIVE:
        return Offer(resource, tuple(Unit(one.id, (one,)) for one in devices))
    if resource.pooled:
        return Offer(resource, tuple(Unit(f"{n}", devices) for n in range(resource.count)))
    alone = [(one,) for one in devices]
    return Offer(resource, tuple(Unit(f"{one[0].id}-{n}", one) for one in alone for n in range(resource.count)))


def made(
    *offers: Offer,
    withheld: Sequence[tuple[str, str]] = (),
    unhealthy: dict[str, str] | None = None,
    features: Features | None = None,
    neighbors: dict[str, Neighbor] | None = None,
) -> tuple[Pools, list[str]]:
    facts = Facts(
        "node1",
        lambda address: ROOTS.get(address, ""),
        lambda _, device: (unhealthy or {}).get(device.id, ""),
        neighbors or {},
    )
    left_out = dict[str, list[str]]()
    entries = content.entries("node1", offers, withheld)
    found = content.pools(
        entries, facts, features or Features(), lambda one, why: left_out.setdefault(why, []).append(one)
    )
    return dict(found), [*left_out]


def devices(pools: Pools) -> list[dict[str, Any]]:
    return [one for found in pools.values() for part in found for one in part.get("devices", ())]


def test_a_vf() -> None:
    pools, left_out = made(offer(VF, vf(0)))
    assert left_out == []
    assert pools == {
        "node1/pci-0000-3b-00-0": [
            {
                "devices": [
                    {
                        "name": "0000-3b-00-2",
                        "attributes": {
                            "k8s.cni.cncf.io/resourceName": {"string": "example.com/rail0_vf"},
                            "k8s.cni.cncf.io/deviceID": {"string": "0000:3b:00.2"},
                            "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.2"},
                            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"},
                            "resource.kubernetes.io/numaNode": {"int": 1},
                            "kind": {"string": "vf"},
                            "rdma": {"bool": True},
                            "pf": {"string": "ens1"},
                            "pfPciAddress": {"string": "0000:3b:00.0"},
                            "nic": {"string": "0000:3b:00"},
                            "index": {"int": 0},
                            "linkType": {"string": "ether"},
                            "vendor": {"string": "15b3"},
                            "product": {"string": "101e"},
                        },
                    }
                ]
            }
        ]
    }


def test_attributes_do_not_change_in_a_pod() -> None:
    """A pod takes the interface and, in exclusive mode, the RDMA device; a selector must find the device again."""
    home = vf(0)
    away = replace(home, netdevs=())
    assert made(offer(VF, home)) == made(offer(VF, away))


def test_the_wire_of_its_pf() -> None:
    """A VF has its PF's switch port, cut to the API server's 64 bytes; an unknown number is absent."""
    wire = Neighbor("mac", "02:00:00:00:00:01", "ifname", "Eth1/1", "l" * 70, vlan=102, max_frame=9216, ttl=120)
    named = replace(vf(0), pf_altnames=("enp1", "eth_rail7"))
    (one,) = devices(made(offer(VF, named), neighbors={PF.id: wire})[0])
    added = {key: value for key, value in one["attributes"].items() if key.startswith(("leaf", "rail", "speed"))}
    assert added == {
        "leaf": {"string": "l" * 64},
        "leafPort": {"string": "Eth1/1"},
        "leafVlan": {"int": 102},
        "leafMaxFrame": {"int": 9216},
        "rail": {"int": 7},
    }
    (one,) = devices(made(offer(WHOLE, PF), neighbors={PF.id: replace(wire, name="", speed=400)})[0])
    assert one["attributes"]["leaf"] == {"string": "02:00:00:00:00:01"}
    assert one["attributes"]["speed"] == {"int": 400}
    assert "rail" not in one["attributes"]


@pytest.mark.parametrize(
    ("name", "rail"),
    [("rail0", 0), ("rail_12", 12), ("eth_rail7", 7), ("ens1", None), ("rail7v0", None), ("trail1", None)],
)
def test_the_number_of_a_rail(name: str, rail: int | None) -> None:
    (one,) = devices(made(offer(WHOLE, replace(PF, pf_netdev=name)))[0])
    assert one["attributes"].get("rail") == (None if rail is None else {"int": rail})


def test_an_sf_has_no_bus_id() -> None:
    sf = Device("mlx5_core.sf.4", Kind.SF, pf=PF.id, pf_netdev="ens1", index=88)
    (one,) = devices(made(offer(replace(VF, kind="sf"), sf))[0])
    assert "resource.kubernetes.io/pciBusID" not in one["attributes"]
    assert one["attributes"]["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:3a"}
    assert one["attributes"]["index"] == {"int": 88}
    assert "resource.kubernetes.io/numaNode" not in one["attributes"]


def test_a_master() -> None:
    pools, _ = made(offer(MASTER, PF), offer(replace(MASTER, name="bonds"), Device("bond0", Kind.NETDEV)))
    assert list(pools) == ["node1/pci-0000-3b-00-0", "node1/if-bond0"]
    first, second = devices(pools)
    assert (first["name"], second["name"]) == ("0000-3b-00-0-rail0", "bond0-bonds")
    assert first["attributes"]["k8s.cni.cncf.io/deviceID"] == {"string": "ens1"}
    assert second["attributes"]["k8s.cni.cncf.io/deviceID"] == {"string": "bond0"}
    assert first["allowMultipleAllocations"] is True
    policy = {"default": "1", "validValues": ["1"]}
    assert first["capacity"] == {"shares": {"value": "100", "requestPolicy": policy}}


def test_a_pooled_resource_is_one_device() -> None:
    pooled = replace(MASTER, kind="shared", pooled=True, count=1000)
    (one,) = devices(made(offer(pooled, PF, replace(PF, id="0000:5e:00.0", pf="0000:5e:00.0")))[0])
    assert one["capacity"]["shares"]["value"] == "1k"
    assert "pfPciAddress" not in one["attributes"]


def test_a_shared_device_of_two_resources() -> None:
    """Both names stay when the file names the resources in another order."""
    a, b = replace(MASTER, name="a"), replace(MASTER, name="b")
    both = {one["name"] for one in devices(made(offer(a, PF), offer(b, PF))[0])}
    assert both == {one["name"] for one in devices(made(offer(b, PF), offer(a, PF))[0])} != set()
    assert len(both) == 2
    other = replace(a, prefix="other.org")
    assert len({one["name"] for one in devices(made(offer(a, PF), offer(other, PF))[0])}) == 2


def test_at_most_64_devices_a_slice() -> None:
    pools, _ = made(offer(VF, *(vf(n) for n in range(127))))
    assert [len(one["devices"]) for one in pools["node1/pci-0000-3b-00-0"]] == [64, 63]


def test_many() -> None:
    """8,192 devices of 64 PFs: 128 slices, each name once."""
    pfs = [f"0000:{n:02x}:00.0" for n in range(64)]
    many = [replace(vf(n, pf), id=f"{pf[:8]}{(n + 2) // 8:02x}.{(n + 2) % 8}") for pf in pfs for n in range(128)]
    pools, _ = made(offer(VF, *many))
    assert sum(map(len, pools.values())) == 128
    assert (
        len({(pool, one["name"]) for pool, found in pools.items() for part in found for one in part["devices"]}) == 8192
    )


def test_a_withheld_device_moves_no_other_to_another_slice() -> None:
    offered = offer(VF, *(vf(n) for n in range(70)))
    before, _ = made(offered)
    after, _ = made(offered, withheld=[(VF.full_name, vf(3).id)])
    (first, second), (_, unchanged) = after["node1/pci-0000-3b-00-0"], before["node1/pci-0000-3b-00-0"]
    assert len(first["devices"]) == 63
    assert vf(3).id.replace(":", "-").replace(".", "-") not in [one["name"] for one in first["devices"]]
    assert second == unchanged


def test_nothing_of_a_wholly_withheld_pool() -> None:
    assert made(offer(VF, vf(0)), withheld=[(VF.full_name, vf(0).id)]) == ({}, [])


def test_shares_of_pods_with_the_plugin_are_withheld() -> None:
    held = [(MASTER.full_name, f"{PF.id}-{n}") for n in range(30)]
    (one,) = devices(made(offer(MASTER, PF), withheld=held)[0])
    assert one["capacity"]["shares"]["value"] == "70"


def counters(pools: Pools) -> tuple[str, dict[str, str]]:
    """The counter's value, and what each device consumes."""
    first, second = pools["node1/pci-0000-3b-00-0"]
    (only,) = first["sharedCounters"]
    assert set(first) == {"sharedCounters"}
    consumed = {}
    for one in second["devices"]:
        (part,) = one["consumesCounters"]
        assert part["counterSet"] == only["name"] == "functions"
        consumed[one["name"]] = part["counters"]["functions"]["value"]
    return only["counters"]["functions"]["value"], consumed


def test_a_pf_or_its_vfs() -> None:
    both = offer(WHOLE, PF), offer(VF, vf(0), vf(1))
    consumed = {"0000-3b-00-0": "2", "0000-3b-00-2": "1", "0000-3b-00-3": "1"}
    assert counters(made(*both)[0]) == ("2", consumed)


def test_counters_without_what_the_plugins_pods_have() -> None:
    """A PF of a pod leaves nothing for its VFs, and a VF of a pod leaves the PF to nobody."""
    both = offer(WHOLE, PF), offer(VF, vf(0), vf(1))
    del_vf = {"0000-3b-00-0": "2", "0000-3b-00-3": "1"}
    assert counters(made(*both, withheld=[(VF.full_name, vf(0).id)])[0]) == ("1", del_vf)
    del_pf = {"0000-3b-00-2": "1", "0000-3b-00-3": "1"}
    assert counters(made(*both, withheld=[(WHOLE.full_name, PF.id)])[0]) == ("0", del_pf)


def test_shares_consume_no_counter() -> None:
    pools, _ = made(offer(MASTER, PF), offer(VF, vf(0)))
    assert all("consumesCounters" not in one for one in devices(pools))
    pools, _ = made(offer(WHOLE, PF), offer(VF, vf(0)), offer(replace(MASTER, kind="shared"), vf(1)))
    assert ["consumesCounters" in one for one in devices(pools)] == [True, True, False]


def test_taints() -> None:
    offered = offer(VF, vf(0), vf(1))
    first, second = devices(made(offered, unhealthy={vf(0).id: "no-link"})[0])
    assert first["taints"] == [{"key": "hpn-cni.io/unhealthy", "value": "no-link", "effect": "NoSchedule"}]
    assert "taints" not in second


@pytest.mark.parametrize(
    ("features", "left", "words"),
    [
        (Features(shares=False), ["0000-3b-00-2", "0000-3b-00-0"], "DRAConsumableCapacity"),
        (Features(counters=False), ["0000-3b-00-0-rail0", "0000-3b-00-2"], "DRAPartitionableDevices"),
        (Features(taints=False), ["0000-3b-00-0-rail0", "0000-3b-00-0"], "DRADeviceTaints"),
    ],
)
def test_features_that_the_api_server_drops(features: Features, left: list[str], words: str) -> None:
    """It stores the rest of the device without an error.  So the device would be more than it is."""
    offers = offer(MASTER, PF), offer(VF, vf(0)), offer(WHOLE, PF)
    pools, (said,) = made(*offers, unhealthy={vf(0).id: "gone"}, features=features)
    assert sorted(one["name"] for one in devices(pools)) == sorted(left)
    assert words in said


def test_find() -> None:
    offers = offer(MASTER, PF), offer(VF, vf(0))
    found = content.find(content.index(offers), "node1/pci-0000-3b-00-0", "0000-3b-00-2")
    assert found
    assert (found.resource, found.devices) == (VF, (vf(0),))
    assert content.find(content.index(offers), "node1/pci-0000-3b-00-1", "0000-3b-00-2") is None
    assert content.find(content.index(offers), "node1/pci-0000-3b-00-0", "x") is None
