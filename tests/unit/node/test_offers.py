"""Which resource gets which device."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hardware.model import Device, Kind, RdmaDevice
from node.model import Offer, PfName, Resource, Selector, Sharing, Verbs
from node.offer.needs import remarks
from node.offer.offers import agrees, offers, software

RDMA = (RdmaDevice("mlx5_1", "/dev/infiniband/uverbs1"),)
PF = Device("0000:3b:00.0", Kind.PF, vendor="15b3", product="101d", names=("ens1",), pf="0000:3b:00.0",
            pf_netdev="ens1", vfs=2, rdma=RDMA)  # fmt: skip
VFS = tuple(
    Device(f"0000:3b:00.{2 + n}", Kind.VF, vendor="15b3", product="101e", driver="mlx5_core", names=(f"ens1v{n}",),
           link_type="ether", rdma=RDMA, pf=PF.id, pf_netdev="ens1", index=n, numa=1) for n in range(2)
)  # fmt: skip
FREE = Device("0000:5e:00.0", Kind.PF, vendor="8086", driver="ice", names=("ens2",), netdevs=("ens2",), acpi_index="7")
UPLINK = Device(
    "0000:00:03.0", Kind.PF, vendor="8086", names=("eth0",), reserved="the host's default route leaves by eth0"
)
SF = Device("mlx5_core.sf.4", Kind.SF, vendor="15b3", names=("ens1s0",), pf=PF.id, pf_netdev="ens1", index=88)
BOND = Device("bond0", Kind.NETDEV, netdevs=("bond0",), names=("bond0",))
IB = Device(
    "0000:af:00.1", Kind.VF, link_type="infiniband", pkeys=frozenset({1}), vdpa="vhost", pf="0000:af:00.0", index=4
)
ALL = (UPLINK, PF, FREE, *VFS, IB, SF, BOND)


def of(*devices: Device) -> set[str]:
    return {device.id for device in devices}


def resource(name: str, *selectors: Selector, **fields: Any) -> Resource:
    return Resource(
        "ex.com", name, **{"sharing": Sharing.EXCLUSIVE, "source": f"resources.{name}"} | fields, selectors=selectors
    )


def ids(offer: Offer) -> list[str]:
    return [unit.id for unit in offer.units]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        (Selector(), of(*ALL)),
        (Selector(kinds=frozenset({Kind.VF, Kind.SF})), of(*VFS, IB, SF)),
        (Selector(vendors=frozenset({"8086"}), drivers=frozenset({"ice", "igb"})), of(FREE)),
        (Selector(products=frozenset({"101e", "0000"})), of(*VFS)),
        (Selector(addresses=frozenset({SF.id, FREE.id})), of(SF, FREE)),
        (Selector(acpi_indexes=frozenset({"7"})), of(FREE)),
        (Selector(netdevs=frozenset({"bond0", "ens1v1"})), of(BOND, VFS[1])),
        (Selector(link_types=frozenset({"infiniband"})), of(IB)),
        (Selector(pkeys=frozenset({1, 2})), of(IB)),
        (Selector(pkeys=frozenset({2})), set()),
        (Selector(rdma=True), of(PF, *VFS)),
        (Selector(vdpa="vhost"), of(IB)),
        (Selector(vdpa="virtio"), set()),
        (Selector(vendors=frozenset({"15b3"}), drivers=frozenset({"ice"})), set()),
        # A PF is not its own VF.  Case does not matter, and the first entry with the name decides.
        (Selector(pf_names=(PfName("ENS1"),)), of(*VFS, SF)),
        (Selector(pf_names=(PfName("ens1", (range(1, 2), range(80, 90))),)), of(VFS[1], SF)),
        (Selector(pf_names=(PfName("ens1", (range(1),)), PfName("ens1"))), of(VFS[0])),
        (Selector(pf_names=(PfName("ens2"), PfName("ens9"), PfName(""))), set()),
        (
            Selector(pf_addresses=(PfName("0000:AF:00.0", (range(3, 5),)), PfName(PF.id, (range(1),)))),
            of(IB, VFS[0]),
        ),
        (Selector(pf_addresses=(PfName("0000:3b"),)), set()),
    ],
)  # fmt: skip
def test_selectors(selector: Selector, found: set[str]) -> None:
    assert {device.id for device in ALL if agrees(selector, device)} == found


def test_first_resource_has_the_device() -> None:
    first, second = resource("first", Selector(addresses=frozenset({VFS[0].id}))), resource("rest", Selector(rdma=True))
    made, said = offers([first, second], VFS)
    assert [ids(offer) for offer in made] == [[VFS[0].id], [VFS[1].id]]
    (sentence,) = said
    assert sentence == (
        "ex.com/first (resources.first) and ex.com/rest (resources.rest) both claim 0000:3b:00.2 (ens1v0); "
        "ex.com/first (resources.first) gets them, because it stands first; change the selectors of one if that is not "
        "intended"
    )
    assert ids(offers([second, first], VFS)[0][0]) == [VFS[0].id, VFS[1].id]


@pytest.mark.parametrize(
    ("sharings", "counts"),
    [
        ([Sharing.SHARED, Sharing.SHARED], [4, 4]),
        ([Sharing.SHARED, Sharing.EXCLUSIVE], [4, 0]),
        ([Sharing.EXCLUSIVE, Sharing.SHARED], [2, 0]),
    ],
)
def test_sharing_one_device(sharings: Sequence[Sharing], counts: list[int]) -> None:
    """Only two resources that share may both have it; the message names both."""
    both = [resource(f"r{n}", Selector(), sharing=s, count=2) for n, s in enumerate(sharings)]
    made, said = offers(both, VFS)
    assert [len(offer.units) for offer in made] == counts
    assert all("ex.com/r0" in s and "ex.com/r1" in s for s in said[:1])
    assert len(said) == (1 if counts[1] else 2)


def test_a_third_resource_names_each_that_has_some() -> None:
    three = [
        resource(f"r{n}", Selector(indexes))
        for n, indexes in enumerate([frozenset({Kind.VF}), frozenset({Kind.SF}), ()])
    ]
    _, said = offers(three, [*VFS, SF])
    assert [s.partition(" both")[0] for s in said[:2]] == [
        f"ex.com/{name} (resources.{name}) and ex.com/r2 (resources.r2)" for name in ("r0", "r1")
    ]
    assert said[2].startswith("ex.com/r2 (resources.r2) is offered with 0 units")


def test_nothing_found() -> None:
    """The resource is offered without units, with one remark for all its selectors."""
    made, said = offers([resource("none", Selector(vdpa="virtio"), Selector(vendors=frozenset({"1"})))], ALL)
    assert ids(made[0]) == []
    (sentence,) = said
    assert sentence == (
        "ex.com/none (resources.none) finds no device on this node and is offered with 0 units; hpn node --check lists "
        "the devices here"
    )


def test_what_the_host_needs() -> None:
    made, said = offers([resource("nics", Selector(vendors=frozenset({"8086"})))], ALL)
    assert ids(made[0]) == [FREE.id]
    (sentence,) = said
    assert "does not offer 0000:00:03.0 (eth0): the host's default route leaves by eth0" in sentence
    explicit, said = offers(
        [resource("nics", Selector(kinds=frozenset({Kind.PF}), addresses=frozenset({UPLINK.id})))], ALL
    )
    assert (ids(explicit[0]), len(said)) == ([], 1)
    shared, said = offers([resource("nics", Selector(vendors=frozenset({"8086"})), sharing=Sharing.SHARED)], ALL)
    assert (ids(shared[0]), said) == ([f"{UPLINK.id}-0", f"{FREE.id}-0"], ())


def test_a_vf_that_the_host_uses() -> None:
    """One container would take it from the host; many may share it.  A PF that is left out anyway is not named."""
    vf = replace(VFS[0], used="the host has 192.0.2.1/24 on it")
    pf = replace(PF, used="the host has 192.0.2.5/24 on it")
    made, said = offers([resource("vfs", Selector(products=frozenset({"101e"})))], (vf, VFS[1]))
    only = (
        "ex.com/vfs (resources.vfs) does not offer 0000:3b:00.2 (ens1v0): the host has 192.0.2.1/24 on it, and a "
        "pod would take it from the host; share it instead, or remove that; then run: systemctl reload hpn-node, or "
        "delete the pod of hpn node"
    )
    assert (ids(made[0]), said) == ([VFS[1].id], (only,))
    shared, said = offers([resource("vfs", Selector(rdma=True), sharing=Sharing.SHARED)], (vf,))
    assert (ids(shared[0]), said) == ([f"{vf.id}-0"], ())
    _, (kept,) = offers([resource("nics", Selector())], (pf, VFS[1]))
    assert "leaves out PFs that have VFs" in kept
    made, (only,) = offers([resource("pf", Selector(kinds=frozenset({Kind.PF})))], (pf,))
    assert (ids(made[0]), "the host has 192.0.2.5/24 on it" in only) == ([], True)


def test_a_pf_with_its_hosts_network() -> None:
    """A resource for networks with useInterfaceNetwork offers it, but not the interface of the default route."""
    wanted = resource("pf", Selector(kinds=frozenset({Kind.PF})))
    used = replace(FREE, used="the host has 192.0.2.5/24 on it")
    made, said = offers([replace(wanted, takes_network=True)], (used, UPLINK))
    assert ids(made[0]) == [used.id]
    assert ["the host's default route" in one for one in said] == [True]
    made, (only,) = offers([replace(wanted, kind="pf")], (used,))
    assert (ids(made[0]), "remove that, or set useInterfaceNetwork here and in the network" in only) == ([], True)


def test_pfs_that_have_vfs() -> None:
    """They are left out, as with sriov-network-device-plugin, unless a selector is for PFs only."""
    by = {"vendors": frozenset({"15b3"})}
    made, said = offers([resource("nics", Selector(**by))], ALL)
    assert ids(made[0]) == [*(d.id for d in VFS), SF.id]
    assert said[0].startswith("ex.com/nics (resources.nics) leaves out PFs that have VFs: 0000:3b:00.0 (ens1); ")
    made, said = offers([resource("nics", Selector(kinds=frozenset({Kind.PF}), **by))], ALL)
    assert ids(made[0]) == [PF.id]
    assert said[0].startswith("ex.com/nics (resources.nics) offers PFs that have VFs: 0000:3b:00.0 (ens1); ")
    made, said = offers([resource("nics", Selector(rdma=True), sharing=Sharing.SHARED)], ALL)
    assert (ids(made[0])[0], said) == (f"{PF.id}-0", ())


def test_units() -> None:
    fields = {"sharing": Sharing.SHARED, "count": 2}
    (each, pooled, empty), _ = offers(
        [resource("each", Selector(), **fields), resource("pooled", Selector(), pooled=True, **fields),
         resource("empty", Selector(vdpa="virtio"), pooled=True, **fields)], VFS,
    )  # fmt: skip
    assert [(u.id, u.devices) for u in each.units] == [(f"{d.id}-{n}", (d,)) for d in VFS for n in range(2)]
    assert [(u.id, u.devices, u.numa) for u in pooled.units] == [(str(n), VFS, {1}) for n in range(2)]
    assert empty.units == ()


def test_more_ids_than_kubelet_takes() -> None:
    """kubelet's gRPC reads lists of up to 4 MiB."""
    asked = resource("r", Selector(kinds=frozenset({Kind.VF})), sharing=Sharing.SHARED, count=40_000)
    (made,), said = offers([asked], ALL)
    assert len(made.units) == 3 * 16_666
    assert len({unit.id for unit in made.units}) == len(made.units)
    assert [sentence for sentence in said if "at most 50000 IDs; 16666 are offered of each" in sentence]
    (made,), said = offers([asked], VFS[:1])
    assert (len(made.units), said) == (40_000, ())


