"""CHECK right after ADD, after permitted changes by later plugins of a chain, and after forbidden changes.

The files test_check_*.py cover the interface, its addresses, and routes and rules.
"""

from typing import Any

import pytest
from netns.tampering import ROUTES, Change, caught, passes, routed
from support.namespaces import with_both
from support.topology import Host, Pod, ip, until

from ctl.main import main as hpn

OTHER_MAC = "02:00:00:00:00:aa"


def nothing(_host: Host, _pod: Pod, _result: dict[str, Any]) -> None:
    pass


def another_address(_host: Host, pod: Pod, _result: dict[str, Any]) -> None:
    pod.ip("addr", "add", "192.0.2.7/24", "dev", "hpn0")


def another_address_in_the_result(_host: Host, pod: Pod, result: dict[str, Any]) -> None:
    pod.ip("addr", "add", "192.0.2.7/24", "dev", "hpn0")
    family = {"version": "4"} if result["cniVersion"] < "1.0.0" else {}
    result["ips"].append(family | {"interface": 0, "address": "192.0.2.7/24"})


def another_route(_host: Host, pod: Pod, _result: dict[str, Any]) -> None:
    pod.ip("route", "add", "192.0.2.0/24", "dev", "hpn0")


def another_mac_in_the_result(_host: Host, pod: Pod, result: dict[str, Any]) -> None:
    pod.ip("link", "set", "hpn0", "address", OTHER_MAC)
    result["interfaces"][0]["mac"] = OTHER_MAC.upper()


def a_route_taken_out_of_both(_host: Host, pod: Pod, result: dict[str, Any]) -> None:
    pod.ip("route", "delete", "10.60.0.0/16", "dev", "hpn0")
    result["routes"] = [r for r in result["routes"] if r["dst"] != "10.60.0.0/16"]


def another_interface_first(_host: Host, _pod: Pod, result: dict[str, Any]) -> None:
    result["interfaces"].insert(0, {"name": "veth9", "mac": OTHER_MAC})
    for item in result["ips"]:
        item["interface"] += 1


def same_name_on_the_host(_host: Host, _pod: Pod, result: dict[str, Any]) -> None:
    result["interfaces"].append({"name": "hpn0", "mac": OTHER_MAC})


def another_pods_interface(host: Host, pod: Pod, _result: dict[str, Any]) -> None:
    host.ok("ADD", pod, CNI_IFNAME="hpn1")


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
@pytest.mark.parametrize(
    "change",
    [
        nothing,  # right after ADD
        another_address,  # later plugins may add addresses, with or without an entry in the result
        another_address_in_the_result,
        another_route,
        another_mac_in_the_result,  # tuning writes it so, in capitals
        a_route_taken_out_of_both,  # CHECK ignores an address that prevResult lacks
        another_interface_first,  # the interface's index is not always 0
        same_name_on_the_host,  # a name belongs to a sandbox
        another_pods_interface,
    ],
)
def test_succeeds(host: Host, pod: Pod, version: str, change: Change) -> None:
    passes(host, pod, routed(host, cniVersion=version), change)


def test_a_tentative_address_is_fine(host: Host, pod: Pod) -> None:
    """CHECK passes with a tentative address, which remains without carrier; an error would report the pod as lost."""
    ip("link", "set", "fabric", "down")
    result = host.ok("ADD", pod, host.conf(dad="wait"))
    (link,) = pod.ip("addr", "show", "dev", "hpn0")
    assert [a.get("tentative") for a in link["addr_info"] if a["local"] == "fd00:56::2"] == [True]
    assert host.checked(pod, host.conf(dad="wait"), result).exit_code == 0


def link_deleted(_host: Host, pod: Pod, _result: dict[str, Any]) -> None:
    pod.ip("link", "delete", "hpn0")


def link_renamed(_host: Host, pod: Pod, _result: dict[str, Any]) -> None:
    pod.ip("link", "set", "hpn0", "down")
    pod.ip("link", "set", "hpn0", "name", "gone0")
    pod.ip("link", "set", "gone0", "up")


def link_replaced(_host: Host, pod: Pod, _result: dict[str, Any]) -> None:
    pod.ip("link", "delete", "hpn0")
    pod.stranger()


def link_replaced_by_its_double(_host: Host, pod: Pod, result: dict[str, Any]) -> None:
    """Replace the link by another of the same kind, mode, MAC and addresses."""
    pod.ip("link", "delete", "hpn0")
    _double(pod, result)


def _double(pod: Pod, result: dict[str, Any]) -> None:
    mac = result["interfaces"][0]["mac"]
    ip("link", "add", "link", "rail0", "name", "made0", "address", mac, "type", "macvlan", "mode", "bridge")
    ip("link", "set", "made0", "netns", pod.name, "name", "hpn0")
    # The kernel refuses a MAC that the master still uses, and frees a removed namespace's links later.
    until(lambda: pod.run("ip", "link", "set", "hpn0", "up").returncode == 0)
    for item in result["ips"]:
        pod.ip("addr", "add", item["address"], "dev", "hpn0")
    for route in ROUTES:
        pod.ip("route", "add", route["dst"], "dev", "hpn0")


