"""Links of pods over the host's interfaces, from any origin."""

import os
import subprocess
from collections.abc import Callable

import pytest
from support.topology import Host, Pod, ip

from base.kernel import rtnl
from base.protocol.spec import Key
from base.state import journal
from base.state.pod import Identity
from base.state.record import Record
from node.provision import scan


def index(name: str) -> int:
    (link,) = ip("link", "show", "dev", name)
    return int(link["ifindex"])


def found() -> dict[str, str]:
    with rtnl.open_in() as host:
        above = scan.owners_over(host)
    return {link["ifname"]: above[link["ifindex"]] for link in ip("link") if link["ifindex"] in above}


def macvlan(netns: str, name: str = "net1", master: str = "rail0") -> None:
    ip("link", "add", "link", master, "name", name, "netns", netns, "type", "macvlan")


def test_none(host: Host, make_pod: Callable[[], Pod]) -> None:
    """The host's own links do not count as a pod's, nor do links over pods' own interfaces, whatever their index."""
    pod, other = make_pod(), make_pod()
    ip("link", "add", "link", "rail0", "name", "own0", "type", "macvlan")
    ip("link", "add", "veth0", "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    pod.ip("link", "add", "lower", "index", f"{index('rail0')}", "type", "bridge")
    pod.ip("link", "add", "link", "lower", "name", "net1", "type", "macvlan")
    pod.ip("link", "add", "link", "lower", "name", "net1", "netns", other.name, "type", "macvlan")
    assert "rail0" not in found()


def test_of_a_named_namespace(host: Host, pod: Pod) -> None:
    macvlan(pod.name)
    assert found() == {"rail0": f"a macvlan in the namespace {pod.path}"}


def test_several(host: Host, pod: Pod) -> None:
    for number in range(6):
        macvlan(pod.name, f"net{number}")
    said = f"a macvlan in the namespace {pod.path}"
    assert found() == {"rail0": f"{'; '.join([said] * 4)} and 2 more"}


def test_of_a_process(host: Host) -> None:
    with subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin
            assert process.stdout
            process.stdin.write(b"x\n")
            process.stdin.flush()
            process.stdout.readline()  # the process is in its namespace by now
            macvlan(f"{process.pid}")
            assert found() == {"rail0": f"a macvlan in the namespace /proc/{process.pid}/ns/net"}
        finally:
            process.kill()


@pytest.mark.parametrize("has_number", [True, False])
def test_of_a_namespace_that_no_process_or_mount_has(host: Host, pod: Pod, has_number: bool) -> None:
    """A namespace without a process or mount, as every pod's appears to a container without the node's processes.  A
    veth into the namespace gives it a number; without one it stays invisible."""
    macvlan(pod.name)
    if has_number:
        ip("link", "add", "veth0", "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    held = os.open(pod.path, os.O_RDONLY)
    try:
        pod.gone()
        numbers = [one["nsid"] for one in ip("netns", "list-id")]
        said = f"a macvlan in the namespace {numbers[0]} of: ip netns list-id" if has_number else None
        assert found().get("rail0") == said
    finally:
        os.close(held)


def test_by_the_journal(host: Host) -> None:
    """The journal shows the link even if the pod's namespace is invisible."""
    link = {"parent": index("rail0")}
    record = Record("rails", Key("c1", "hpn0"), "/n", Identity(1, 1), kind="macvlan", link=link, config={}, pod="d/a")
    with journal.lock(host.state, record.network, record.key) as entry:
        entry.save(record)
    assert found() == {"rail0": record.title}
    host.rewrite(entry.path, boot="another")
    assert found() == {}
    host.rewrite(entry.path, boot=record.boot, link=link | {"in_container": True})
    assert found() == {}
