"""DEL is always possible, in any state of the pod, the configuration, the disk or the IPAM plugin."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.namespaces import needs_cookies, with_both
from support.topology import Host, Pod, ip, until

from base.state.pod import open_netns
from cni.kinds import child

DOCUMENT = '{"cniVersion":"1.1.0","ips":[{"address":"10.56.0.2/24"}]}'


def all_gone(host: Host, pod: Pod) -> None:
    assert "hpn0" not in pod.links()
    assert host.state_files() == set()
    assert {i["ifname"] for i in ip("link")} == {"lo", "rail0", "fabric"}


def test_twice(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod)
    host.ok("DEL", pod)
    host.ok("DEL", pod)
    all_gone(host, pod)


def test_the_pod_removes_it_at_the_same_time(host: Host, pod: Pod) -> None:
    """The link disappears after DEL has found it."""
    host.ok("ADD", pod)
    plan = json.loads(host.record(pod).read_text())["body"]["link"]
    with open_netns(host.request("DEL", pod, host.conf())) as opened:
        assert not child.remove(child.Plan(**plan), opened, "hpn0", lambda: pod.ip("link", "delete", "hpn0"))
    host.ok("DEL", pod)
    all_gone(host, pod)


def test_without_an_add(host: Host, pod: Pod) -> None:
    host.ok("DEL", pod)
    all_gone(host, pod)


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_in_every_version(host: Host, pod: Pod, version: str) -> None:
    host.ok("ADD", pod, host.conf(cniVersion=version))
    host.ok("DEL", pod, host.conf(cniVersion=version))
    all_gone(host, pod)


@pytest.mark.parametrize(
    "netns",
    [
        "",  # the runtime lost the path; the record has it
        ...,  # the same without the variable
        "/run/netns/no-such-pod",  # the runtime's path is gone; the record's path still exists
        "/etc/hostname",  # now a file of another kind
        "/proc/self/ns/mnt",  # a namespace, but not of networking
        "/",
    ],
)
def test_the_path_does_not_lead_to_the_pod(host: Host, pod: Pod, netns: Any) -> None:
    host.ok("ADD", pod)
    host.ok("DEL", pod, CNI_NETNS=netns)
    all_gone(host, pod)


@with_both
@pytest.mark.parametrize("netns", ["path", ""])
def test_the_pod_is_gone(host: Host, pod: Pod, netns: str) -> None:
    host.ok("ADD", pod)
    ip("netns", "delete", pod.name)
    host.ok("DEL", pod, CNI_NETNS=netns and pod.path)
    assert host.state_files() == set()


@needs_cookies
@pytest.mark.parametrize("netns", ["path", ""])
def test_another_namespace_under_the_same_path(host: Host, pod: Pod, netns: str) -> None:
    """DEL releases the addresses, and leaves hpn0 of another namespace alone, even an exact double."""
    host.replace(pod)
    before = host.picture(pod)[pod.name]
    host.ok("DEL", pod, CNI_NETNS=netns and pod.path)
    assert host.picture(pod)[pod.name] == before
    assert host.state_files() == set()


def test_the_path_leads_to_another_pod(host: Host, make_pod: Callable[[], Pod]) -> None:
    """DEL finds the interface through the record, and leaves the other pod's alone."""
    one, two = make_pod(), make_pod()
    host.ok("ADD", one)
    host.ok("ADD", two)
    before = host.picture(two)[two.name]
    host.ok("DEL", one, CNI_NETNS=two.path)
    assert one.links() == set()
    assert host.picture(two)[two.name] == before
    assert host.leases() == {"10.56.0.3", "fd00:56::3"}


BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("ranges that overlap", {"ipam": {"type": "hpn-ipam", "ranges": [[{"subnet": "10.0.0.0/8"}]] * 2}}),
    ("ranges moved elsewhere", {"ipam": {"type": "hpn-ipam", "subnet": "192.0.2.0/24"}}),
    ("no range at all", {"ipam": {"type": "hpn-ipam"}}),
    ("an unknown key", {"mtuu": 9000}),
    ("an unknown key of ipam", {"ipam": {"type": "hpn-ipam", "subnett": "10.56.0.0/24"}}),
    ("another IPAM plugin, which is not installed", {"ipam": {"type": "host-local"}}),
    ("no IPAM plugin any more", {"ipam": ...}),
    ("another kind", {"kind": "ipvlan"}),
    ("a kind that does not exist", {"kind": "teleport"}),
    ("a master that does not exist", {"master": "eth99"}),
    ("a prevResult that is none", {"prevResult": {"ips": "x"}}),
    ("a wrong mode", {"mode": "fast"}),
    ("an older version", {"cniVersion": "0.3.1"}),
    ("a version to come", {"cniVersion": "2.0.0"}),
    ("no version, which means 0.1.0", {"cniVersion": ...}),
]


