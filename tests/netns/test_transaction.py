"""A kill of the plugin between any two steps leaves only state that later commands can repair.

The numbers of the steps rise until the command ends by itself, so every step can be drawn.
"""

import sys
from collections.abc import Callable
from typing import Any

import drawn
import pytest
from support.killing import killed_at
from support.recovery import by_del, by_gc
from support.topology import Host, Pod, ip

# One address per family, so that a lost one shows at once.
_POOL = {
    "type": "hpn-ipam",
    "ranges": [[{"subnet": "10.56.0.0/30"}], [{"subnet": "fd00:56::/126", "rangeEnd": "fd00:56::2"}]],
}

# Settings of the namespace, which outlive the interface.
_NAMESPACE = {"policyRouting": True, "sysctl": {"net.core.somaxconn": "77", "net.ipv4.conf.IFNAME.rp_filter": "2"}}


def of_namespace(pod: Pod) -> tuple[list[str], str]:
    shown = [*pod.ip("-4", "rule", "show"), *pod.ip("-6", "rule", "show")]
    return [r["src"] for r in shown if r["src"] != "all"], pod.sysctl("core/somaxconn")


def by_del_without_netns(host: Host, pod: Pod, conf: dict[str, Any]) -> None:
    pod.remade()
    host.ok("DEL", pod, conf, CNI_NETNS="")


def by_a_new_add(host: Host, pod: Pod, conf: dict[str, Any]) -> None:
    """Recover by ADD of the same key.  If DEL had not begun, the attachment is intact, and ADD must refuse a second
    one."""
    reply = host.call("ADD", pod, conf)
    if reply.exit_code:
        assert '"code":100' in reply.stdout, reply.stdout
        host.ok("DEL", pod, conf)
        host.ok("ADD", pod, conf)
    assert pod.addresses() == {"10.56.0.2/30", "fd00:56::2/126"}
    host.ok("DEL", pod, conf)


def by_its_launcher(host: Host, pod: Pod, conf: dict[str, Any]) -> None:
    """Recover as a launcher whose agent was killed: the same ADD, also over a complete attachment."""
    host.ok("ADD", pod, conf, HPN_AGENT_ENDED="1")
    assert pod.addresses() == {"10.56.0.2/30", "fd00:56::2/126"}
    host.ok("DEL", pod, conf)


def by_an_add_elsewhere(host: Host, pod: Pod, conf: dict[str, Any]) -> None:
    """Recover by ADD of the same key in another namespace under the path, as with cnitool."""
    pod.remade()
    host.ok("ADD", pod, conf)
    assert pod.addresses() == {"10.56.0.2/30", "fd00:56::2/126"}
    host.ok("DEL", pod, conf)


def by_del_beside_a_stranger(host: Host, pod: Pod, conf: dict[str, Any]) -> None:
    """Recover by DEL while another interface takes the free name."""
    if not pod.link():
        pod.ip("link", "add", "hpn0", "type", "veth", "peer", "name", "hpn0peer")
        host.ok("DEL", pod, conf)
        assert pod.links() == {"hpn0", "hpn0peer"}
        pod.ip("link", "delete", "hpn0")
    else:
        host.ok("DEL", pod, conf)


RECOVERIES = [
    by_del, by_del_without_netns, by_a_new_add, by_its_launcher, by_an_add_elsewhere, by_gc, by_del_beside_a_stranger,
]  # fmt: skip


@pytest.mark.parametrize("recover", RECOVERIES)
@pytest.mark.parametrize("command", ["ADD", "DEL", "GC"])
def test_killed_at_every_step(
    host: Host, pod: Pod, command: str, recover: Callable[[Host, Pod, dict[str, Any]], None]
) -> None:
    conf = host.conf(ipam=_POOL, **_NAMESPACE)
    untouched = of_namespace(pod)
    assert untouched[1] != "77"
    strangers = {i["ifname"] for i in ip("link")}
    for step in drawn.steps():
        if command != "ADD":
            host.ok("ADD", pod, conf)
        with_list = {"cni.dev/valid-attachments": []} if command == "GC" else {}
        killed = killed_at(step, host.request(command, pod, conf | with_list))
        recover(host, pod, conf)
        assert pod.links() == set(), f"link left after step {step}"
        assert of_namespace(pod) == untouched, f"left in the namespace after step {step}"
        assert host.state_files() == set(), f"files left after step {step}"
        if not killed:
            break
    # Both addresses of the pool are free again, and the host's interfaces are unchanged.
    host.ok("ADD", pod, conf)
    host.ok("DEL", pod, conf)
    assert {i["ifname"] for i in ip("link")} == strangers
    # Fewer steps mean that the test no longer notices them.
    assert step > 10


