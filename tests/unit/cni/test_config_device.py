"""Keys of a configuration for a device: VF or PF, its attributes and GUID, RDMA."""

from typing import Any

import pytest
from support.configurations import VF, conf, refused

from cni import config, models
from cni.models.sriov import Sriov


@pytest.mark.parametrize(
    "keys",
    [
        {"deviceID": "0000:3b:00.2"},  # Multus writes it here
        {"runtimeConfig": {"deviceID": "0000:3b:00.2"}},  # ... and here where the capability is declared
        {"runtimeConfig": {"deviceID": "0000:3b:00.2"}, "deviceID": "0000:3b:00.3"},
    ],
)
def test_a_device_asks_for_a_vf(keys: dict[str, Any]) -> None:
    attach = config.load(conf(**keys), "").attach
    assert isinstance(attach, Sriov)
    assert (attach.deviceID, attach.attributes()) == ("0000:3b:00.2", {})


def test_a_pf_asks_for_any_of_its_vfs() -> None:
    attach = config.load(conf(pf="ens1f0"), "").attach
    assert isinstance(attach, Sriov)
    assert (attach.pf, attach.deviceID) == ("ens1f0", "")


@pytest.mark.parametrize(
    ("document", "cni_args", "numbers"),
    [
        ({"vf": 3, "vlan": 5}, "", (3, 5)),
        ({"vf": 3, "vlan": 5}, "VF=0;VLAN=7", (0, 7)),
        ({"vf": 3, "args": {"cni": {"vf": 1, "vlan": 6}}}, "VF=0;VLAN=7", (1, 6)),
    ],
)
def test_what_a_pod_may_ask_for_in_its_arguments(
    document: dict[str, Any], cni_args: str, numbers: tuple[int, int]
) -> None:
    attach = config.load(conf(pf="ens1f0", **document), cni_args).attach
    assert isinstance(attach, Sriov)
    assert (attach.vf, attach.vlan) == numbers


@pytest.mark.parametrize("key", ["VF", "VLAN"])
def test_a_macvlan_has_neither(key: str) -> None:
    assert refused(conf(), f"{key}=1").code == 2


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({"vlan": 0}, {"vlan": [0, 0, "802.1q"]}),  # 0 is a wish, absent is none
        ({"vlan": 7, "vlanQoS": 3, "vlanProto": "802.1ad"}, {"vlan": [7, 3, "802.1ad"]}),
        ({"min_tx_rate": 10}, {"rate": [10, 0]}),
        ({"max_tx_rate": 0}, {"rate": [0, 0]}),
        ({"spoofchk": "off", "trust": "on"}, {"spoofchk": False, "trust": True}),
        ({"link_state": "disable"}, {"link_state": "disable"}),
    ],
)
def test_attributes_of_a_vf(keys: dict[str, Any], wanted: dict[str, Any]) -> None:
    attach = config.load(conf(**VF, **keys), "").attach
    assert isinstance(attach, Sriov)
    assert attach.attributes() == wanted


GUID, GUIDS = "00:11:22:33:44:55:66:77", [f"02:00:00:00:00:00:00:0{n}" for n in "abc"]


@pytest.mark.parametrize(
    ("runtime", "args", "env", "own", "guid"),
    [
        (GUID, *GUIDS, GUID),
        (None, GUID, *GUIDS[1:], GUID),
        (None, None, GUID, GUIDS[2], GUID),
        (None, None, None, GUID, GUID),
        (None, None, None, "001122334455667A", "00:11:22:33:44:55:66:7a"),
        ("", "", None, GUID, GUID),
        (None, None, None, None, ""),
    ],
)
def test_guid_precedence(runtime: str | None, args: str | None, env: str | None, own: str | None, guid: str) -> None:
    document = conf(**VF, guid=own, runtimeConfig={"infinibandGUID": runtime}, args={"cni": {"guid": args}})
    assert config.load(document, f"GUID={env}" if env else "").guid == guid


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("00:11:22:33:44:55:66", "is not a GUID"),
        ("00:11:22:33:44:55:66:77:88", "is not a GUID"),
        ("0011:2233:4455:6677", "is not a GUID"),
        ("00-11-22-33-44-55-66-77", "is not a GUID"),
        ("0x11223344556677", "is not a GUID"),
        ("00:11:22:33:44:55:66:7g", "is not a GUID"),
        pytest.param("0011223344556677\n", "is not a GUID"),
        ("", "is not a GUID"),
        ("00:00:00:00:00:00:00:00", "means no GUID"),
        ("FFFFFFFFFFFFFFFF", "means no GUID"),
    ],
)
def test_guid_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}"):
        models.port_guid(text)