@pytest.mark.parametrize("keys", [keys for _, keys in BROKEN], ids=[why for why, _ in BROKEN])
def test_the_configuration_is_another_now(host: Host, pod: Pod, keys: dict[str, Any]) -> None:
    host.ok("ADD", pod)
    host.ok("DEL", pod, host.conf(**keys))
    all_gone(host, pod)


def test_without_a_record_the_addresses_are_released(host: Host, pod: Pod) -> None:
    """DEL without a record releases the addresses.  The interface stays without proof of its origin, and ends with its
    pod."""
    host.ok("ADD", pod)
    host.record(pod).unlink()
    assert host.leases()
    host.ok("DEL", pod)
    assert host.leases() == set()
    assert host.state_files() == set()


@pytest.mark.parametrize(
    "content",
    [
        b"",  # a power cut on a file system that keeps names but not data
        b'{"schema": 1, "sha256": "',  # a truncated record
        b"\x00" * 512,
        b'{"schema": 2, "sha256": "", "body": {}}',  # a newer version's record
        b'{"schema": 1, "sha256": "0000", "body": {"network": "rail0"}}',  # an altered record
        b"[]",
    ],
)
def test_an_unreadable_record(host: Host, pod: Pod, content: bytes) -> None:
    """DEL reports an unreadable record once, because its contents are unknown; the next DEL succeeds."""
    host.ok("ADD", pod)
    host.record(pod).write_bytes(content)
    error = host.refused("DEL", pod)
    assert error["code"] == 108
    assert str(host.record(pod)) in json.dumps(error)
    (aside,) = (host.state / "quarantine" / "rail0").iterdir()
    assert aside.read_bytes() == content
    assert str(aside) in error["details"]
    assert host.leases() == set()
    host.ok("DEL", pod)
    assert host.state_files() == {str(aside.relative_to(host.state))}


def test_a_record_that_lacks_what_a_record_has(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod)
    host.rewrite(host.record(pod), identity={})
    assert host.refused("DEL", pod)["code"] == 108
    host.ok("DEL", pod)


def test_a_foreign_ipam_that_fails(host: Host, pod: Pod) -> None:
    """If the IPAM fails, DEL removes the link and keeps the record, and the next DEL calls the IPAM again."""
    refusal = '{"cniVersion":"1.1.0","code":133,"msg":"database is away"}'
    script = f"cat >/dev/null; case $CNI_COMMAND in ADD) echo '{DOCUMENT}';; DEL) echo '{refusal}'; exit 1;; esac"
    path = host.program("script", script)
    conf = host.conf(ipam={"type": "script"})
    host.ok("ADD", pod, conf, CNI_PATH=path)
    for _ in range(2):
        error = host.refused("DEL", pod, conf, CNI_PATH=path)
        assert (error["code"], "database is away" in error["msg"]) == (133, True)
        assert host.record(pod).exists()
        assert pod.links() == set()
    host.program("script", f"cat > {host.tmp_path}/seen")
    host.ok("DEL", pod, conf, CNI_PATH=path)
    all_gone(host, pod)
    assert json.loads((host.tmp_path / "seen").read_text())["ipam"] == {"type": "script"}


def test_a_foreign_ipam_that_is_not_installed_any_more(host: Host, pod: Pod) -> None:
    path = host.giving(ips=[{"address": "10.56.0.2/24"}])
    conf = host.conf(ipam={"type": "script"})
    host.ok("ADD", pod, conf, CNI_PATH=path)
    error = host.refused("DEL", pod, conf, CNI_PATH="/nonexistent")
    assert error["code"] == 106
    assert "script" in error["msg"]
    assert host.record(pod).exists()
    host.ok("DEL", pod, conf, CNI_PATH=path)
    all_gone(host, pod)


