"""Converting a configuration from other plugins' spelling to ours."""

import json
from typing import Any

import pytest
from pydantic import BaseModel
from support.elapsed import cost, is_proportional

from base.protocol import spec, spelling
from base.protocol.errors import InvalidConfig
from base.protocol.spelling import Shape, normalize
from cni import config, kinds, models
from ipam import models as ipam_models


def fields(*some: type[BaseModel]) -> set[str]:
    return {field.alias or name for model in some for name, field in model.model_fields.items()}


@pytest.mark.parametrize(
    ("shape", "keys"),
    [
        (
            spelling.NETWORK,
            fields(*map(kinds.model, kinds.KINDS))
            | config._RUNTIME_KEYS
            | config._PASSED_OVER.keys()
            | config._BESIDE_A_PF,
        ),
        (spelling.NETWORK.keys["rdma"], fields(models.Rdma)),
        (spelling.NETWORK.keys["policyRouting"], fields(models.PolicyRouting)),
        (spelling.IPAM, fields(ipam_models.IpamKeys)),
        (spelling.RANGE, fields(ipam_models.RangeKeys)),
        (spelling.RAIL, fields(ipam_models.RailKeys)),
        (spelling.ROUTE, fields(ipam_models.RouteKeys)),
        (spelling.CLUSTER, fields(ipam_models.ClusterKeys)),
    ],
)
def test_all_keys_of_ours_are_in_it(shape: Shape, keys: set[str]) -> None:
    """So a new key is accepted in any case, too."""
    assert shape.keys.keys() == keys
    assert set(shape.folded.values()) == keys
    assert len(shape.folded) == len(keys)


DOCUMENTED: dict[str, Any] = {
    "cniVersion": "1.1.0",
    "name": "n",
    "mac": "02:00:00:00:00:01",
    "sysctl": {"net.core.A": "", "x": None},
    "rdma": {"mode": "off"},
    "runtimeConfig": {"ips": ["10.0.0.5"], "portMappings": [{"HostPort": None}]},
    "prevResult": {"ips": [{"Address": None}], "dns": {"domain": ""}},
    "ipam": {"type": "x", "ranges": [[{"subnet": "10.0.0.0/24", "gateway": None}]], "theirs": {"Subnet": ""}},
    "cni.dev/valid-attachments": [],
    "mtuu": None,
}


def test_what_is_as_documented_stays_as_it_is() -> None:
    before = json.dumps(DOCUMENTED)
    assert json.dumps(normalize(DOCUMENTED)) == before == json.dumps(DOCUMENTED)
    plain = {"name": "n", "ipam": {"ranges": [[{"subnet": "10.0.0.0/24"}]]}}
    assert normalize(plain) is plain


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"Mode": "l2", "IPAM": {"Type": "x"}}, {"mode": "l2", "ipam": {"type": "x"}}),
        ({"VLANQOS": 3, "Min_Tx_Rate": 5}, {"vlanQoS": 3, "min_tx_rate": 5}),
        ({"mode": "", "master": None, "mtu": None, "logFile": ""}, {}),
        ({"mtu": "", "kind": "", "pf": "", "name": ""}, {"mtu": "", "kind": "", "pf": "", "name": ""}),  # no default
        ({"x": None, "Y": ""}, {"x": None, "Y": ""}),  # not ours: refused by name
        ({"ipam": None, "args": None}, {}),
        ({"ipam": {"type": "", "gateway": "", "Gateway2": ""}}, {"ipam": {"Gateway2": ""}}),
        ({"ipam": {"GATEWAY": None}}, {"ipam": {"gateway": None}}),
        ({"ipam": {"rails": [{"PF": "a", "Ranges": [[{"Subnet": "s", "rangeend": ""}]]}]}},
         {"ipam": {"rails": [{"pf": "a", "ranges": [[{"subnet": "s"}]]}]}}),
        ({"ipam": {"routes": [{"DST": "d", "gw": "", "MTU": None}]}}, {"ipam": {"routes": [{"dst": "d"}]}}),
        ({"Args": {"CNI": {"MAC": "m", "Other": 1}, "Org": 1}}, {"args": {"cni": {"mac": "m", "Other": 1}, "Org": 1}}),
        ({"DNS": {"Nameservers": ["n"], "search": None}}, {"dns": {"nameservers": ["n"]}}),
        ({"ipam": 5, "args": "x", "rdma": [1]}, {"ipam": 5, "args": "x", "rdma": [1]}),  # for the models to refuse
        ({"Sysctl": {"A": None, "a": ""}, "Capabilities": {"IPs": True}},
         {"sysctl": {"A": None, "a": ""}, "capabilities": {"IPs": True}}),
    ],
)  # fmt: skip
def test_put_right(given: dict[str, Any], found: dict[str, Any]) -> None:
    before = json.dumps(given)
    assert normalize(given) == found
    assert normalize(given, strictly=False) == found
    assert json.dumps(given) == before


@pytest.mark.parametrize(
    ("given", "says", "last"),
    [
        ({"mode": "a", "Mode": "b"}, "mode and Mode", {"mode": "b"}),
        ({"Mode": "b", "mode": "a"}, "Mode and mode", {"mode": "a"}),
        ({"MODE": "b", "Mode": ""}, "MODE and Mode", {}),
        ({"ipam": {"ranges": [[{}, {"subnet": 1, "Subnet": 2}]]}},
         "ipam.ranges[0][1].subnet and ipam.ranges[0][1].Subnet", {"ipam": {"ranges": [[{}, {"subnet": 2}]]}}),
    ],
)  # fmt: skip
def test_two_spellings(given: dict[str, Any], says: str, last: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig) as e:
        normalize(given)
    assert (e.value.code, e.value.msg) == (7, f"{says} are one key in two spellings; remove one")
    assert normalize(given, strictly=False) == last


def test_a_key_that_is_there_twice() -> None:
    twice = b'{"a": {"b": 1, "c": [2], "b": {"long": "%s"}}}' % (b"x" * 5000)
    with pytest.raises(InvalidConfig) as e:
        spec.decode(twice)
    assert e.value.msg.startswith('key "b" is given twice in one object, as 1 and {"long": "xxx')
    assert len(e.value.msg) < 250
    assert spec.decode(twice, False)["a"]["b"] == {"long": "x" * 5000}


def test_many_keys_take_little_time() -> None:
    """A long configuration must not block."""

    def decode(many: int) -> None:
        text = json.dumps({f"Key{i}": None for i in range(many)} | {"mode": "bridge", "a": 1}).encode()
        with pytest.raises(InvalidConfig):
            spec.decode(text[:-1] + b', "a": 2}')
        spec.decode(text)

    assert is_proportional(lambda many: cost(lambda: decode(many)), 2_000, 64_000)
