"""A configuration -> NetConf: every key, its valid values, and the messages for invalid ones."""

from typing import Any

import pytest
from support.configurations import MAC, VF, conf, refused

from base.protocol.errors import InvalidConfig, UnsupportedField
from base.protocol.location import Location
from base.protocol.result import Interface, Result
from cni import config, kinds, models
from cni.models.ipvlan import Ipvlan
from cni.models.macvlan import Macvlan


def test_defaults() -> None:
    loaded = config.load(conf(), "")
    assert loaded.attach == Macvlan(
        kind="macvlan",
        mode="bridge",
        mac=None,
        bcqueuelen=0,
        master="",
        linkInContainer=False,
        mtu=0,
        ipam=None,
        dns={},
        dad="quick",
        dadTime=None,
        strict=True,
    )
    assert loaded.where == Location("rail0", "")
    assert (loaded.mac, loaded.pod, loaded.previous, loaded.attach.dns) == ("", "", None, {})


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("mtu", [0, 68, 1500, 65535]),
        ("ipam", [{}, {"type": "hpn-ipam"}, {"type": "host-local", "anything": [1]}]),  # the delegate's to judge
        ("dns", [{}, {"nameservers": ["10.0.0.53"]}]),
        ("dad", ["quick", "wait", "optimistic", "off"]),
        ("dadTime", [10, 20, 1000]),
        ("strict", [True, False]),
        ("master", ["", "eth0", "a" * 15, "eth0.100"]),
        ("linkInContainer", [True, False]),
    ],
)
@pytest.mark.parametrize("kind", ["macvlan", "ipvlan"])
def test_common_keys(kind: str, key: str, values: list[Any]) -> None:
    for value in values:
        assert getattr(config.load(conf(kind=kind, **{key: value}), "").attach, key) == value


@pytest.mark.parametrize(
    ("kind", "key", "values"),
    [
        ("macvlan", "mode", ["bridge", "private", "vepa", "passthru"]),
        ("macvlan", "bcqueuelen", [0, 1, 2**32 - 1]),
        ("macvlan", "mac", [None, "", MAC]),
        ("ipvlan", "mode", ["l2", "l3", "l3s"]),
    ],
)
def test_keys_of_a_kind(kind: str, key: str, values: list[Any]) -> None:
    for value in values:
        assert getattr(config.load(conf(kind=kind, **{key: value}), "").attach, key) == value


def test_ipvlan_defaults() -> None:
    attach = config.load(conf(kind="ipvlan"), "").attach
    assert isinstance(attach, Ipvlan)
    assert attach.mode == "l2"


# key, value, its JSON, and the remedy or the rule in the message
COMMON_REFUSALS: list[Any] = [
    ("mtu", -1, "-1", "greater than or equal to 0"),
    ("mtu", 65536, "65536", "less than or equal to 65535"),
    ("mtu", "1500", '"1500"', "valid integer"),  # no guessing at types
    ("mtu", 1500.0, "1500.0", "valid integer"),
    ("mtu", True, "true", "valid integer"),
    ("ipam", [], "[]", "valid dictionary"),
    ("ipam", "hpn-ipam", '"hpn-ipam"', "valid dictionary"),
    ("dns", [], "[]", "valid dictionary"),
    ("dad", "on", '"on"', "'quick', 'wait', 'optimistic' or 'off'"),
    ("dad", True, "true", "'quick', 'wait', 'optimistic' or 'off'"),
    ("dadTime", 9, "9", "greater than or equal to 10"),
    ("dadTime", 1001, "1001", "less than or equal to 1000"),
    ("dadTime", 20.5, "20.5", "valid integer"),
    ("strict", "false", '"false"', "valid boolean"),
    ("strict", 0, "0", "valid boolean"),
    ("master", "a/b", '"a/b"', "cannot name an interface"),
    ("master", "a" * 128, f'"{"a" * 128}"', "1 to 127 bytes"),
    ("master", ["eth0"], '["eth0"]', "valid string"),
    ("linkInContainer", "true", '"true"', "valid boolean"),
    ("linkInContainer", 1, "1", "valid boolean"),
    ("sysctl", [], "[]", "valid dictionary"),
    (
        "sysctl",
        {"kernel.shmmax": "1"},
        '{"kernel.shmmax": "1"}',
        "'kernel.shmmax' is not a sysctl of the network; write",
    ),
    ("sysctl", {"net.core.x": "1\n2"}, '{"net.core.x": "1\\n2"}', "the value '1\\n2' of 'net.core.x' is not one line"),
    ("policyRouting", 100, "100", 'must be true, false or an object, {"table": 100}'),
    ("multiRail", 4, "4", "valid boolean"),
]


