"""CHECK requires each address with its prefix length, scope and unlimited lifetime."""

import pytest
from netns.tampering import caught, in_pod, passes
from support.topology import Host, Pod

V4, V6 = "10.56.0.2/24", "fd00:56::2/64"


@pytest.mark.parametrize(
    ("commands", "says"),
    [
        ((f"addr del {V4} dev hpn0",), f"lost address {V4}"),
        ((f"addr del {V6} dev hpn0",), f"lost address {V6}"),
        ((f"addr del {V4} dev hpn0", "addr add 10.56.0.2/16 dev hpn0"), f"lost address {V4}"),
        ((f"addr del {V4} dev hpn0", f"addr add {V4} scope host dev hpn0"), "with scope 254, expected 0 (global)"),
        ((f"addr del {V4} dev hpn0", f"addr add {V4} scope link dev hpn0"), "with scope 253, expected 0 (global)"),
        ((f"addr change {V4} dev hpn0 valid_lft 600 preferred_lft 600",), "s, expected unlimited"),
        ((f"addr change {V4} dev hpn0 preferred_lft 0",), f"{V4} deprecated"),
        ((f"addr change {V6} dev hpn0 preferred_lft 0",), f"{V6} deprecated"),
        ((f"addr change {V6} dev hpn0 valid_lft 600 preferred_lft 600",), "s, expected unlimited"),
        ((f"addr change {V6} dev hpn0 preferred_lft 600",), "s, expected unlimited"),
    ],
)
def test_caught(host: Host, pod: Pod, commands: tuple[str, ...], says: str) -> None:
    caught(host, pod, host.conf(dad="off"), in_pod(*commands), "hpn0", says)


def test_routers_give_an_address_made_of_the_mac_its_lifetime(host: Host, pod: Pod) -> None:
    ipam = {"type": "hpn-ipam", "ranges": [[{"subnet": "fd00:56::/64", "eui64": True}]]}
    conf = host.conf(mac="02:00:00:00:00:2a", ipam=ipam, dad="off")
    passes(host, pod, conf, in_pod("addr change fd00:56::ff:fe00:2a/64 dev hpn0 valid_lft 600 preferred_lft 0"))


def test_others_may_add_some(host: Host, pod: Pod) -> None:
    passes(host, pod, host.conf(), in_pod("addr add 10.56.0.77/24 dev hpn0 valid_lft 60 preferred_lft 0"))
