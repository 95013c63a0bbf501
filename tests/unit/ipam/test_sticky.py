"""Addresses that are kept for a name after DEL: ipam.sticky."""

import pytest
from support.ipam_calls import FEW, ONE, killed_at, of


def test_sticky(network, clock):
    net = network(**FEW, sticky=3600)
    first = net.add("c1", *of("db-0"))
    net.call("DEL", "c1")
    others = net.add("x", *of("x")) + net.add("y", *of("y"))
    assert net.call("ADD", "z", *of("z"))["code"] == 103
    clock[0] += 3599
    assert net.add("c2", *of("db-0")) == first
    assert net.kept() == set()
    assert len({*first, *others}) == 3
    net.call("DEL", "c2")
    clock[0] += 3600
    # Expired, but not yet reused.
    assert net.add("c3", *of("db-0")) == first
    net.call("DEL", "c3")
    clock[0] += 3600
    assert net.add("z", *of("z")) == first
    assert net.agrees()


def test_sticky_after_a_reboot_without_a_delete(network, clock):
    net = network(**FEW, sticky=3600)
    net.add("other", *of("other"))
    first = net.add("c1", *of("db-0"))
    net.another_boot("c1")
    assert net.add("c2", *of("db-0")) == first
    assert net.call("DEL", "c1") == {}
    assert net.leases() == {"other:net1": ("10.0.0.2",), "c2:net1": first}
    assert net.agrees()


def test_the_living_keep_theirs(network, clock):
    """Two attachments of one name at once: the second gets another address, and the one released last is kept."""
    net = network(**FEW, sticky=3600, releaseCooldown=60)
    first, second = net.add("c1", *of("db-0")), net.add("c2", *of("db-0"))
    assert first != second
    net.call("DEL", "c1")
    net.call("DEL", "c2")
    assert net.kept() == {("", f"{first[0]}/24"), ("ns/db-0:net1", f"{second[0]}/24")}
    assert net.add("c3", *of("db-0")) == second
    assert net.agrees()


def test_interfaces_of_a_pod_are_two(network, clock):
    net = network(**FEW, sticky=3600)
    held = {ifname: net.add("c", *of("db-0", ifname)) for ifname in ("net1", "net2")}
    for ifname in held:
        net.call("DEL", "c", ifname)
    assert {ifname: net.add("d", *of("db-0", ifname)) for ifname in ("net2", "net1")} == held


@pytest.mark.parametrize(
    "how", [{"more": {"args": {"cni": {"sticky": "disk 7"}}}}, {"args": "IgnoreUnknown=1;K8S_POD_NAME=p;STICKY=disk 7"}]
)
def test_sticky_by_argument(network, clock, how):
    net = network(**FEW, sticky=3600)
    net.more = how.get("more", {})
    first = net.add("c1", "net1", how.get("args", ""))
    net.more = {}
    net.call("DEL", "c1")
    assert net.kept() == {("disk 7:net1", f"{first[0]}/24")}
    assert net.add("c2", *of("p")) != first
    assert net.add("c3", "net1", "STICKY=disk 7") == first


def test_another_request_of_the_sticky(network, clock):
    net = network(**FEW, sticky=3600)
    net.add("c1", *of("db-0"))
    net.call("DEL", "c1")
    assert net.add("c2", "net1", of("db-0")[1] + ";IP=10.0.0.4") == ("10.0.0.4",)
    assert net.kept() == set()
    assert net.agrees()


def test_a_request_for_what_is_kept_for_another(network, clock):
    net = network(**FEW, sticky=3600)
    net.add("c1", *of("db-0"))
    net.call("DEL", "c1")
    assert "kept back for ns/db-0:net1" in net.call("ADD", "c2", "net1", "STICKY=x;IP=10.0.0.2")["msg"]


def test_what_was_kept_is_lost(network, clock):
    """A damaged line reserves its addresses, but its pod can return."""
    net = network(**FEW, sticky=3600)
    first = net.add("c1", *of("db-0"))
    net.call("DEL", "c1")
    net.overwrite(1, b"#")
    second = net.add("c2", *of("db-0"))
    assert second != first
    assert net.call("DEL", "c2") == {}
    assert net.add("c3", *of("db-0")) == second
    assert net.agrees()


def test_names_longer_than_a_line(network, clock):
    pod = "p" * 253
    net = network(ranges=[[{"subnet": f"fd00:{i}::/64"}] for i in range(1, 9)], sticky=3600)
    first = net.add("c" * 200, *of(pod))
    net.call("DEL", "c" * 200)
    net.add("other", *of("other"))
    assert net.add("d" * 200, *of(pod)) == first
    net.another_boot("d" * 200)
    assert net.add("e", *of(pod)) == first
    assert net.agrees()


def test_delete_killed_at_every_step(network, clock, tmp_path):
    """An address is leased or kept back: never free, never both."""
    net = network(**ONE, sticky=3600)
    for step in range(1, 99):
        first = net.add("c1", *of("db-0"))
        killed = killed_at(step, lambda: net.reply("DEL", "c1"))
        assert net.call("ADD", "x", *of("x"))["code"] == 103
        assert net.agrees()
        net.call("DEL", "c1")
        assert net.kept() == {("ns/db-0:net1", f"{first[0]}/24")}
        if not killed:
            break
    assert 3 < step < 99


@pytest.mark.parametrize("name", ["x" * 393, "\N{SNOWMAN}" * 65])
def test_the_longest_name(network, clock, name):
    net = network(**FEW, sticky=3600)
    first = net.add("c" * 220, "net1", f"STICKY={name}")
    net.call("DEL", "c" * 220)
    assert net.add("d", "net1", f"STICKY={name}") == first
    assert net.agrees()


@pytest.mark.parametrize(
    ("ipam", "args", "code", "part"),
    [
        ({"sticky": 60}, "", 4, "and args.cni no sticky; set one of them"),
        ({"sticky": -1}, "", 7, "ipam.sticky -1"),
        ({"sticky": True}, "", 7, "ipam.sticky true"),
        ({"sticky": 60}, "STICKY=" + "x" * 394, 4, "longer than 400"),
        ({"sticky": 60}, "STICKY=" + "\N{SNOWMAN}" * 66, 4, "longer than 400"),
        ({"releaseCooldown": -1}, "", 7, "ipam.releaseCooldown -1"),
        ({"releaseCooldown": "60"}, "", 7, 'ipam.releaseCooldown "60"'),
        ({"releaseCooldown": 10**9}, "", 7, "ipam.releaseCooldown 1000000000"),
        ({"reserved": ["10.0.1.1"]}, "", 7, "ipam.reserved[0] 10.0.1.1 is outside"),
    ],
)
def test_refused(network, ipam, args, code, part):
    net = network(**FEW, **ipam)
    answer = net.call("ADD", args=args)
    assert (answer["code"], part in answer["msg"]) == (code, True), answer
    assert net.leases() == {}


def test_status_asks_for_nobodys_name(network):
    assert network(**FEW, sticky=60).call("STATUS") == {}
