"""hpn's own device file: the meaning of its keys, and its strict reading."""

from typing import Any

import pytest
from support.node_files import OWN, only, own, read

from hardware.model import Kind
from node.config import BadFile
from node.model import PfName, Selector, Sharing, Verbs


def pfs(**keys: Any) -> Any:
    """A file with an entry of ``pfs``."""
    asked = {"numVfs": 8} if "selectors" in keys else {}
    return {**own(), "pfs": [{"selectors": {"ifNames": ["rail0"]}} | asked | keys]}


def test_pfs() -> None:
    (rule,) = read(pfs(numVfs=8, mtu=9000, trust=True, guids=True)).pfs
    assert rule.selector == Selector(kinds=frozenset({Kind.PF}), netdevs=frozenset({"rail0"}))
    assert (rule.source, rule.num_vfs, rule.mtu, rule.trust, rule.guids) == ("pfs[0]", 8, 9000, True, True)
    (rule,) = read(pfs(numVfs=0, selectors={"pciAddresses": ["0000:3B:00.0"], "vendors": ["15B3"]})).pfs
    assert (rule.selector.addresses, rule.selector.vendors) == ({"0000:3b:00.0"}, {"15b3"})
    assert (rule.num_vfs, rule.mtu, rule.trust, rule.guids) == (0, None, None, False)


def test_rdma_namespaces() -> None:
    asked = [read({**own(), **keys}).rdma_exclusive for keys in (
        {}, {"rdmaNamespaces": "exclusive"}, {"rdmaNamespaces": "shared"}
    )]  # fmt: skip
    assert asked == [None, True, False]


def test_labels() -> None:
    found = [read({**own(), **keys}) for keys in ({}, {"labels": False}, {"labels": True}, {"labels": "hca"})]
    assert [(one.labels, one.hca_label) for one in found] == [(False, False)] * 2 + [(True, False), (True, True)]
    with pytest.raises(BadFile, match="labels"):
        read({**own(), "labels": "all"})


def test_every_kind() -> None:
    settings = read(OWN)
    assert (settings.dialect, settings.down_after, settings.up_after, settings.notes) == ("hpn", 5.0, 60.0, ())
    vf, pf, sf, shared, master, accelerator = settings.resources
    assert vf.selectors == (
        Selector(kinds=frozenset({Kind.VF}), pf_names=(PfName("rail0", (range(4),)),), vendors=frozenset({"15b3"})),
    )
    assert (vf.full_name, vf.sharing, vf.count, vf.verbs) == ("example.com/vf", Sharing.EXCLUSIVE, 1, Verbs.CHOSEN)
    assert pf.selectors == (Selector(kinds=frozenset({Kind.PF}), netdevs=frozenset({"rail1"})),)
    assert (pf.verbs, pf.sharing) == (Verbs.MANAGEMENT, Sharing.EXCLUSIVE)
    assert sf.selectors == (Selector(kinds=frozenset({Kind.SF}), pf_addresses=(PfName("0000:3b:00.0"),)),)
    assert (sf.cdi, vf.cdi) == (True, False)
    assert shared.selectors == (Selector(kinds=frozenset({Kind.PF}), rdma=True),)
    assert (shared.sharing, shared.count, shared.pooled, shared.topology) == (Sharing.SHARED, 20, True, False)
    assert master.selectors == (Selector(kinds=frozenset({Kind.NETDEV}), netdevs=frozenset({"bond0"})),)
    assert (master.sharing, master.count, master.pooled, master.verbs) == (Sharing.SHARED, 100, False, Verbs.NONE)

    assert accelerator.selectors == (
        Selector(kinds=frozenset({Kind.ACCELERATOR}), addresses=frozenset({"0000:5e:00.0"})),
    )
    assert (accelerator.sharing, accelerator.verbs) == (Sharing.EXCLUSIVE, Verbs.CHOSEN)


def test_a_pf_with_its_hosts_network() -> None:
    keys = {"kind": "pf", "selectors": {"ifNames": ["rail1"]}}
    assert [only(own(**keys, **more)).takes_network for more in ({}, {"useInterfaceNetwork": True})] == [False, True]