def test_many_devices_are_not_all_named() -> None:
    many = [Device(f"d{n}", Kind.VF) for n in range(9)]
    _, said = offers([resource("a", Selector()), resource("b", Selector())], many)
    assert "both claim d0, d1, d2 and 6 more; " in said[0]


def test_rdma_devices_that_no_program_can_open() -> None:
    mute = Device("0000:d8:00.0", Kind.PF, vendor="15b3", rdma=(RdmaDevice("mlx5_9"),))
    made, said = offers([resource("r", Selector(vendors=frozenset({"15b3"}), rdma=True))], [mute])
    assert ids(made[0]) == []
    (sentence,) = said
    assert sentence == (
        "ex.com/r (resources.r) leaves out devices whose RDMA device has no node in /dev/infiniband: 0000:d8:00.0; "
        "load ib_uverbs: modprobe ib_uverbs"
    )
    made, said = offers([resource("r", Selector(vendors=frozenset({"15b3"})))], [mute])
    assert (ids(made[0]), said) == ([mute.id], ())


@pytest.mark.parametrize("sharing", Sharing)
def test_what_the_machine_lacks(sharing: Sharing) -> None:
    made, _ = offers([resource("r", Selector(), sharing=sharing), resource("none", Selector(vdpa="virtio"))], VFS)
    assert remarks(made, is_exclusive=False, has_rdma_cm=True) == ()
    exclusive = remarks(made, is_exclusive=True, has_rdma_cm=True)
    assert ["ex.com/r: RDMA is in exclusive mode" in one for one in exclusive] == [True] * (sharing is Sharing.SHARED)
    (missing,) = remarks(made, is_exclusive=False, has_rdma_cm=False)
    assert missing == (
        "ex.com/r: containers get no /dev/infiniband/rdma_cm, which is missing; if their programs connect by RDMA CM, "
        "load rdma_ucm: modprobe rdma_ucm"
    )
    plain, _ = offers([resource("r", Selector(), sharing=sharing, verbs=Verbs.NONE)], VFS)
    without, _ = offers([resource("r", Selector(), sharing=sharing)], [FREE])
    assert remarks([*plain, *without], is_exclusive=True, has_rdma_cm=False) == ()


