"""Names in ResourceSlices keep the API server's rules, for any name of a node, an interface or a resource."""

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hardware.model import Device, Kind
from node.dra.slices import names
from node.model import Resource, Sharing

# kubernetes: apimachinery/pkg/util/validation; pkg/apis/resource/validation.
LABEL = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(rf"{LABEL.pattern}([.]{LABEL.pattern})*")
VF = Device("0000:3b:00.2", Kind.VF, pf="0000:3b:00.0", index=0)
EXCLUSIVE = Resource("example.com", "rail0", Sharing.EXCLUSIVE, (), kind="vf")
SHARED = replace(EXCLUSIVE, sharing=Sharing.SHARED, kind="shared")
POOLED = replace(SHARED, pooled=True)
# A kernel's interface name: any bytes but "/" and white space.
INTERFACES = (
    st.binary(min_size=1, max_size=15)
    .filter(lambda b: not set(b) & set(b"/ \t\n\r\v\f\0"))
    .map(lambda b: b.decode(errors="surrogateescape"))
)
RESOURCES = st.from_regex("[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True)


def test_plain_names() -> None:
    assert names.pool("node1", EXCLUSIVE, VF) == "node1/pci-0000-3b-00-0"
    assert names.device(EXCLUSIVE, VF) == "0000-3b-00-2"
    assert names.device(SHARED, VF) == "0000-3b-00-2-rail0"
    sf = Device("mlx5_core.sf.4", Kind.SF, pf="0000:3b:00.0")
    assert (names.pool("n", EXCLUSIVE, sf), names.device(EXCLUSIVE, sf)) == ("n/pci-0000-3b-00-0", "mlx5-core-sf-4")
    bond = Device("bond0", Kind.NETDEV)
    assert (names.pool("n", SHARED, bond), names.device(SHARED, bond)) == ("n/if-bond0", "bond0-rail0")
    assert names.pool("n", POOLED, VF).startswith("n/all-example-com-rail0-")
    assert names.slice_name("node1", "node1/pci-0000-3b-00-0", 3) == "node1-hpn-cni.io-pci-0000-3b-00-0-3"


def test_names_of_another_program() -> None:
    assert names.is_ours("node1", "node1-hpn-cni.io-pci-0000-3b-00-0-12")
    for name in (
        "node1-hpn-cni.io-x7f2k",  # the usual names of a DRA driver in Go
        "node1-hpn-cni.io-node1-0",
        "node1-hpn-cni.io-pci-0000-3b-00-0-x7f2k",
        "node1-hpn-cni.io-pci-0000-3b-00-0-01",
        "node2-hpn-cni.io-pci-0000-3b-00-0-0",
        "0",
    ):
        assert not names.is_ours("node1", name)


@given(INTERFACES, RESOURCES)
def test_rules(interface: str, resource: str) -> None:
    one = Device(interface, Kind.NETDEV, names=(interface,))
    for of in (replace(SHARED, name=resource), replace(POOLED, name=resource)):
        device = names.device(of, one)
        assert LABEL.fullmatch(device)
        assert len(device) <= 63
        pool = names.pool("n" * 253, of, one)
        assert len(pool) <= 253
        assert all(SUBDOMAIN.fullmatch(part) for part in pool.split("/"))
        name = names.slice_name("n" * 253, pool, 127)
        assert len(name) <= 253
        assert SUBDOMAIN.fullmatch(name)
        assert names.is_ours("n" * 253, name)
    value = names.text(interface)
    assert len(value.encode()) <= 64


@given(st.lists(INTERFACES, min_size=2, max_size=2, unique=True))
def test_no_two_interfaces_of_one_name(interfaces: list[str]) -> None:
    first, second = (names.pool("n", SHARED, Device(one, Kind.NETDEV)) for one in interfaces)
    assert first != second


def test_names_that_differ_in_punctuation() -> None:
    """Anyone who may create an interface could otherwise stand in for another one."""
    alike = ["eth.1", "eth-1", "eth+1", "ETH-1", "-eth-1", "eth-1-", "é", "e" * 15]
    assert len({names.label(one) for one in alike}) == len(alike)
    assert names.label("eth-1") == "eth-1"
    long = ["n" * 300 + end for end in "ab"]
    assert len({names.label(one) for one in long}) == 2
    assert len({names.pool(one, EXCLUSIVE, VF) for one in long}) == 2


def test_text() -> None:
    assert names.text("é" * 40) == "é" * 32
    assert names.text("x\udcff") == "x\ufffd"