def test_a_bond_is_shared_only_by_name() -> None:
    """Without a name its PFs' HCAs would be shared twice."""
    kinds = {only(own(kind="shared", selectors=one)).selectors[0].kinds for one in ({}, {"vendors": ["15b3"]})}
    assert kinds == {frozenset({Kind.PF})}
    named = only(own(kind="shared", selectors=[{"ifNames": ["bond0"]}, {"kinds": ["vf", "sf"]}])).selectors
    assert [one.kinds for one in named] == [{Kind.PF, Kind.NETDEV}, {Kind.VF, Kind.SF}]


def test_the_defaults() -> None:
    settings = read(own())
    assert (settings.down_after, settings.up_after) == (10.0, 30.0)
    one = settings.resources[0]
    assert (one.topology, one.cdi, one.vhost_net, one.extra, one.source) == (True, False, False, {}, "resources[0]")


def test_flags() -> None:
    (one,) = read(own(name="rail0"), prefix="nvidia.com", cdi=True).resources
    assert (one.full_name, one.cdi) == ("nvidia.com/rail0", True)
    assert read(own(), prefix="nvidia.com").resources[0].full_name == "example.com/a"


def test_values_are_brought_to_the_form_that_sysfs_has() -> None:
    (found,) = only(
        own(
            selectors={
                "vendors": ["0x15B3"],
                "devices": ["101E"],
                "pciAddresses": ["0000:3B:00.2"],
                "rootDevices": ["0000:3B:00.0#1"],
                "pKeys": ["0xffff", "0x8001", "2"],
                "acpiIndexes": ["7"],
            }
        )
    ).selectors
    assert (found.vendors, found.products, found.addresses) == ({"15b3"}, {"101e"}, {"0000:3b:00.2"})
    assert (found.pf_addresses[0].name, found.pkeys, found.acpi_indexes) == ("0000:3b:00.0", {0x7FFF, 1, 2}, {"7"})


YAML = """\
# comments are taken
resources:
- name: example.com/a
  kind: vf
  selectors:
    vendors: [15b3, 8086]
    devices: [1018, 0101, 101e, 1e10]
    pciAddresses: [0000:03:00.2]
    ifNames: [off, 5]
    isRdma: true
health: {downAfter: 2.5}
"""


