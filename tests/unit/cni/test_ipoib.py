"""Kind ipoib: its keys, and their bytes for the kernel."""

import struct
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from base.kernel import links
from base.kernel.links import ARPHRD_INFINIBAND, IFF_UP, Link
from base.protocol.errors import CniError, LinkUnavailable
from base.protocol.spelling import normalize
from cni import config
from cni.kinds import ipoib


def conf(**keys: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "ib0", "type": "hpn", "kind": "ipoib", "master": "ib0", **keys}


def test_defaults() -> None:
    loaded = config.load(conf(), "")
    attach: Any = loaded.attach
    assert (attach.master, attach.pkey, attach.mode, attach.umcast, attach.mtu) == ("ib0", None, "datagram", False, 0)
    assert loaded.remarks == ()


@pytest.mark.parametrize(
    ("given", "pkey"),
    [
        ("0x8001", 0x8001),
        ("0x0001", 0x8001),  # Linux joins as a full member whatever is asked for
        ("0x1", 0x8001),
        ("0X7fFF", 0xFFFF),
        ("1", 0x8001),
        ("08", 0x8008),
        (1, 0x8001),
        (0x8001, 0x8001),
        (65535, 0xFFFF),
        (None, None),
    ],
)
def test_pkey(given: Any, pkey: int | None) -> None:
    loaded = config.load(normalize(conf(pkey=given)), "")
    assert loaded.attach.model_dump()["pkey"] == pkey
    assert loaded.remarks == ()  # as for sriov, to which it has nothing to say


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"pkey": 0}, ("pkey 0:", "no partition", "remove it")),
        ({"pkey": "0x8000"}, ('pkey "0x8000":', "no partition")),
        ({"pkey": "0x10000"}, ('pkey "0x10000":', '"0x8001"')),
        ({"pkey": 65536}, ("pkey 65536:", "below 65536")),
        ({"pkey": -1}, ("pkey -1:",)),
        ({"pkey": True}, ("pkey true:",)),
        ({"pkey": 1.0}, ("pkey 1.0:",)),
        ({"pkey": "8001h"}, ('pkey "8001h":',)),
        ({"pkey": ""}, ('pkey "":',)),
        ({"pkey": " 0x1"}, ('pkey " 0x1":',)),
        ({"pkey": [1]}, ("pkey [1]:",)),
        ({"mode": "connected"}, ('mode "connected":', "lock", "set datagram")),
        ({"mode": "bridge"}, ('mode "bridge":', "'datagram'")),
        ({"umcast": 1}, ("umcast 1:",)),
        ({"master": ""}, ("master is not set", "ib0")),
        ({"master": "a/b"}, ('master "a/b":',)),
        ({"linkInContainer": True}, ("linkInContainer true:",)),
        ({"mac": "02:00:00:00:00:01"}, ('mac "02:00:00:00:00:01"',)),
        ({"runtimeConfig": {"mac": "02:00:00:00:00:01"}}, ("mac '02:00:00:00:00:01'", "GID", "remove mac")),
        ({"runtimeConfig": {"infinibandGUID": "00:11:22:33:44:55:66:77"}}, ("infinibandGUID", "master's", "sriov")),
        ({"rdma": {"mode": "rxe"}}, ("rdma.mode 'rxe'", "no RoCE", "auto")),
        ({"rdma": {"mode": "exclusive"}}, ("rdma.mode 'exclusive'", "VF")),
    ],
    ids=repr,
)
def test_refused(keys: dict[str, Any], says: tuple[str, ...]) -> None:
    with pytest.raises(CniError) as e:
        config.load(normalize(conf(**keys)), "")
    assert e.value.code in (2, 7)
    assert [word for word in says if word not in e.value.msg] == []


@pytest.mark.parametrize("umcast", [False, True])
def test_the_message(umcast: bool) -> None:
    data = ipoib.info_data(0x8001, umcast=umcast)
    body = links.new_link(kind="ipoib", data=data, parent=3, name="hpn0")
    message = ifinfmsg(struct.pack("=IHHII", 16 + len(body), 0, 0, 1, 0) + body)
    message.decode()
    info = message.get_attr("IFLA_LINKINFO")
    expected = [("IFLA_IPOIB_PKEY", 0x8001), ("IFLA_IPOIB_MODE", "datagram"), ("IFLA_IPOIB_UMCAST", int(umcast))]
    found = [(name, value) for name, value in info.get_attr("IFLA_INFO_DATA")["attrs"]]
    assert (info.get_attr("IFLA_INFO_KIND"), found) == ("ipoib", expected)


@pytest.mark.parametrize(
    ("master", "says"),
    [
        # The kernel would treat it as an IPoIB interface.
        (Link(5, "bond0", IFF_UP, "", 2044, kind="bond", hardware=ARPHRD_INFINIBAND), "'bond0' is bond"),
        (Link(6, "ib0.8001", IFF_UP, "", 2044, kind="ipoib", parent=5, hardware=ARPHRD_INFINIBAND), "itself a child"),
        (Link(7, "eth0", IFF_UP, "02:00:00:00:00:01", 1500), "'eth0' is not InfiniBand"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_master_that_has_no_children(master: Link, says: str) -> None:
    with pytest.raises(LinkUnavailable, match=says):
        ipoib._refuse_unless_parent(master)


def test_described() -> None:
    plan = {"master": "ib0", "data": ipoib.info_data(0x8001, umcast=False).hex()}
    assert ipoib.describe(plan, []) == ("over ib0, pkey 0x8001", {"master": "ib0", "pkey": "0x8001"})
