"""A request around a configuration: the pod, the earlier result, the paths of state and log, a peer's spelling."""

import json
from typing import Any

import pytest
from support.configurations import MAC, conf, refused

from base.protocol.errors import BadEnvironment, InvalidConfig
from base.protocol.location import Location
from base.protocol.result import Result
from base.protocol.spec import Request
from cni import config, models
from cni.models import NetConf
from cni.models.ipvlan import Ipvlan
from cni.models.macvlan import Macvlan
from cni.models.sriov import Sriov


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
    """Equal configurations are parsed once; a pod's own requests are not shared."""

    def of(cni_args: str, **keys: Any) -> NetConf:
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
        ({"ips": [{"address": "10.0.0.1/24", "interface": 7}]}, "ips[].interface 7 is not an index into 0 interfaces"),
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
    ("keys", "words"),
    [({"logFile": "hpn.log"}, "absolute"), ({"logLevel": "verbose"}, "logLevel")],
)
def test_a_log_that_cannot_be(keys: dict[str, Any], words: str) -> None:
    error = refused(conf(**keys))
    assert (error.code, words in error.msg) == (7, True)


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({}, Location("rail0", "")),
        ({"stateDir": 5}, Location("rail0", "")),  # an earlier version's
        ({"ipam": {"type": "host-local"}}, Location("rail0", "host-local")),
        ({"ipam": None}, Location("rail0", "")),
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
            Location("rail0", ""),
        ),
        ({"ipam": {"type": "hpn-ipam", "ranges": 5}}, Location("rail0", "hpn-ipam")),
    ],
)
def test_location(keys: dict[str, Any], where: Location) -> None:
    assert config.location(conf(**keys)) == where


@pytest.mark.parametrize(
    ("keys", "msg"),
    [
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
        "ibKubernetesEnabled true is ignored",
        'pkey "0x6" is ignored',
        "vfioPciMode false is ignored",
    ]
    assert config.load(conf(), "").remarks == ()
    assert refused(conf(pkeys="0x6")).code == 2