def test_a_device_is_the_plugins_or_dras() -> None:
    """Two resources may share a device only if both offer it by the same way."""
    shared = {"sharing": Sharing.SHARED, "count": 2}
    plugin, by_dra = resource("a", Selector(), **shared), resource("b", Selector(), by_dra=True, **shared)
    both, said = offers([plugin, by_dra], [FREE])
    assert [len(one.units) for one in both] == [2, 0]
    assert "resources.a" in said[0]
    assert "gets them, because it stands first" in said[0]
    both, _ = offers([by_dra, replace(plugin, by_dra=True)], [FREE])
    assert [len(one.units) for one in both] == [2, 2]


SOFT = frozenset({Kind.NETDEV})


@pytest.mark.parametrize(
    ("selectors", "names"),
    [
        ([Selector(kinds=frozenset({Kind.PF}), netdevs=frozenset({"x"})), Selector(drivers=frozenset({"a"}))], set()),
        ([Selector(netdevs=frozenset({"bond0"})), Selector(kinds=SOFT, netdevs=frozenset({"br0"}))], {"bond0", "br0"}),
        ([Selector(netdevs=frozenset({"bond0"}), drivers=frozenset({"ice"}))], set()),
        ([Selector(netdevs=frozenset({"bond0"})), Selector(kinds=SOFT, rdma=True)], None),
        ([Selector(link_types=frozenset({"ether"}))], None),
        ([], set()),
    ],
)
def test_software_that_a_resource_may_have(selectors: Sequence[Selector], names: set[str] | None) -> None:
    """hpn node ignores the events of all others."""
    assert software([resource("a", one) for one in selectors]) == names
