"""Spellings of numbers and addresses that Go refuses, in every key and option that has one."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from base.protocol.errors import CniError, LinkUnavailable
from base.protocol.result import Result
from cni import config
from cni.models.ipoib import Ipoib
from ctl.devices import gids
from ctl.installation import layout
from ctl.plan import command as plan
from ctl.plan import documents
from ctl.top import command as top
from ipam import config as ipam
from node.config import values
from node.dra.claims import parameters, prepare

# What int() reads besides "24".
NUMBERS = ["+24", "-24", "2_4", " 24", "24 ", "24\n", "\uff12\uff14", "\u0662\u0664"]
ADDRESSES = ["010.0.0.5", "10.0.5", " 10.0.0.5", "10.0.0.5\n", "10.0.0.\u0665", "fe80::1%eth0", "167772165"]
# What net.ParseCIDR refuses.
CIDRS = [
    *(f"10.0.0.0/{length}" for length in [*NUMBERS, "33", "255.255.255.0", "0.0.0.255"]),
    *(f"fd00::/{length}" for length in [*NUMBERS, "129"]),
    *(f"{address}/24" for address in ADDRESSES),
    "10.0.0.0/",
]
REFUSED = (ValueError, CniError, SystemExit)


def pod_asks(**chosen: str) -> None:
    config.load({"cniVersion": "1.1.0", "name": "n", "type": "hpn", "pf": "rail0", "args": {"cni": chosen}}, "")


def ipam_keys(more: Any = None, **keys: Any) -> None:
    ipam.load({"name": "n", "ipam": {"subnet": "10.0.0.0/8", **keys}, **(more or {})}, {})


def claim_asks(address: str) -> None:
    if why := parameters.OF_CLAIM["ips"]([address]):
        raise ValueError(why)


def gids_of_port(number: str) -> None:
    with suppress(LinkUnavailable):  # after the options are read
        gids.answer(["no-device", "--", number])


OF_A_NUMBER: dict[str, Callable[[str], Any]] = {
    "vf": lambda text: pod_asks(vf=text),
    "vlan": lambda text: pod_asks(vlan=text),
    "pkey of kind ipoib": lambda text: Ipoib(kind="ipoib", master="ib0", pkey=text),
    "pKeys of the device file": values.pkey,
    "hpn plan --vfs": lambda text: plan._options([f"--vfs={text}"]),
    "hpn gids DEVICE PORT": gids_of_port,
    "hpn top --count": lambda text: top._parser().parse_args([f"--count={text}"]),
    "hpn install --api-server": lambda text: layout.kubeconfig(f"host:{text}", "/credential"),
}
OF_A_CIDR: dict[str, Callable[[str], Any]] = {
    "ipam.subnet": lambda text: ipam_keys(subnet=text, gateway=None),
    "ipam.ranges": lambda text: ipam_keys(subnet=None, ranges=[[{"subnet": text, "gateway": None}]]),
    "ipam.routes[].dst": lambda text: ipam_keys(routes=[{"dst": text}]),
    "runtimeConfig.ipRanges": lambda text: ipam_keys(
        {"runtimeConfig": {"ipRanges": [[{"subnet": text}]]}}, subnet=None
    ),
    "routes[].dst of a result": lambda text: Result.from_json({"routes": [{"dst": text}]}),
    "hpn plan --subnet": lambda text: documents._subnets(text, 1),
    "ips[].address of a result": lambda text: Result.from_json({"ips": [{"address": text}]}),
}
# An address or a CIDR.
OF_A_HOST: dict[str, Callable[[str], Any]] = {
    "exclude": lambda text: ipam_keys(exclude=[text]),
    "reserved": lambda text: ipam_keys(reserved=[text]),
    "ips": lambda text: ipam_keys({"runtimeConfig": {"ips": [text]}}),
    "IP of CNI_ARGS": lambda text: ipam.load({"name": "n", "ipam": {"subnet": "10.0.0.0/8"}}, {"IP": text}),
    "ips of a claim": claim_asks,
}
OF_AN_ADDRESS: dict[str, Callable[[str], Any]] = {
    "rangeStart": lambda text: ipam_keys(rangeStart=text),
    "rangeEnd": lambda text: ipam_keys(rangeEnd=text),
    "gateway": lambda text: ipam_keys(gateway=text),
    "exclude, first": lambda text: ipam_keys(exclude=[f"{text}-10.0.0.9"]),
    "exclude, last": lambda text: ipam_keys(exclude=[f"10.0.0.4-{text}"]),
    "ipam.routes[].gw": lambda text: ipam_keys(routes=[{"dst": "0.0.0.0/0", "gw": text}]),
    "ips[].gateway of a result": lambda text: Result.from_json({"ips": [{"address": "10.0.0.4/8", "gateway": text}]}),
    "routes[].gw of a result": lambda text: Result.from_json({"routes": [{"dst": "0.0.0.0/0", "gw": text}]}),
}


@pytest.mark.parametrize("text", NUMBERS)
@pytest.mark.parametrize("key", OF_A_NUMBER)
def test_a_number(key: str, text: str) -> None:
    OF_A_NUMBER[key]("24")
    with pytest.raises(REFUSED):
        OF_A_NUMBER[key](text)


@pytest.mark.parametrize("text", [*CIDRS, "10.0.0.0"])
@pytest.mark.parametrize("key", OF_A_CIDR)
def test_a_cidr(key: str, text: str) -> None:
    OF_A_CIDR[key]("10.0.0.0/24")
    with pytest.raises(REFUSED):
        OF_A_CIDR[key](text)


@pytest.mark.parametrize("text", [*ADDRESSES, *CIDRS])
@pytest.mark.parametrize("key", OF_A_HOST)
def test_a_host(key: str, text: str) -> None:
    OF_A_HOST[key]("10.0.0.4")
    OF_A_HOST[key]("10.0.0.4/32")
    with pytest.raises(REFUSED):
        OF_A_HOST[key](text)


@pytest.mark.parametrize("text", [*ADDRESSES, "10.0.0.4/32"])
@pytest.mark.parametrize("key", OF_AN_ADDRESS)
def test_an_address(key: str, text: str) -> None:
    OF_AN_ADDRESS[key]("10.0.0.4")
    with pytest.raises(REFUSED):
        OF_AN_ADDRESS[key](text)


@pytest.mark.parametrize("text", CIDRS)
def test_the_range_of_a_class_with_another_spelling(text: str) -> None:
    """ADD refuses it, with its key; Prepare only compares a claim's addresses with ranges that are right."""
    assert list(map(str, prepare._subnets({"subnet": "10.0.0.5/24"}))) == ["10.0.0.0/24"]
    assert prepare._subnets({"subnet": text}) == []