def test_yaml_needs_no_quotes() -> None:
    """YAML 1.1 reads these as an octal number, a number of base 60, a float and a boolean."""
    settings = read(YAML, is_yaml=True)
    (found,) = settings.resources[0].selectors
    assert (found.vendors, found.products) == ({"15b3", "8086"}, {"1018", "0101", "101e", "1e10"})
    assert (found.addresses, found.netdevs, found.rdma) == ({"0000:03:00.2"}, {"off", "5"}, True)
    assert settings.down_after == 2.5


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ({"resources": []}, "resources [] has no entry"),
        ({**own(), "helth": {}}, "helth {} is not a key that hpn knows; did you mean health?"),
        ({**own(), "health": {"downAfter": -1}}, "health.downAfter -1: it must be greater than or equal to 0"),
        ({**own(), "health": {"upAfter": "1s"}}, 'health.upAfter "1s" is not a number'),
        ({**own(), "health": []}, "health [] is not an object"),
        ({"resources": [[]]}, "resources[0] [] is not an object"),
        ({"resources": own()["resources"] * 2}, 'resources[0] and resources[1] are both called "example.com/a"'),
        (own(name=None), "resources[0].name is missing; add it"),
        (own(name=5), "resources[0].name 5 is not text"),
        (own(name="a"), 'resources[0] "/a": it has no prefix'),
        (own(kind=None), "resources[0].kind is missing"),
        (
            own(kind="VF"),
            'resources[0].kind "VF" is not one of vf, pf, sf, shared, master, accelerator; did you mean vf?',
        ),
        (own(Kind="vf"), 'resources[0].Kind "vf" is not a key that hpn knows; did you mean kind?'),
        (own(zzz=1), "resources[0].zzz 1 is not a key that hpn knows; correct it, or remove it"),
        (own(count=5), "resources[0].count 5 with kind vf"),
        (own(useInterfaceNetwork=True), "resources[0].useInterfaceNetwork true with kind vf: only a whole PF takes it"),
        (own(pooled=True), "resources[0].pooled true with kind vf"),
        (own(kind="master", selectors={"ifNames": ["x"]}, pooled=True), "pooled true with kind master"),
        (own(kind="shared", count=0), "resources[0].count 0: it must be greater than or equal to 1"),
        (own(kind="shared", count=10**9), "resources[0].count 1000000000: it must be less than or equal to 50000"),
        (own(kind="shared", rdma="none"), 'resources[0].rdma "none" with kind shared'),
        (own(rdma="umad"), 'resources[0].rdma "umad" is not one of verbs, management, none'),
        (own(kind="pf"), "resources[0].selectors is missing"),
        (own(kind="master", selectors={}), "resources[0].selectors {} selects every interface"),
        (own(kind="pf", selectors=[{"ifNames": ["x"]}, {}]), "resources[0].selectors[1] {} selects every"),
        (own(selectors=[]), "resources[0].selectors [] has no entry"),
        (own(selectors="rail0"), 'resources[0].selectors "rail0" is not an object'),
        (own(selectors={"pfName": ["x"]}), "resources[0].selectors.pfName"),
        (own(selectors={"pfNames": "x"}), 'resources[0].selectors.pfNames "x" is not a list'),
        (own(selectors={"pfNames": ["x#a"]}), "resources[0].selectors.pfNames[0] \"x#a\" 'a' is not a number"),
        (own(selectors={"pfNames": ["a/b"]}), 'resources[0].selectors.pfNames[0] "a/b" cannot name an interface'),
        (own(selectors={"pfNames": ["a#1", "a#2"]}), "resources[0].selectors.pfNames: 'a#2' is ignored"),
        (own(selectors={"rootDevices": ["rail0"]}), "is not a PCI address"),
        (own(selectors={"vendors": ["Mellanox"]}), 'resources[0].selectors.vendors[0] "Mellanox" is not a PCI ID'),
        (own(selectors={"vendors": [True]}), "resources[0].selectors.vendors[0] true is not text"),
        (own(selectors={"ifNames": ["a" * 128]}), "1 to 127 bytes"),  # an altname (ALTIFNAMSIZ)
        (own(selectors={"ifNames": ["a\x00"]}), "not printable"),
        (own(selectors={"drivers": ["../x"]}), "cannot name a driver"),
        (own(selectors={"acpiIndexes": ["eno1"]}), "is not an ACPI index"),
        (own(selectors={"linkTypes": ["Ethernet"]}), "is not one of ether, infiniband; did you mean ether?"),
        (own(selectors={"pKeys": ["0x8000"]}), "is not a partition key"),
        (own(selectors={"pKeys": ["0x18001"]}), "is not a partition key"),
        (own(selectors={"kinds": ["vf"]}), "resources[0].selectors.kinds"),
        (own(kind="accelerator", selectors={"isRdma": True}), "isRdma true selects nothing of kind accelerator"),
        (own(kind="accelerator", selectors={"pfNames": ["x"]}), "selectors.pfNames"),
        (own(kind="sf", selectors={"pciAddresses": ["0000:3b:00.2"]}), "use rootDevices"),
        (own(kind="pf", selectors={"pfNames": ["x"]}), "use ifNames"),
        (own(kind="pf", selectors={"ifNames": ["x"], "vdpaType": "vhost"}), "resources[0].selectors.vdpaType"),
        ({**own(), "rdmaNamespaces": "exclusiv"}, "exclusive, shared; did you mean exclusive?"),
        (pfs(numVfs="8"), 'pfs[0].numVfs "8" is not a whole number; write digits, without quotes'),
        (pfs(numVfs=True), "pfs[0].numVfs true is not a whole number"),
        (pfs(numVfs=-1), "pfs[0].numVfs -1: it must be greater than or equal to 0"),
        (pfs(numVfs=65536), "pfs[0].numVfs 65536: it must be less than or equal to 65535"),
        (pfs(mtu=67), "pfs[0].mtu 67: it must be greater than or equal to 68"),
        (pfs(trust="on"), 'pfs[0].trust "on" is neither true nor false'),
        (pfs(guids=[]), "pfs[0].guids [] is neither true nor false"),
        (pfs(guids=False), "changes nothing"),
        (pfs(numVFs=8), "pfs[0].numVFs 8 is not a key that hpn knows; did you mean numVfs?"),
        (pfs(), "changes nothing; add numVfs, mtu, trust or guids"),
        ({**own(), "pfs": [{"numVfs": 8}]}, "pfs[0].selectors is missing; add it"),
        ({**own(), "pfs": {}}, "pfs {} is not a list"),
        ({**own(), "pfs": [8]}, "pfs[0] 8 is not an object"),
        ({**own(), "pfs": [{"selectors": {}, "numVfs": 8}]}, "pfs[0].selectors {} selects every PF of the node"),
        (pfs(selectors={"pfNames": ["rail0"]}), 'pfs[0].selectors.pfNames ["rail0"] selects VFs'),
        (pfs(selectors={"rootDevices": ["0000:3b:00.0"]}), "for the PF itself write pciAddresses"),
        (pfs(selectors={"pciAddresses": ["3b:00.0"]}), "is not a PCI address"),
    ],
)
def test_refused(file: Any, why: str) -> None:
    with pytest.raises(BadFile) as refused:
        read(file)
    assert why in refused.value.msg


