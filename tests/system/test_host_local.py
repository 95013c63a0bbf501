"""Valid and invalid configurations of host-local: what the real one and hpn-ipam make of each."""

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from system.machine import Tools


@dataclass(frozen=True)
class Case:
    """The keys beside ``type``, and what each program answers: the addresses, or None if it refuses them."""

    why: str
    ipam: dict[str, Any]
    theirs: tuple[str, ...] | None
    ours: tuple[str, ...] | None
    version: str = "1.0.0"
    args: str = ""
    more: dict[str, Any] = field(default_factory=dict)


def same(why: str, ipam: dict[str, Any], *given: str, **more: Any) -> Case:
    return Case(why, ipam, given or None, given or None, **more)


def one(subnet: str, **keys: str) -> dict[str, Any]:
    return {"ranges": [[{"subnet": subnet, **keys}]]}


def sets(*subnets: str) -> dict[str, Any]:
    return {"ranges": [[{"subnet": subnet}] for subnet in subnets]}


CASES = [
    same("defaults of IPv4", one("10.1.0.0/24"), "10.1.0.2/24"),
    same("defaults of a short one", one("10.1.0.64/29"), "10.1.0.66/29"),
    same("defaults of IPv6", one("fd00:1::/64"), "fd00:1::2/64"),
    same("the key in place", {"subnet": "10.1.0.0/24"}, "10.1.0.2/24"),
    same("in place before ranges", {"subnet": "10.1.0.0/24"} | sets("10.2.0.0/24"), "10.1.0.2/24", "10.2.0.2/24"),
    same(
        "the runtime's before all",
        sets("10.2.0.0/24"),
        "10.1.0.2/24",
        "10.2.0.2/24",
        more={"runtimeConfig": {"ipRanges": [[{"subnet": "10.1.0.0/24"}]]}},
    ),
    same("no range", {}),
    same("an empty set", {"ranges": [[]]}),
    same("no sets", {"ranges": []}),
    same("a subnet with host bits", one("10.1.0.1/24")),
    same("an IPv6 subnet with host bits", one("fd00:1::1/64")),
    same("no prefix length", one("10.1.0.0")),
    same("not an address", one("10.1.0.0/24", rangeStart="10.1.0")),
    Case("a link of two", one("10.1.0.0/31"), None, ("10.1.0.0/31",)),
    Case("one address", one("10.1.0.5/32"), None, ("10.1.0.5/32",)),
    Case("an IPv6 link of two", one("fd00:1::/127"), None, ("fd00:1::/127",)),
    same("four addresses", one("10.1.0.0/30"), "10.1.0.2/30"),
    same("a gateway outside", one("10.1.0.0/24", gateway="10.2.0.1")),
    same("a gateway of the other family", one("10.1.0.0/24", gateway="fd00:1::1")),
    same("a gateway inside", one("10.1.0.0/24", gateway="10.1.0.2"), "10.1.0.1/24"),
    Case("a link-local gateway", one("fd00:1::/64", gateway="fe80::1"), None, ("fd00:1::1/64",)),
    Case("a gateway that is the broadcast address", one("10.1.0.0/24", gateway="10.1.0.255"), ("10.1.0.1/24",), None),
    same("rangeStart outside", one("10.1.0.0/24", rangeStart="10.2.0.5")),
    same("rangeEnd outside", one("10.1.0.0/24", rangeEnd="10.2.0.5")),
    same("rangeStart of the other family", one("10.1.0.0/24", rangeStart="fd00:1::5")),
    same("rangeStart above rangeEnd", one("10.1.0.0/24", rangeStart="10.1.0.9", rangeEnd="10.1.0.5")),
    same("rangeStart is the broadcast address", one("10.1.0.0/24", rangeStart="10.1.0.255")),
    same("at the end of all addresses", one("255.255.255.252/30", rangeStart="255.255.255.255")),
    same("a range of one", one("10.1.0.0/24", rangeStart="10.1.0.9", rangeEnd="10.1.0.9"), "10.1.0.9/24"),
    Case(
        "the network address in the range",
        one("10.1.0.0/24", rangeStart="10.1.0.0"),
        ("10.1.0.0/24",),
        ("10.1.0.2/24",),
    ),
    same("rangeStart is the gateway", one("10.1.0.0/24", rangeStart="10.1.0.1"), "10.1.0.2/24"),
    same("a range of the gateway only", one("10.1.0.0/24", rangeStart="10.1.0.1", rangeEnd="10.1.0.1")),
    same("overlapping sets", sets("10.1.0.0/16", "10.1.2.0/24")),
    same("overlap within a set", {"ranges": [[{"subnet": "10.1.0.0/16"}, {"subnet": "10.1.2.0/24"}]]}),
    same("the same subnet twice", sets("10.1.0.0/24", "10.1.0.0/24")),
    same(
        "one subnet in two parts",
        {
            "ranges": [
                [{"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.9"}],
                [{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10"}],
            ]
        },
        "10.1.0.2/24",
        "10.1.0.10/24",
    ),
    same("two families in a set", {"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00:1::/64"}]]}),
    same("two of a family in 0.2.0", sets("10.1.0.0/24", "10.2.0.0/24"), version="0.2.0"),
    same("one requested", sets("10.1.0.0/24"), "10.1.0.77/24", args="IP=10.1.0.77"),
    same("requested by the runtime", sets("10.1.0.0/24"), "10.1.0.7/24", more={"runtimeConfig": {"ips": ["10.1.0.7"]}}),
    same("with a prefix", sets("10.1.0.0/24"), "10.1.0.7/24", more={"runtimeConfig": {"ips": ["10.1.0.7/16"]}}),
    same("by args", sets("10.1.0.0/24"), "10.1.0.7/24", more={"args": {"cni": {"ips": ["10.1.0.7"]}}}),
    same("requested in no range", sets("10.1.0.0/24"), args="IP=10.2.0.7"),
    same("requested above rangeEnd", one("10.1.0.0/24", rangeEnd="10.1.0.9"), args="IP=10.1.0.77"),
    same("the gateway requested", sets("10.1.0.0/24"), args="IP=10.1.0.1"),
    same("two of one set requested", sets("10.1.0.0/24"), more={"runtimeConfig": {"ips": ["10.1.0.7", "10.1.0.8"]}}),
    Case("an unknown key", {"ranges": [[{"subnet": "10.1.0.0/24", "rangeEnds": "10.1.0.9"}]]}, ("10.1.0.2/24",), None),
    same("a route", sets("10.1.0.0/24") | {"routes": [{"dst": "0.0.0.0/0"}]}, "10.1.0.2/24"),
    same("a route without a destination's prefix", sets("10.1.0.0/24") | {"routes": [{"dst": "10.9.0.0"}]}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why.replace(" ", "-"))
def test_what_each_takes(case: Case, tools: Tools, tmp_path: Path) -> None:
    for kind, folder, expected in (("host-local", tools.peers, case.theirs), ("hpn-ipam", tools.plugins, case.ours)):
        ipam = {"type": kind, **case.ipam, "dataDir": str(tmp_path / kind)}
        conf = {"cniVersion": case.version, "name": "net", "type": "macvlan", "ipam": ipam, **case.more}
        environ = {
            **os.environ, "CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_NETNS": "/run/netns/none",
            "CNI_IFNAME": "net1", "CNI_ARGS": case.args, "CNI_PATH": str(folder),
        }  # fmt: skip
        done = subprocess.run(
            [folder / kind], env=environ, input=json.dumps(conf), capture_output=True, text=True, check=False
        )
        answer = json.loads(done.stdout)
        given = tuple(ip["address"] for ip in answer.get("ips", ()))
        assert (done.returncode == 0, given) == (expected is not None, expected or ()), (kind, answer)