@pytest.mark.parametrize(("key", "value", "shown", "remedy"), COMMON_REFUSALS)
@pytest.mark.parametrize("kind", ["macvlan", "ipvlan"])
def test_common_keys_refused(kind: str, key: str, value: Any, shown: str, remedy: str) -> None:
    error = refused(conf(kind=kind, **{key: value}))
    assert (type(error), error.code, error.details) == (InvalidConfig, 7, "")
    assert error.msg.startswith(f"{key} {shown}: ")
    assert remedy in error.msg


@pytest.mark.parametrize(
    ("kind", "key", "value", "shown", "remedy"),
    [
        ("macvlan", "mode", "l2", '"l2"', "'bridge', 'private', 'vepa' or 'passthru'"),  # ipvlan's
        ("macvlan", "mode", "Bridge", '"Bridge"', "'bridge', 'private', 'vepa' or 'passthru'"),
        ("macvlan", "bcqueuelen", -1, "-1", "greater than or equal to 0"),
        ("macvlan", "bcqueuelen", 2**32, "4294967296", "less than or equal to 4294967295"),
        ("macvlan", "mac", 5, "5", "valid string"),
        ("macvlan", "mac", "x", '"x"', "is not a MAC address; write aa:bb:cc:dd:ee:ff"),
        ("macvlan", "mac", "01:00:5e:00:00:01", '"01:00:5e:00:00:01"', "multicast MAC; the first byte must be even"),
        ("ipvlan", "mode", "bridge", '"bridge"', "'l2', 'l3' or 'l3s'"),  # macvlan's
    ],
)
def test_keys_of_a_kind_refused(kind: str, key: str, value: Any, shown: str, remedy: str) -> None:
    error = refused(conf(kind=kind, **{key: value}))
    assert (type(error), error.code) == (InvalidConfig, 7)
    assert error.msg.startswith(f"{key} {shown}: ")
    assert remedy in error.msg


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("sriov-cni", "'sriov-cni'"),
        ("MACVLAN", "'MACVLAN'"),
        ("", "''"),
        (5, "5"),
        (True, "True"),
        pytest.param(["macvlan"], "['macvlan']"),  # unhashable
        pytest.param({"a": 1}, "{'a': 1}"),
    ],
)
def test_kind_refused(kind: Any, shown: str) -> None:
    error = refused(conf(kind=kind))
    assert (error.code, error.msg) == (7, f"kind {shown} is not one of {', '.join(kinds.KINDS)}")


@pytest.mark.parametrize(
    ("document", "key", "shown"),
    [
        (conf(mtuu=9000), "mtuu", "9000"),
        (conf(vlan={"id": [1]}), "vlan", '{"id": [1]}'),
        (conf(x=None), "x", "null"),
        (conf(kind="ipvlan", bcqueuelen=1), "bcqueuelen", "1"),  # another kind's
        (conf(kind="ipvlan", mac=MAC), "mac", f'"{MAC}"'),
        (conf(cnidev=1), "cnidev", "1"),
    ],
)
def test_unknown_key(document: dict[str, Any], key: str, shown: str) -> None:
    error = refused(document)
    assert (type(error), error.code, error.details) == (UnsupportedField, 2, "")
    assert error.msg == f"{key} {shown} is an unknown key; correct it, remove it, or set strict to false"


# Keys that runtimes add: of the specification, libcni and Multus.
RUNTIME_KEYS: dict[str, Any] = {
    "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0"}]},
    "runtimeConfig": {"ips": ["10.0.0.5"], "CNIDeviceInfoFile": "/run/x", "portMappings": []},
    "args": {"cni": {"ips": ["10.0.0.5"]}, "org.example": 1},
    "capabilities": {"ips": True, "mac": True},
    "cniVersions": ["1.0.0", "1.1.0"],
    "disableCheck": True,
    "disableGC": False,
    "loadOnlyInlinedPlugins": True,
    "cni.dev/valid-attachments": [],
    "cni.dev/attachments": [],
    "cni.dev/whatever-comes": {"a": 1},
    "deviceID": "0000:3b:00.2",
    "pciBusID": "0000:3b:00.2",
}