def test_the_ipam_sees_what_add_saw(host: Host, pod: Pod) -> None:
    """The IPAM's DEL gets the CNI_ARGS and the configuration of ADD, since a plugin may need them to find its
    reservation."""
    seen = host.tmp_path / "seen"
    path = host.program("script", f"(env; cat) > {seen}; [ $CNI_COMMAND != ADD ] || echo '{DOCUMENT}'")
    conf = host.conf(ipam={"type": "script", "pool": "a"}, strict=False)
    args = "IgnoreUnknown=1;K8S_POD_NAME=p;COLOUR=blue"
    host.ok("ADD", pod, conf, CNI_PATH=path, CNI_ARGS=args)
    host.ok("DEL", pod, host.conf(ipam={"type": "script", "pool": "b"}), CNI_PATH=path)
    lines = seen.read_text().splitlines()
    assert {"CNI_COMMAND=DEL", f"CNI_ARGS={args}", "CNI_IFNAME=hpn0", f"CNI_CONTAINERID={pod.name}"} <= set(lines)
    assert json.loads(lines[-1])["ipam"]["pool"] == "a"


def test_link_renamed_inside_the_pod(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod)
    pod.ip("link", "set", "hpn0", "down")
    pod.ip("link", "set", "hpn0", "name", "data0")
    host.ok("DEL", pod)
    assert pod.links() == set()


def test_link_with_another_mac(host: Host, pod: Pod) -> None:
    """DEL removes a link with a changed MAC, with or without a new name."""
    host.ok("ADD", pod)
    host.ok("ADD", pod, CNI_IFNAME="hpn1")
    pod.ip("link", "set", "hpn0", "address", "02:00:00:00:00:07")
    host.ok("DEL", pod)
    assert pod.links() == {"hpn1"}
    pod.ip("link", "set", "hpn1", "down")
    pod.ip("link", "set", "hpn1", "name", "data0", "address", "02:00:00:00:00:08")
    host.ok("DEL", pod, CNI_IFNAME="hpn1")
    assert pod.links() == set()


def test_link_renamed_and_the_name_taken(host: Host, pod: Pod) -> None:
    """DEL removes the link under its new name, and leaves another link under the old name alone."""
    host.ok("ADD", pod)
    pod.ip("link", "set", "hpn0", "down")
    pod.ip("link", "set", "hpn0", "name", "data0")
    stranger = pod.stranger()
    host.ok("DEL", pod)
    assert pod.links() == {"hpn0"}
    assert pod.link() == stranger


@pytest.mark.parametrize("index", [None, "same"])
def test_a_stranger_under_our_name(host: Host, pod: Pod, index: str | None) -> None:
    """If the link is gone, DEL leaves another link under its name alone, even one with its ifindex."""
    host.ok("ADD", pod)
    ours = pod.link()
    assert ours
    pod.ip("link", "delete", "hpn0")
    words = ["index", str(ours["ifindex"])] if index else []
    pod.ip("link", "add", "hpn0", *words, "type", "bridge")
    before = pod.link()
    host.ok("DEL", pod)
    assert pod.link() == before
    assert host.state_files() == set()


def test_only_the_named_interface_goes(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod)
    host.ok("ADD", pod, CNI_IFNAME="hpn1")
    host.ok("DEL", pod)
    assert pod.links() == {"hpn1"}
    assert host.leases() == {"10.56.0.3", "fd00:56::3"}


def test_an_address_is_given_again_only_after_the_link_is_gone(host: Host, make_pod: Callable[[], Pod]) -> None:
    """DEL removes the interface before it calls the IPAM's DEL."""
    pod = make_pod()
    seen = host.tmp_path / "seen"
    path = host.program(
        "script",
        f"cat >/dev/null; [ $CNI_COMMAND = ADD ] && echo '{DOCUMENT}' || ip -n {pod.name} -o link show > {seen}",
    )
    conf = host.conf(ipam={"type": "script"})
    host.ok("ADD", pod, conf, CNI_PATH=path)
    host.ok("DEL", pod, conf, CNI_PATH=path)
    assert "lo" in seen.read_text()
    assert "hpn0" not in seen.read_text()


def test_after_the_master_is_gone(host: Host, pod: Pod) -> None:
    """DEL succeeds after the kernel removed the link together with its master."""
    host.ok("ADD", pod)
    ip("link", "delete", "rail0")
    until(lambda: pod.links() == set())
    host.ok("DEL", pod)
    assert host.state_files() == set()
