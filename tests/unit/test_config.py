"""stdin's JSON -> NetConf: every key, what it takes, what it refuses and in which words."""

import json
from pathlib import Path
from typing import Any

import pytest

from cni import config, models
from cni.config import Location
from cni.models.ipvlan import Ipvlan
from cni.models.macvlan import Macvlan
from cni.models.sriov import Sriov
from cni.protocol.errors import BadEnvironment, CniError, InvalidConfig, UnsupportedField
from cni.protocol.result import Interface, Result
from cni.protocol.spec import Request

MAC = "02:00:00:00:00:01"


def conf(**keys: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "rail0", "type": "hpn", **keys}


def refused(document: dict[str, Any], cni_args: str = "") -> CniError:
    with pytest.raises(CniError) as e:
        config.load(document, cni_args)
    return e.value


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
        dad="optimistic",
        stateDir="/run/hpn",
        strict=True,
    )
    assert loaded.where == Location("rail0", Path("/run/hpn"), "")
    assert (loaded.mac, loaded.pod, loaded.previous, loaded.dns) == ("", "", None, {})


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("mtu", [0, 68, 1500, 65535]),
        ("ipam", [{}, {"type": "hpn-ipam"}, {"type": "host-local", "anything": [1]}]),  # the delegate's to judge
        ("dns", [{}, {"nameservers": ["10.0.0.53"]}]),
        ("dad", ["optimistic", "wait", "off"]),
        ("stateDir", ["/", "/run/x y/z"]),
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
    ("dad", "on", '"on"', "'optimistic', 'wait' or 'off'"),
    ("dad", True, "true", "'optimistic', 'wait' or 'off'"),
    ("stateDir", "run/hpn", '"run/hpn"', "must be an absolute path"),
    ("stateDir", "", '""', "must be an absolute path"),
    ("stateDir", 5, "5", "valid string"),
    pytest.param("stateDir", "/a\0b", '"/a\\u0000b"', "path"),  # no system call takes it
    ("strict", "false", '"false"', "valid boolean"),
    ("strict", 0, "0", "valid boolean"),
    ("master", "a/b", '"a/b"', "cannot name an interface"),
    ("master", "a" * 16, '"aaaaaaaaaaaaaaaa"', "1 to 15 bytes"),
    ("master", ["eth0"], '["eth0"]', "valid string"),
    ("linkInContainer", "true", '"true"', "valid boolean"),
    ("linkInContainer", 1, "1", "valid boolean"),
    ("sysctl", [], "[]", "valid dictionary"),
    ("sysctl", {"kernel.shmmax": "1"}, '{"kernel.shmmax": "1"}', "'kernel.shmmax' is no sysctl of the network; write"),
    ("sysctl", {"net.core.x": "1\n2"}, '{"net.core.x": "1\\n2"}', "the value '1\\n2' of 'net.core.x' is not one line"),
    ("policyRouting", 100, "100", 'must be true, false or an object, {"table": 100}'),
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
    assert (error.code, error.msg) == (7, f"kind {shown} is not one of macvlan, ipvlan, sriov")


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
    assert error.msg == f"{key} {shown} is not a key we know; correct it, remove it, or set strict to false"


# What runtimes add: of the specification, libcni and Multus.
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
    # What is wrong comes before what is unknown, and its code is the answer's.
    assert error.code == 7
    assert error.msg.startswith("mtu -1: ")
    others = ['dad "on": ', "mtuu 9000 is not a key", "foo [1] is not a key"]
    found = [error.details.index(other) for other in others]
    assert found == sorted(found)


def test_several_unknown_keys() -> None:
    error = refused(conf(a=1, b=2))
    assert (error.code, error.msg[:4]) == (2, "a 1 ")
    assert "b 2 is not a key we know" in error.details


RUNTIME, ARGS, ENV, OWN = (f"02:00:00:00:00:0{n}" for n in "abcd")


@pytest.mark.parametrize(
    ("runtime", "args", "env", "own", "mac"),
    [
        (RUNTIME, ARGS, ENV, OWN, RUNTIME),
        (None, ARGS, ENV, OWN, ARGS),
        (None, None, ENV, OWN, ENV),
        (None, None, None, OWN, OWN),
        (None, None, None, None, ""),
        ("", "", "", OWN, OWN),  # Multus sends an empty mac for none
    ],
)
def test_mac_precedence(runtime: str | None, args: str | None, env: str | None, own: str | None, mac: str) -> None:
    document = conf(mac=own)
    if runtime is not None:
        document["runtimeConfig"] = {"mac": runtime}
    if args is not None:
        document["args"] = {"cni": {"mac": args}}
    assert config.load(document, "" if env is None else f"MAC={env}").mac == mac