@pytest.mark.parametrize("key", RUNTIME_KEYS)
def test_runtime_key_is_passed_over(key: str) -> None:
    assert config.load(conf(master="eth1", **{key: RUNTIME_KEYS[key]}), "").attach == Macvlan(master="eth1")


def test_all_runtime_keys_at_once() -> None:
    loaded = config.load(conf(master="eth1", **RUNTIME_KEYS), "")
    assert loaded.attach == Macvlan(master="eth1")
    assert loaded.previous == Result((Interface("eth0"),))


def test_strict_false_passes_over_the_unknown_only() -> None:
    assert config.load(conf(strict=False, mtuu=1, mtu=1400), "").attach == Macvlan(strict=False, mtu=1400)
    assert config.load(conf(strict=False, kind="ipvlan", bcqueuelen=1), "").attach == Ipvlan(
        kind="ipvlan", strict=False
    )
    assert refused(conf(strict=False, mtuu=1, mtu=-1)).msg.startswith("mtu -1: ")


def test_several_problems_at_once() -> None:
    error = refused(conf(mtuu=9000, foo=[1], mtu=-1, dad="on"))
    # A wrong value comes before an unknown key, and gives the error its code.
    assert error.code == 7
    assert error.msg.startswith("mtu -1: ")
    others = ['dad "on": ', "mtuu 9000 is an unknown key", "foo [1] is an unknown key"]
    found = [error.details.index(other) for other in others]
    assert found == sorted(found)


def test_several_unknown_keys() -> None:
    error = refused(conf(a=1, b=2))
    assert (error.code, error.msg[:4]) == (2, "a 1 ")
    assert "b 2 is an unknown key" in error.details


@pytest.mark.parametrize("keys", [{"kind": "macvlan"}, {"kind": "ipvlan"}, VF])
def test_sysctl_and_policy_routing_on_any_kind(keys: dict[str, Any]) -> None:
    ipam = {"type": "hpn-ipam"}
    for value, table in ((True, None), ({}, None), ({"table": 1}, 1), ({"table": 2**32 - 1}, 2**32 - 1)):
        attach = config.load(conf(**keys, ipam=ipam, policyRouting=value), "").attach
        assert attach.policyRouting == models.PolicyRouting(table=table)
    assert config.load(conf(**keys, policyRouting=False), "").attach.policyRouting is None
    attach = config.load(conf(**keys, ipam=ipam, multiRail=True), "").attach
    assert (attach.policyRouting, attach.source_routing) == (None, models.PolicyRouting())
    attach = config.load(conf(**keys, ipam=ipam, multiRail=True, policyRouting={"table": 9}), "").attach
    assert attach.source_routing == models.PolicyRouting(table=9)
    assert config.load(conf(**keys, multiRail=False), "").attach.source_routing is None
    wanted = {"net/core/b": "", "net.core.a": "4096\t87380 6291456"}
    assert list(config.load(conf(**keys, sysctl=wanted), "").attach.sysctl.items()) == list(wanted.items())


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"sysctl": {"net.core.somaxconn": 1024}}, "sysctl.net.core.somaxconn 1024: input should be a valid string"),
        ({"policyRouting": True, "ipam": None}, "policyRouting routes by the interface's addresses"),
        ({"multiRail": True, "ipam": None}, "multiRail routes by the interface's addresses"),
        (
            {"multiRail": True, "policyRouting": False},
            "multiRail true needs routing by source address, and policyRouting is false; remove one",
        ),
        ({"policyRouting": {"table": 0}}, "policyRouting.table 0: "),
        ({"policyRouting": {"table": 2**32}}, "policyRouting.table 4294967296: "),
        ({"policyRouting": {"table": "100"}}, 'policyRouting.table "100": '),
        ({"policyRouting": {"table": 254}}, "policyRouting.table 254: is one of the kernel's own tables"),
    ],
)
def test_sysctl_and_policy_routing_refused(keys: dict[str, Any], says: str) -> None:
    error = refused(conf(**{"ipam": {"type": "hpn-ipam"}} | keys))
    assert error.code == 7
    assert error.msg.startswith(says)


def test_unknown_key_of_policy_routing() -> None:
    error = refused(conf(ipam={"type": "hpn-ipam"}, policyRouting={"gateways": ["10.0.0.1"]}))
    assert (error.code, error.msg.partition(" ")[0]) == (2, "policyRouting.gateways")