def test_killed_before_the_second_record(host: Host, pod: Pod) -> None:
    """DEL removes the interface of an ADD that its IPAM plugin killed."""
    path = host.program("script", "[ $CNI_COMMAND != ADD ] || kill -KILL $PPID")
    conf = host.conf(ipam={"type": "script"})
    assert killed_at(sys.maxsize, host.request("ADD", pod, conf, CNI_PATH=path))
    assert pod.links() == {"hpn0"}
    host.ok("DEL", pod, conf, CNI_PATH=path)
    assert pod.links() == set()
    assert host.state_files() == set()


def test_killed_before_the_last_record(host: Host, pod: Pod) -> None:
    """ADD replaces an interface whose ADD made it and did not reply."""
    host.ok("ADD", pod)
    host.rewrite(host.record(pod), complete=False, result={})
    before = pod.link()
    host.ok("ADD", pod)
    assert pod.link() not in (None, before)
    host.ok("DEL", pod)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["the same pod", "the path leads to another pod"])
def test_no_add_over_what_cannot_be_undone(host: Host, pod: Pod, elsewhere: bool) -> None:
    """ADD fails while an earlier ADD's address may still be in use, and that ADD's record stays."""
    answer = '{"cniVersion":"1.1.0","ips":[{"address":"10.56.0.2/24"}]}'
    refusal = '{"cniVersion":"1.1.0","code":133,"msg":"database is away"}'
    script = f"cat >/dev/null; case $CNI_COMMAND in ADD) echo '{answer}';; DEL) echo '{refusal}'; exit 1;; esac"
    path, conf = host.program("script", script), host.conf(ipam={"type": "script"})
    host.ok("ADD", pod, conf, CNI_PATH=path)
    if elsewhere:
        pod.remade()
    else:
        pod.ip("link", "delete", "hpn0")
    before = host.identity(pod)
    error = host.refused("ADD", pod, conf, CNI_PATH=path)
    assert (error["code"], "database is away" in error["msg"]) == (133, True)
    assert pod.links() == set()
    assert host.identity(pod) == before
    path = host.giving(ips=[{"address": "10.56.0.3/24"}])
    host.ok("ADD", pod, conf, CNI_PATH=path)
    assert pod.addresses() == {"10.56.0.3/24"}
    host.ok("DEL", pod, conf, CNI_PATH=path)
    assert host.state_files() == set()


def test_the_double_of_ours_in_another_namespace(host: Host, pod: Pod) -> None:
    """ADD succeeds in another namespace under the same path, despite an interface there with the same ifindex and
    MAC."""
    host.ok("ADD", pod)
    ours = pod.link()
    assert ours
    pod.remade()
    host.double(pod, ours)
    pod.ip("link", "set", "hpn0", "name", "data0")
    host.ok("ADD", pod)
    assert pod.links() == {"hpn0", "data0"}
    host.ok("DEL", pod)
    assert pod.links() == {"data0"}


def test_a_record_of_an_older_boot_is_in_nobodys_way(host: Host, pod: Pod) -> None:
    """ADD ignores a record of an older boot: its numbers of namespaces and interfaces now belong to others."""
    host.ok("ADD", pod)
    host.rewrite(host.record(pod), boot="00000000-0000-0000-0000-000000000000")
    pod.ip("link", "set", "hpn0", "down")
    pod.ip("link", "set", "hpn0", "name", "data0")
    host.ok("ADD", pod)
    assert pod.links() == {"hpn0", "data0"}
    host.ok("DEL", pod)
    assert pod.links() == {"data0"}