@pytest.mark.parametrize(
    ("text", "mac"),
    [
        ("02:00:00:00:00:01", MAC),
        ("0A:BC:DE:F0:12:34", "0a:bc:de:f0:12:34"),  # as the kernel shows it
        ("02-00-00-00-00-01", MAC),
        ("0200.0000.0001", MAC),
        ("020000000001", MAC),
        ("fe:ff:ff:ff:ff:ff", "fe:ff:ff:ff:ff:ff"),
        ("00:00:00:00:00:01", "00:00:00:00:00:01"),  # only all of it zero is no MAC
    ],
)
def test_mac_formats(text: str, mac: str) -> None:
    assert models.unicast_mac(text) == mac


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a MAC address"),
        ("1", "is not a MAC address"),  # a number is an EUI to netaddr, if it is one
        ("10", "is not a MAC address"),
        ("2199023255553", "is not a MAC address"),
        ("0x020000000001", "is not a MAC address"),
        ("02:00:00:00:00", "is not a MAC address"),
        ("02:00:00:00:00:01:02", "is not a MAC address"),
        ("02:00:00:00:00:01:02:03", "is not a MAC address"),  # EUI-64
        ("00:00:00:00:00:00:00:01", "is not a MAC address"),  # an EUI-64 whose number would fit
        ("02:00:00:00:00:0g", "is not a MAC address"),
        (" 02:00:00:00:00:01", "is not a MAC address"),
        ("02:00:00:00:00:01 ", "is not a MAC address"),
        pytest.param("02:00:00:00:00:01\n", "is not a MAC address"),
        pytest.param("abcdefabcde", "is not a MAC address"),  # eleven digits
        pytest.param("20000000001", "is not a MAC address"),
        ("00:00:00:00:00:00", "is the zero MAC"),
        ("000000000000", "is the zero MAC"),
        ("01:00:00:00:00:00", "is a multicast MAC"),
        ("ff:ff:ff:ff:ff:ff", "is a multicast MAC"),
        ("33-33-00-00-00-01", "is a multicast MAC"),
    ],
)
def test_mac_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}"):
        models.unicast_mac(text)


@pytest.mark.parametrize("value", ["x", 1, True, [MAC], {"mac": MAC}, "01:00:00:00:00:01"], ids=repr)
def test_requested_mac_refused(value: Any) -> None:
    error = refused(conf(runtimeConfig={"mac": value}))
    assert error.code == 7
    assert error.msg.startswith(f"requested mac {value!r} is ")


@pytest.mark.parametrize(
    ("keys", "mode"),
    [
        ({"kind": "ipvlan"}, "ipvlan in mode l2"),
        ({"kind": "ipvlan", "mode": "l3"}, "ipvlan in mode l3"),
        ({"mode": "passthru"}, "macvlan in mode passthru"),
    ],
)
def test_mac_where_it_is_the_masters(keys: dict[str, Any], mode: str) -> None:
    why = f"mac '{MAC}': {mode} has its master's MAC; remove mac or use mode bridge"
    for error in (
        refused(conf(runtimeConfig={"mac": MAC}, **keys)),
        refused(conf(args={"cni": {"mac": MAC}}, **keys)),
        refused(conf(**keys), f"MAC={MAC}"),
    ):
        assert (error.code, error.msg) == (7, why)


def test_own_mac_with_passthru() -> None:
    assert refused(conf(mode="passthru", mac=MAC)).msg.startswith(f"mac '{MAC}': macvlan in mode passthru has")


@pytest.mark.parametrize(
    ("cni_args", "pod"),
    [
        ("K8S_POD_NAMESPACE=default;K8S_POD_NAME=p", "default/p"),
        ("K8S_POD_NAME=p", "p"),  # podman
        ("K8S_POD_NAMESPACE=default", ""),  # is many pods'
        ("K8S_POD_NAMESPACE=;K8S_POD_NAME=p", "p"),
        ("", ""),
    ],
)
def test_pod_name(cni_args: str, pod: str) -> None:
    assert config.load(conf(), cni_args).pod == pod