def mac_changed(_host: Host, pod: Pod, _result: dict[str, Any]) -> None:
    pod.ip("link", "set", "hpn0", "address", OTHER_MAC)


def master_deleted(_host: Host, _pod: Pod, _result: dict[str, Any]) -> None:
    ip("link", "delete", "rail0")


def master_renamed(_host: Host, _pod: Pod, _result: dict[str, Any]) -> None:
    ip("link", "set", "rail0", "down")
    ip("link", "set", "rail0", "name", "rail9")
    ip("link", "set", "rail9", "up")


def lease_removed(host: Host, pod: Pod, _result: dict[str, Any]) -> None:
    words = ["release", "rail0", f"{pod.name}:hpn0", "--force", "--data-dir", str(host.state / "ipam")]
    assert hpn(["hpn", "ipam", *words]) == 0


def record_removed(host: Host, pod: Pod, _result: dict[str, Any]) -> None:
    host.record(pod).unlink()


def netns_replaced(_host: Host, pod: Pod, _result: dict[str, Any]) -> None:
    pod.remade()


def netns_replaced_by_its_double(_host: Host, pod: Pod, result: dict[str, Any]) -> None:
    """Put a new pod under the same path, with a similar interface of other origin."""
    pod.remade()
    _double(pod, result)


def other_name_in_the_result(_host: Host, _pod: Pod, result: dict[str, Any]) -> None:
    result["interfaces"][0]["name"] = "eth0"


def other_sandbox_in_the_result(_host: Host, _pod: Pod, result: dict[str, Any]) -> None:
    result["interfaces"][0]["sandbox"] = "/run/netns/another"


def no_interfaces_in_the_result(_host: Host, _pod: Pod, result: dict[str, Any]) -> None:
    del result["interfaces"]
    result["ips"] = [{k: v for k, v in item.items() if k != "interface"} for item in result["ips"]]


FAILURES: list[tuple[Change, tuple[str, ...]]] = [
    (link_deleted, ("hpn0", "macvlan")),
    (link_renamed, ("hpn0",)),
    (link_replaced, ("hpn0", "macvlan")),
    (link_replaced_by_its_double, ("hpn0",)),
    (master_deleted, ("hpn0",)),
    (master_renamed, ("master", "rail0")),
    (lease_removed, ("hpn-ipam", "holds no address")),
    (record_removed, ("not attached",)),
    (netns_replaced, ("another namespace",)),
    (netns_replaced_by_its_double, ("another namespace",)),
    (other_name_in_the_result, ("prevResult", "hpn0")),
    (other_sandbox_in_the_result, ("prevResult", "sandbox")),
    (no_interfaces_in_the_result, ("prevResult", "hpn0")),
]


@with_both
@pytest.mark.parametrize(("change", "says"), FAILURES, ids=[change.__name__ for change, _ in FAILURES])
def test_fails(host: Host, pod: Pod, change: Change, says: tuple[str, ...]) -> None:
    caught(host, pod, routed(host), change, *says)


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
def test_fails_in_every_version(host: Host, pod: Pod, version: str) -> None:
    """CHECK refuses an unannounced change of the MAC, and its error carries the requested version."""
    conf = host.conf(cniVersion=version)
    result = host.ok("ADD", pod, conf)
    mac_changed(host, pod, result)
    error = host.refused("CHECK", pod, conf | {"prevResult": result})
    assert (error["cniVersion"], error["code"]) == (version, 107)


def test_a_record_of_an_older_boot(host: Host, pod: Pod) -> None:
    """CHECK refuses a record of an older boot: each boot assigns the record's numbers anew, possibly to others."""
    result = host.ok("ADD", pod)
    host.rewrite(host.record(pod), boot="00000000-0000-0000-0000-000000000000")
    error = host.refused("CHECK", pod, host.conf(prevResult=result))
    assert (error["code"], "another namespace" in error["msg"]) == (107, True)


def test_half_an_attachment(host: Host, pod: Pod) -> None:
    """CHECK refuses the incomplete attachment of a killed ADD in a running pod."""
    result = host.ok("ADD", pod)
    host.rewrite(host.record(pod), complete=False)
    error = host.refused("CHECK", pod, host.conf(prevResult=result))
    assert error["code"] == 107
    assert "completely" in error["msg"]


def test_a_foreign_ipams_check(host: Host, pod: Pod) -> None:
    """CHECK returns the IPAM plugin's error with its code."""
    document = '{"cniVersion":"1.1.0","ips":[{"address":"10.56.0.2/24"}]}'
    refusal = '{"cniVersion":"1.1.0","code":142,"msg":"never heard of it"}'
    path = host.program(
        "script",
        f"cat >/dev/null; case $CNI_COMMAND in ADD) echo '{document}';; CHECK) echo '{refusal}'; exit 1;; esac",
    )
    conf = host.conf(ipam={"type": "script"})
    result = host.ok("ADD", pod, conf, CNI_PATH=path)
    error = host.refused("CHECK", pod, conf | {"prevResult": result}, CNI_PATH=path)
    assert error["code"] == 142
    assert "never heard of it" in error["msg"]
