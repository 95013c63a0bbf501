"""Addresses after their release: cooling down, kept for the pod, or free at once; and reserved ones."""

import errno
import json
from dataclasses import replace

import pytest
from support.ipam_calls import FEW, ONE, of

from ctl.main import main
from ipam import main as program
from ipam.stores.files.codec import to_line
from ipam.stores.files.index import Index

# releaseCooldown


@pytest.mark.parametrize("booted", [False, True])
def test_cooldown(network, clock, booted):
    net = network(**ONE, releaseCooldown=60)
    net.add("a")
    assert net.call("DEL", "a") == {}
    assert net.leases() == {}
    if booted:
        net.another_boot()
    clock[0] += 59
    assert net.call("ADD", "b")["code"] == 103
    assert net.call("STATUS")["code"] == 50
    answer = net.call("ADD", "b", args="IP=10.0.0.5")
    assert answer["code"] == 102
    assert "held by the store, kept back after its release until 2027-01-15 08:01:00Z" in answer["msg"]
    assert net.gc() == {}
    assert net.call("ADD", "b")["code"] == 103, "no list has it, and it stays"
    clock[0] += 1
    assert net.add("b") == ("10.0.0.5",)
    assert net.agrees()


def test_cooldown_is_of_the_lease(network, clock):
    """The terms of the allocation apply, because DEL must work with any configuration."""
    one = network(**ONE, releaseCooldown=60)
    one.add("a")
    one.ipam = None
    assert one.call("DEL", "a") == {}
    one.ipam = ONE
    assert one.call("ADD", "b")["code"] == 103
    clock[0] += 60
    one.add("b")
    one.call("DEL", "b")
    assert one.add("c") == ("10.0.0.5",)


def test_nobody_waits_while_others_are_free(network, clock):
    net = network(**FEW, releaseCooldown=60)
    given = []
    for i in range(3):
        given += net.add(f"c{i}")
        net.call("DEL", f"c{i}")
    assert sorted(given) == ["10.0.0.2", "10.0.0.3", "10.0.0.4"]
    assert net.call("ADD", "d")["code"] == 103
    clock[0] += 60
    net.add("d")
    assert net.kept() == set(), "all that was over went at once"
    assert net.agrees()


def test_a_clock_that_was_set_back(network, clock):
    net = network(**ONE, releaseCooldown=60)
    net.add("a")
    net.call("DEL", "a")
    clock[0] -= 10**8
    assert net.add("b") == ("10.0.0.5",)


def test_after_a_reboot_nobody_waits(network, clock):
    net = network(**ONE, releaseCooldown=60)
    net.add("a")
    net.another_boot("a")
    assert net.add("b") == ("10.0.0.5",)


def test_gc_lets_cool_down(network, clock):
    net = network(**ONE, releaseCooldown=60)
    net.add("a")
    assert net.gc() == {}
    assert net.call("ADD", "b")["code"] == 103
    clock[0] += 60
    assert net.gc() == {}
    assert net.kept() == set()
    assert net.agrees()


# reserved


def test_reserved_is_for_who_asks(network):
    net = network(**FEW, reserved=["10.0.0.2-10.0.0.3"])
    assert net.add("a") == ("10.0.0.4",)
    assert net.call("ADD", "b")["code"] == 103
    assert net.add("b", args="IP=10.0.0.3") == ("10.0.0.3",)
    assert net.add("b") == ("10.0.0.3",), "its own is kept"


def test_several_addresses_of_a_family(network):
    net = network(ranges=[[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]])
    assert net.add() == ("10.0.0.2", "10.1.0.2", "fd00::2")


def test_shown(network, clock, capsys):
    net = network(**FEW, sticky=3600, releaseCooldown=60)
    net.add("c1", *of("db-0"))
    net.add("c2", *of("db-0"))
    for cid in ("c1", "c2"):
        net.call("DEL", cid)
    command = ["hpn", "ipam", "show", "--data-dir", str(net.state / "ipam")]
    assert main([*command, "--json"]) == 0
    (pool,) = json.loads(capsys.readouterr().out)["networks"][0]["pools"]
    assert [pool[state] for state in ("held", "cooling", "sticky", "free", "size")] == [0, 1, 1, 1, 3]
    main(command)
    text = capsys.readouterr().out
    assert f"[{'~' * 10}{'=' * 10}{'.' * 10}] 0 held, 1 cooling, 1 sticky, 1 free" in text
    assert "ns/db-0" in text
    assert "sticky until 2027-01-15 09:00:00Z" in text
    clock[0] += 3600
    main(command)
    assert "0 held, 3 free" in capsys.readouterr().out


def test_what_the_index_missed_stays_known(network, monkeypatch):
    """The first of two changes fails half way through the index; the second must not mark the index clean."""
    net = network(**FEW, sticky=600)
    for pod in ("a", "b"):
        net.add(pod, *of(pod))
    real, calls = Index.replace, []

    def replace(self, *args):
        calls.append(args)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, *args)

    monkeypatch.setattr(Index, "replace", replace)
    assert net.gc() == {}
    assert len(calls) == 2
    assert net.add("a2", *of("a")) == ("10.0.0.2",)
    assert net.agrees()
    assert not list((net.dir / "quarantine").glob("*"))


# Addresses that the pod may still use


def released_in_doubt(net, cid):
    """DEL by a main plugin that could not confirm the interface's removal."""
    return program.run(replace(net.request("DEL", cid), in_use=True)).stdout


@pytest.mark.parametrize("policy", [{}, {"releaseCooldown": 60}, {"sticky": 3600}])
def test_in_use_until_the_next_boot(network, clock, policy, capsys):
    """Not for its sticky name either: another pod of that name is another pod."""
    net = network(**ONE, **policy)
    net.add("a", *of("p"))
    assert released_in_doubt(net, "a") == ""
    assert net.leases() == {}
    for _ in range(2):
        assert net.call("ADD", "b", *of("p"))["code"] == 103
        answer = net.call("ADD", "b", "net1", f"{of('p')[1]};IP=10.0.0.5")
        assert answer["code"] == 102
        assert "held by the store, kept back until the next boot: its last pod" in answer["msg"]
        clock[0] += 1e7
    assert net.gc() == {}
    where = ["--data-dir", str(net.state / "ipam")]
    assert main(["hpn", "ipam", "gc", *where]) == main(["hpn", "ipam", "show", *where]) == 0
    assert "doubtful until the next boot" in capsys.readouterr().out
    assert net.agrees()
    (line,) = (i for i, line in enumerate(net.lines()) if b"released" in line)
    body = json.loads(net.lines()[line])
    del body["crc"]
    net.overwrite(line, to_line({**body, "boot": "another"}))
    net.another_boot()
    assert net.add("b", *of("p")) == ("10.0.0.5",)
    assert net.agrees()