def test_pods_of_one_configuration() -> None:
    """What is the same for all is parsed once; what a pod asks for is its own."""

    def of(cni_args: str, **keys: Any) -> config.NetConf:
        return config.of(Request({"CNI_ARGS": cni_args}, json.dumps(conf(**keys)).encode()))

    names = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="
    one, other, odd = of(f"{names}one"), of(f"{names}other"), of(f"{names}one;MAC={MAC};IP=10.0.0.9")
    assert (one.pod, other.pod, odd.pod, of("").pod) == ("default/one", "default/other", "default/one", "")
    assert (one.mac, other.mac, odd.mac) == ("", "", MAC)
    assert one.attach is other.attach
    assert of(f"{names}one", mtu=1400).attach.mtu == 1400
    with pytest.raises(BadEnvironment, match="unknown FOO='1'"):
        of("FOO=1;K8S_POD_NAME=one")
    vf = {"kind": "sriov", "pf": "ens1f0"}
    for asked in ("VF=3", "VF=3;VLAN=7", f"VF=3;MAC={MAC}", "VF=3;GUID=00:11:22:33:44:55:66:77"):
        assert of(f"{asked};K8S_POD_NAME=one", **vf) == config.load(conf(**vf), f"{asked};K8S_POD_NAME=one"), asked


def test_cni_args_are_checked() -> None:
    assert refused(conf(), "FOO=1").code == 4


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([], "result [] is not an object"),
        ("", "result '' is not an object"),
        (5, "result 5 is not an object"),
        ({"ips": 5}, "ips 5 is not a list"),
        ({"ips": [{"address": "x"}]}, "'x'"),
        ({"ips": [{"address": "10.0.0.1/24", "interface": 7}]}, "ips[].interface 7 is no index into 0 interfaces"),
        ({"routes": [{"dst": "10.0.0.0/8", "mtu": -1}]}, "routes[].mtu -1 is not a number"),
    ],
)
def test_malformed_previous_result(value: Any, why: str) -> None:
    error = refused(conf(prevResult=value))
    assert (type(error), error.code) == (InvalidConfig, 7)
    assert error.msg.startswith("prevResult: ")
    assert why in error.msg


def test_no_previous_result() -> None:
    assert config.load(conf(prevResult=None), "").previous is None
    assert config.load(conf(prevResult={}), "").previous == Result()


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
    assert (attach.deviceID, attach.device, attach.attributes()) == ("0000:3b:00.2", "0000:3b:00.2", {})


def test_a_pf_asks_for_any_of_its_vfs() -> None:
    attach = config.load(conf(pf="ens1f0"), "").attach
    assert isinstance(attach, Sriov)
    assert (attach.pf, attach.device) == ("ens1f0", "")


def test_a_pf_itself_is_its_device() -> None:
    assert config.load(conf(pf="ens1f0", pfOnly=True), "").attach.device == "ens1f0"


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
    ("keys", "words"),
    [({"logFile": "hpn.log"}, "absolute"), ({"logLevel": "verbose"}, "logLevel")],
)
def test_a_log_that_cannot_be(keys: dict[str, Any], words: str) -> None:
    error = refused(conf(**keys))
    assert (error.code, words in error.msg) == (7, True)


VF = {"deviceID": "0000:3b:00.2"}


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
        ("00:00:00:00:00:00:00:00", "stands for no GUID"),
        ("FFFFFFFFFFFFFFFF", "stands for no GUID"),
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
        (VF | {"pfOnly": True}, ("pfOnly", "set pf")),
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
def test_sysctl_and_policy_routing_on_any_kind(keys: dict[str, Any]) -> None:
    ipam = {"type": "hpn-ipam"}
    for value, table in ((True, None), ({}, None), ({"table": 1}, 1), ({"table": 2**32 - 1}, 2**32 - 1)):
        attach = config.load(conf(**keys, ipam=ipam, policyRouting=value), "").attach
        assert attach.policyRouting == models.PolicyRouting(table=table)
    assert config.load(conf(**keys, policyRouting=False), "").attach.policyRouting is None
    wanted = {"net/core/b": "", "net.core.a": "4096\t87380 6291456"}
    assert list(config.load(conf(**keys, sysctl=wanted), "").attach.sysctl.items()) == list(wanted.items())


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"sysctl": {"net.core.somaxconn": 1024}}, "sysctl.net.core.somaxconn 1024: input should be a valid string"),
        ({"policyRouting": True, "ipam": None}, "policyRouting routes by the interface's addresses"),
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


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({}, Location("rail0", Path("/run/hpn"), "")),
        ({"stateDir": "/s"}, Location("rail0", Path("/s"), "")),
        ({"ipam": {"type": "host-local"}}, Location("rail0", Path("/run/hpn"), "host-local")),
        ({"ipam": None}, Location("rail0", Path("/run/hpn"), "")),
        # broken elsewhere, and a DEL has to work
        (
            {
                "kind": ["x"],
                "mtu": "x",
                "mac": 5,
                "runtimeConfig": 5,
                "args": 5,
                "prevResult": 5,
                "mtuu": 1,
                "strict": 7,
            },
            Location("rail0", Path("/run/hpn"), ""),
        ),
        ({"ipam": {"type": "hpn-ipam", "ranges": 5}}, Location("rail0", Path("/run/hpn"), "hpn-ipam")),
    ],
)
def test_location(keys: dict[str, Any], where: Location) -> None:
    assert config.location(conf(**keys)) == where