def test_all_that_is_wrong_is_said() -> None:
    with pytest.raises(BadFile) as refused:
        read(own(kind="x", zzz=1, rdma=5))
    assert refused.value.msg.startswith("resources[0].kind")
    assert [note.partition(" ")[0] for note in refused.value.__notes__] == ["also:", "also:"]


@pytest.mark.parametrize("name", ["example_com/x", "kubernetes.io/x", "example.com/x-"])
def test_a_name_that_kubelet_refuses_leaves_the_others(name: str) -> None:
    settings = read({"resources": [*own()["resources"], *own(name=name)["resources"]]})
    assert [one.full_name for one in settings.resources] == ["example.com/a"]
    assert len(settings.left_out) == 1
    assert settings.left_out[0].startswith(f'resources[1] "{name}": ')


def test_by() -> None:
    entry = {"name": "example.com/a", "kind": "vf"}
    for by, is_dra in (({}, False), ({"by": "devicePlugin"}, False), ({"by": "dra"}, True)):
        (found,) = read({"resources": [{**entry, **by}]}).resources
        assert (found.by_dra, found.kind) == (is_dra, "vf")
    long = {"name": f"example.com/{'a' * 53}", "kind": "vf"}
    assert read({"resources": [long]}).resources
    with pytest.raises(BadFile, match=r"resources\[0\].name '.*' has 65 characters, and a device's attribute in a Res"):
        read({"resources": [{**long, "by": "dra"}]})
    with pytest.raises(BadFile, match='by "DRA" is not one of devicePlugin, dra; did you mean dra'):
        read({"resources": [{**entry, "by": "DRA"}]})


def test_memlock() -> None:
    """Only a CDI file can have the hook."""
    entry = {"name": "example.com/a", "kind": "vf"}
    for value in ("unlimited", "keep", 4096):
        for ways in ({"cdi": True}, {"by": "dra"}):
            assert read({"resources": [{**entry, **ways, "memlock": value}]}).resources[0].memlock == value
    assert read({"resources": [{**entry, "memlock": "keep"}]}).resources[0].memlock == "keep"
    assert read({"resources": [{**entry, "memlock": 1}]}, cdi=True).resources[0].memlock == 1
    assert read({"resources": [entry]}).resources[0].memlock == ""
    with pytest.raises(BadFile, match=r"resources\[0\].memlock unlimited needs cdi: true or by: dra, because a hook"):
        read({"resources": [{**entry, "memlock": "unlimited"}]})
    for value in ("infinity", 0, True, "1Gi", "4096"):
        with pytest.raises(BadFile, match="is not a limit of locked memory; write unlimited, keep, or bytes"):
            read({"resources": [{**entry, "cdi": True, "memlock": value}]})
