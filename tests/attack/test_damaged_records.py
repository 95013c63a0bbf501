"""Whatever damages an attachment's record, its address stays reserved while its interface exists, and DEL succeeds.

The witness is ``ip``, with the addresses of every interface.
"""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import drawn
import pytest
from support.topology import Host, Pod, ip

MakePod = Callable[[], Pod]


def flip_bits(path: Path, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(dice.choice((1, 1, 3))):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, dice: random.Random) -> None:
    os.truncate(path, dice.randrange(path.stat().st_size))


def zero(path: Path, dice: random.Random) -> None:
    data = path.read_bytes()
    start = dice.randrange(len(data))
    path.write_bytes(data[:start] + bytes(min(4096, len(data) - start)))


def put_garbage(path: Path, dice: random.Random) -> None:
    path.write_bytes(dice.randbytes(dice.choice((1, 100, 5000))))


def put_directory(path: Path, _dice: random.Random) -> None:
    path.unlink()
    (path / "in it").mkdir(parents=True)


def put_fifo(path: Path, _dice: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def put_link(path: Path, dice: random.Random) -> None:
    path.unlink()
    path.symlink_to(dice.choice(("/etc/shadow", "/dev/zero", str(path), "/nonexistent")))


def put_anothers(path: Path, dice: random.Random) -> None:
    others = [other for other in path.parent.iterdir() if other != path and other.is_file()]
    if others:
        shutil.copy(dice.choice(others), path)


ALL = (flip_bits, flip_bits, truncate, zero, put_garbage, put_directory, put_fifo, put_link, put_anothers)


@pytest.fixture
def pods(make_pod: MakePod) -> list[Pod]:
    return [make_pod() for _ in range(3)]


def on_links(pods: list[Pod]) -> list[str]:
    """The IPv4 addresses of all interfaces of the pods, with duplicates."""
    return [a for pod in pods for link in pod.links() for a in pod.addresses(link) if ":" not in a]


def delete(host: Host, pod: Pod) -> None:
    """Repeat DEL until it succeeds, as a runtime does; it reports the damaged record once."""
    codes = list[int]()
    while (reply := host.call("DEL", pod)).exit_code:
        codes.append(108 if '"code":108' in reply.stdout else 0)
        assert codes.count(0) == 0, reply
        assert len(codes) < 2, reply
    assert pod.links() == set()


def test_damaged_records(host: Host, pods: list[Pod]) -> None:
    """After damage to one of three records, no address is on two interfaces while pods come and go."""
    dice = random.Random(drawn.seed())
    for round_ in range(drawn.count(1_000, "damages")):
        for pod in pods:
            host.ok("ADD", pod, host.conf(ipam={"type": "hpn-ipam", "subnet": "10.56.0.0/24"}))
        victim, damage = dice.choice(pods), dice.choice(ALL)
        damage(host.record(victim), dice)
        for _ in range(dice.randrange(3)):
            # Delete and attach another pod, so that it gets a free address.
            other = dice.choice([pod for pod in pods if pod != victim])
            host.ok("DEL", other)
            host.ok("ADD", other, host.conf(ipam={"type": "hpn-ipam", "subnet": "10.56.0.0/24"}))
        if dice.random() < 0.3:
            listed = [{"containerID": pod.name, "ifname": "hpn0"} for pod in pods]
            host.call("GC", None, host.conf(**{"cni.dev/valid-attachments": listed}), CNI_IFNAME="")
        here = on_links(pods)
        assert len(here) == len(set(here)), f"round {round_}, {damage.__name__}: an address is there twice: {here}"
        for pod in pods:
            delete(host, pod)
        assert on_links(pods) == []
        for folder in ("quarantine", "attachments"):
            shutil.rmtree(host.state / folder, ignore_errors=True)


def test_an_address_of_an_interface_that_was_not_found(host: Host, pods: list[Pod]) -> None:
    """If the record is unreadable and the pod renamed its interface, no pod gets the possibly used address."""
    first, second, third = pods
    conf = host.conf(ipam={"type": "hpn-ipam", "subnet": "10.56.0.0/29"})
    host.ok("ADD", first, conf)
    first.ip("link", "set", "hpn0", "down")
    first.ip("link", "set", "hpn0", "name", "data0")
    host.record(first).write_bytes(b"")
    assert host.refused("DEL", first, conf)["code"] == 108
    host.ok("DEL", first, conf)
    for pod in (second, third):
        for _ in range(4):
            host.ok("ADD", pod, conf)
            assert not pod.addresses() & first.addresses("data0")
            host.ok("DEL", pod, conf)


def test_a_stranger_under_the_name_stays(host: Host, pods: list[Pod]) -> None:
    pod = pods[0]
    host.ok("ADD", pod)
    pod.ip("link", "delete", "hpn0")
    stranger = pod.stranger()
    host.record(pod).write_bytes(b"")
    assert host.refused("DEL", pod)["code"] == 108
    host.ok("DEL", pod)
    assert pod.link() == stranger


def test_gc_finds_the_namespace_in_what_is_left(host: Host, pods: list[Pod]) -> None:
    """GC receives no namespace; it finds the pod by the path and identity that the damaged record still shows."""
    pod = pods[0]
    host.ok("ADD", pod)
    record = host.record(pod)
    record.write_bytes(record.read_bytes()[:-40])
    gc = host.conf(**{"cni.dev/valid-attachments": []})
    assert host.refused("GC", None, gc)["code"] == 108
    host.ok("GC", None, gc, CNI_IFNAME="")
    assert (pod.links(), host.leases()) == (set(), set())


def test_add_over_an_unreadable_record(host: Host, pods: list[Pod]) -> None:
    """ADD reports the damage once; the next one removes the old interface and attaches the pod."""
    pod = pods[0]
    host.ok("ADD", pod)
    host.record(pod).write_bytes(b"")
    assert host.refused("ADD", pod)["code"] == 108
    host.ok("ADD", pod)
    assert pod.links() == {"hpn0"}
    host.ok("DEL", pod)
    assert (pod.links(), host.leases()) == (set(), set())


def test_an_altname_is_a_strangers(host: Host, pods: list[Pod]) -> None:
    """DEL leaves another plugin's macvlan that carries the attachment's name as altname."""
    pod = pods[0]
    host.ok("ADD", pod)
    pod.ip("link", "delete", "hpn0")
    ip("link", "add", "link", "rail0", "name", "net1", "netns", pod.name, "type", "macvlan", "mode", "bridge")
    pod.ip("link", "property", "add", "dev", "net1", "altname", "hpn0")
    host.record(pod).write_bytes(b"")
    assert host.refused("DEL", pod)["code"] == 108
    host.ok("DEL", pod)
    assert pod.links() == {"net1"}


def test_the_hosts_own_namespace_is_no_pods(host: Host, pods: list[Pod]) -> None:
    """DEL removes nothing from the host's namespace if a runtime names it by mistake."""
    pod = pods[0]
    host.ok("ADD", pod)
    ip("link", "add", "link", "rail0", "name", "hpn0", "type", "macvlan", "mode", "bridge")
    host.record(pod).write_bytes(b"")
    assert host.refused("DEL", pod, CNI_NETNS="/proc/self/ns/net")["code"] == 108
    host.ok("DEL", pod, CNI_NETNS="/proc/self/ns/net")
    assert "hpn0" in {link["ifname"] for link in ip("link")}