@pytest.mark.parametrize(
    ("keys", "msg"),
    [
        ({"stateDir": 5}, "stateDir 5 must be an absolute path"),
        ({"stateDir": "s"}, "stateDir 's' must be an absolute path"),
        ({"stateDir": None}, "stateDir None must be an absolute path"),
        pytest.param({"stateDir": "/a\0b"}, "stateDir '/a\\x00b' must be an absolute path"),
        ({"ipam": 5}, "ipam 5 is not an object"),
        ({"ipam": ["x"]}, "ipam ['x'] is not an object"),
        ({"ipam": {"subnet": "x"}}, "ipam.type '' names no plugin; set hpn-ipam, host-local, ... or remove ipam"),
        ({"ipam": {"type": 5}}, "ipam.type 5 names no plugin; set hpn-ipam, host-local, ... or remove ipam"),
        ({"ipam": {"type": ""}}, "ipam.type '' names no plugin; set hpn-ipam, host-local, ... or remove ipam"),
        ({"name": "../x"}, "name '../x' is not a network name"),
    ],
)
def test_location_refused(keys: dict[str, Any], msg: str) -> None:
    with pytest.raises(InvalidConfig) as e:
        config.location(conf(**keys))
    assert e.value.msg.startswith(msg)


BASE = '"cniVersion": "1.0.0", "name": "n", "type": "hpn"'


@pytest.mark.parametrize(
    ("text", "attach"),
    [
        (f'{{{BASE}, "kind": "ipvlan", "mode": "", "master": "", "mtu": null}}', Ipvlan(kind="ipvlan")),
        (f'{{{BASE}, "Kind": "ipvlan", "Mode": "l3", "LinkInContainer": true}}',
         Ipvlan(kind="ipvlan", mode="l3", linkInContainer=True)),
        (f'{{{BASE}, "kind": null, "strict": null, "policyRouting": null, "sysctl": null, "ipam": null}}', Macvlan()),
        (f'{{{BASE}, "DeviceID": "0000:3b:00.2", "VLAN": 7, "vlanproto": "802.1Q", "vlanqos": null, "Trust": "on"}}',
         Sriov(deviceID="0000:3b:00.2", vlan=7, trust="on")),
        (f'{{{BASE}, "deviceID": "0000:3b:00.2", "vlan": null, "mac": "", "spoofchk": "", "trust": ""}}',
         Sriov(deviceID="0000:3b:00.2")),
        (f'{{{BASE}, "deviceID": "0000:3b:00.2", "link_state": "", "min_tx_rate": null, "max_tx_rate": null}}',
         Sriov(deviceID="0000:3b:00.2")),
        (f'{{{BASE}, "deviceID": "0000:3b:00.2", "logLevel": "", "logFile": "", "Master": "", "pfOnly": null}}',
         Sriov(deviceID="0000:3b:00.2")),
        (f'{{{BASE}, "pf": "ens1f0", "deviceID": "", "runtimeConfig": {{"deviceID": ""}}}}', Sriov(pf="ens1f0")),
    ],
)  # fmt: skip
def test_as_a_peer_writes_it(text: str, attach: models.Common) -> None:
    assert config.of(Request({}, text.encode())).attach == attach


def test_what_is_passed_over_is_said() -> None:
    keys = {"pkey": "0x6", "ibKubernetesEnabled": True, "vfioPciMode": False}
    loaded = config.load(conf(deviceID="0000:3b:00.2", **keys), "")
    assert [line.partition(":")[0] for line in loaded.remarks] == [
        "ibKubernetesEnabled true is passed over",
        'pkey "0x6" is passed over',
        "vfioPciMode false is passed over",
    ]
    assert config.load(conf(), "").remarks == ()
    assert refused(conf(pkeys="0x6")).code == 2