@pytest.mark.parametrize(
    ("keys", "args", "msg"),
    [
        (VF | {"guid": "x"}, "", 'guid "x": is not a GUID; write'),
        (VF | {"guid": 5}, "", "guid 5: "),
        (VF | {"runtimeConfig": {"infinibandGUID": 5}}, "", "requested infinibandGUID 5 is not a GUID; write"),
        (VF | {"args": {"cni": {"guid": "x"}}}, "", "requested guid 'x' is not a GUID; write"),
        (VF, "GUID=x", "requested guid 'x' is not a GUID; write"),
        ({"runtimeConfig": {"infinibandGUID": GUID}}, "", f"requested infinibandGUID '{GUID}': macvlan has no GUID"),
        ({"kind": "ipvlan"}, f"GUID={GUID}", f"requested guid '{GUID}': ipvlan has no GUID; remove it"),
    ],
)
def test_guid_that_cannot_be(keys: dict[str, Any], args: str, msg: str) -> None:
    error = refused(conf(**keys), args)
    assert (error.code, error.msg[: len(msg)]) == (7, msg)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"kind": "sriov"}, ("deviceID", "resourceName", "pf")),
        (VF | {"pf": "ens1f0"}, ("deviceID", "0000:3b:00.2", "pf", "ens1f0", "remove one")),
        (VF | {"vf": 1}, ("vf", "set pf")),
        (VF | {"useInterfaceNetwork": True}, ("useInterfaceNetwork", "set pfOnly, or use kind host-device")),
        ({"pf": "ens1f0", "pfOnly": True, "vf": 1, "trust": "on"}, ("pfOnly", "trust, vf")),
        (VF | {"vlan": 4095}, ("vlan 4095", "4094")),
        (VF | {"vlan": -1}, ("vlan -1",)),
        (VF | {"vlan": "7"}, ('vlan "7"',)),
        (VF | {"vlanQoS": 8, "vlan": 1}, ("vlanQoS 8",)),
        (VF | {"vlanQoS": 3}, ("vlanQoS 3", "set vlan")),
        (VF | {"vlanQoS": 3, "vlan": 0}, ("vlanQoS 3", "set vlan")),
        (VF | {"vlanProto": "802.1ad"}, ("vlanProto", "802.1ad", "set vlan")),
        (VF | {"vlanProto": "802.1x", "vlan": 1}, ("vlanProto", "802.1x")),
        (VF | {"spoofchk": "yes"}, ('spoofchk "yes"', "on", "off")),
        (VF | {"trust": True}, ("trust true", "on")),
        (VF | {"link_state": "up"}, ('link_state "up"', "enable")),
        (VF | {"min_tx_rate": -1}, ("min_tx_rate -1",)),
        (VF | {"min_tx_rate": 20, "max_tx_rate": 10}, ("min_tx_rate 20", "max_tx_rate 10", "lower")),
        (VF | {"mac": "01:00:5e:00:00:01"}, ("multicast",)),
        (VF | {"rdma": {"mode": "soft"}}, ("rdma.mode", "rxe")),
        (VF | {"rdma": "auto"}, ("rdma",)),
        (VF | {"rdma": {"name": ""}}, ('rdma.name ""',)),
        (VF | {"rdma": {"gidTimeout": -1}}, ("rdma.gidTimeout -1",)),
        (VF | {"rdma": {"gidTimeout": 61}}, ("rdma.gidTimeout 61", "60")),
        (VF | {"rdma": {"gidTimeout": "5"}}, ('rdma.gidTimeout "5"',)),
        (VF | {"rdma": {"name": "mlx5/0"}}, ('rdma.name "mlx5/0"', "63")),
        (VF | {"rdma": {"name": "x" * 64}}, ("rdma.name", "63")),
        (VF | {"rdma": {"name": "mlx5_0", "mode": "shared"}}, ("rdma.name 'mlx5_0'", "'shared'", "exclusive")),
        (VF | {"rdma": {"required": True, "mode": "off"}}, ("rdma.required", "'off'", "remove one")),
        ({"kind": "macvlan", "rdma": {"mode": "exclusive"}}, ("rdma.mode 'exclusive'", "one namespace", "VF")),
        ({"kind": "ipvlan", "rdma": {"mode": "exclusive"}}, ("rdma.mode 'exclusive'", "one namespace", "VF")),
        ({"kind": "macvlan", "rdma": {"name": "mlx5_0"}}, ("rdma.name 'mlx5_0'", "VF")),
        ({"linkInContainer": True, "rdma": {"required": True}}, ("rdma.required", "linkInContainer")),
    ],
)
def test_a_vf_or_rdma_refused(keys: dict[str, Any], says: tuple[str, ...]) -> None:
    error = refused(conf(**keys))
    assert error.code == 7
    assert [word for word in says if word not in error.msg] == []


@pytest.mark.parametrize("keys", [{"kind": "macvlan"}, {"kind": "ipvlan"}, VF])
def test_soft_roce_on_any_kind(keys: dict[str, Any]) -> None:
    assert config.load(conf(**keys, rdma={"mode": "rxe"}), "").attach.soft_roce
    assert not config.load(conf(**keys), "").attach.soft_roce


@pytest.mark.parametrize(
    ("keys", "seconds"),
    [({}, 1), ({"required": True}, 5), ({"gidTimeout": 0, "required": True}, 0), ({"gidTimeout": 2.5}, 2.5)],
)
def test_how_long_gids_are_waited_for(keys: dict[str, Any], seconds: float) -> None:
    assert config.load(conf(rdma=keys), "").attach.rdma.timeout == seconds


def test_unknown_key_of_rdma() -> None:
    error = refused(conf(**VF, rdma={"modus": "auto"}))
    assert error.code == 2
    assert 'rdma.modus "auto"' in error.msg


@pytest.mark.parametrize("keys", [{"master": "eth1"}, {"kind": "macvlan"}, {"kind": "ipvlan"}])
def test_device_id_beside_master_or_kind(keys: dict[str, Any]) -> None:
    config.load(conf(deviceID="0000:3b:00.2", **keys), "")
