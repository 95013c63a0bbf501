"""Addresses that depend on the interface, tested without one: the probes, and addresses in use."""

import subprocess
import sys
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import drawn
import pytest
from support.ipam_calls import Net, killed_at

from base.kernel.links import IFF_NOARP, Link
from base.protocol.errors import AddressConflict, InvalidConfig, IoFailure, PoolExhausted
from base.protocol.spec import Key
from ctl.main import main
from ipam import leases
from ipam import link as links
from ipam.config import load
from ipam.link import refuse_unless_probeable
from ipam.stores import Owner, Terms
from ipam.stores.files.store import FileStore

ROOT = Path(__file__).parents[3]
MAC = "02:00:00:00:00:99"
SMALL = {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.2", "rangeEnd": "10.0.0.9"}


def pool(**ipam):
    return load({"cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": ipam}, {})


@pytest.mark.parametrize(
    ("ipam", "said"),
    [
        (SMALL | {"probe": "1"}, 'ipam.probe "1": neither true, false, nor 0.03 to 10 seconds'),
        (SMALL | {"probe": 0.01}, "ipam.probe 0.01"),
        (SMALL | {"probe": 11}, "ipam.probe 11"),
        (SMALL | {"probe": -1}, "ipam.probe -1"),
    ],
)
def test_refused(ipam, said):
    with pytest.raises(InvalidConfig) as e:
        pool(**ipam)
    assert said in e.value.msg


@pytest.mark.parametrize(
    ("given", "seconds"), [(..., 0), (None, 0), (False, 0), (0, 0), (True, 0.3), (1, 1.0), (0.05, 0.05), (10, 10.0)]
)
def test_how_long_to_listen(given, seconds):
    read = pool(**SMALL, **({} if given is ... else {"probe": given}))
    assert read.probe == seconds
    assert read.needs_link == bool(seconds)


def test_off_it_costs_nothing(tmp_path):
    """Neither the module nor its kernel modules are imported."""
    program = (
        "import sys; sys.path.insert(0, 'tests'); from pathlib import Path; from support.ipam_calls import Net\n"
        f"net = Net(Path({str(tmp_path)!r}), {SMALL}); net.add('a')\n"
        "print({'ipam.link', 'base.kernel.probe', 'base.state.pod'}"
        " & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("link", "why"),
    [
        (Link(5, "hpn0", 0, "80:00" + ":00" * 18, 2044, hardware=32), "is InfiniBand"),
        (Link(5, "hpn0", 0, MAC, 1500, kind="ipvlan"), "is an ipvlan"),
        (Link(5, "hpn0", IFF_NOARP, "", 1500, kind="tun"), "has neither ARP"),
    ],
)
def test_links_that_nobody_can_be_asked_on(link, why):
    with pytest.raises(InvalidConfig, match=f"hpn0 {why}.*remove ipam.probe"):
        refuse_unless_probeable(link)
    refuse_unless_probeable(Link(5, "hpn0", 0, MAC, 1500, kind="macvlan"))


# Addresses in use


class Network:
    """A store, and a link with hosts that use some addresses."""

    def __init__(self, directory, *others, **ipam):
        self.net = Net(directory, {**SMALL, **ipam})
        self.store, self.log, self.asked = FileStore(self.net.dir, []), [], []
        self.others = {ip_address(address): MAC for address in others}

    def add(self, cid="c", *requested, terms=Terms()):  # noqa: B008
        sets, owner = pool(**self.net.ipam).sets, Owner(Key(cid, "net1"), terms=terms)
        asked = tuple(map(ip_address, requested))
        reserve = partial(self.store.reserve, owner, partial(leases.choose, sets, asked))
        prober = links.Prober(self.ask, "the link of net1 (master rail0)", [s.all_spans for s in sets])
        ips = links.resolve(self.store, owner.key, asked, reserve, prober, self.log)
        return tuple(str(ip.address.ip) for ip in ips)

    def ask(self, addresses):
        self.asked.append({str(address) for address in addresses})
        return {address: self.others[address] for address in addresses if address in self.others}


BOTH = {"ranges": [[{"subnet": "fd00::/64"}]]}


def test_the_next_is_given(tmp_path):
    network = Network(tmp_path, "10.0.0.2", "10.0.0.3", **BOTH)
    assert network.add() == ("10.0.0.4", "fd00::2")
    assert network.net.leases() == {"c:net1": ("10.0.0.4", "fd00::2")}
    # An address without an answer is not probed again.
    assert network.asked == [{"10.0.0.2", "fd00::2"}, {"10.0.0.3"}, {"10.0.0.4"}]
    assert network.log[0] == f"10.0.0.2 is in use by another host on the link (MAC {MAC}); not allocated for 600 s"
    assert network.net.held() == {"10.0.0.2", "10.0.0.3", "10.0.0.4", "fd00::2"}
    assert network.net.agrees()
    # The search continues where it was, without probing addresses known to be in use.
    assert network.add("d") == ("10.0.0.5", "fd00::3")


def test_kept_back_for_a_while(tmp_path, clock):
    network = Network(tmp_path, "10.0.0.2")
    network.add()
    network.store.release(Key("c", "net1"))
    clock[0] += 599
    assert network.store.collect(None) == 0
    answer = network.net.call("ADD", "d", args="IP=10.0.0.2")
    assert answer["code"] == 102
    assert f"held by another host on the link (MAC {MAC}), found by a probe" in answer["msg"]
    clock[0] += 1
    assert network.net.add("d", args="IP=10.0.0.2") == ("10.0.0.2",)


def test_a_requested_one(tmp_path):
    network = Network(tmp_path, "10.0.0.7", **BOTH)
    with pytest.raises(AddressConflict, match=rf"requested address 10.0.0.7 is in use .*\(MAC {MAC}\)"):
        network.add("c", "10.0.0.7", terms=Terms(cooldown=60))
    assert network.net.held() == set(), "who asks again asks the link again"
    network.others.clear()
    assert network.add("c", "10.0.0.7") == ("10.0.0.7", "fd00::3")


def test_one_of_two_is_requested(tmp_path):
    network = Network(tmp_path, "10.0.0.2", "fd00::7", **BOTH)
    with pytest.raises(AddressConflict, match="fd00::7"):
        network.add("c", "fd00::7")
    assert network.net.held() == {"10.0.0.2"}
    assert network.net.leases() == {}


def test_one_that_answers_for_everything(tmp_path):
    """At most a quarter is kept back because of it; the others are available once it is silent."""
    network = Network(tmp_path, *(f"10.0.0.{n}" for n in range(2, 10)))
    for _ in range(5):
        with pytest.raises(
            AddressConflict, match=rf"on the link of net1 \(master rail0\) \(MAC {MAC}\) answers for"
        ) as e:
            network.add()
        assert "hpn ipam gc" in e.value.msg
        assert network.net.leases() == {}
        assert network.net.held() == {"10.0.0.2", "10.0.0.3"}
    assert any("skipped" in line for line in network.log)
    network.others.clear()
    assert {network.add(f"c{n}") for n in range(6)} == {(f"10.0.0.{n}",) for n in range(4, 10)}
    with pytest.raises(PoolExhausted):
        network.add("more")
    assert network.store.release_conflicts() == 2
    assert network.add("more") == ("10.0.0.2",)
    assert network.net.agrees()


def test_one_that_has_many(tmp_path):
    """Few are kept back per MAC, and the search continues behind the others, past an honest host's addresses."""
    network = Network(tmp_path, *(f"10.0.0.{n}" for n in range(2, 12)), rangeEnd="10.0.0.200")
    for _ in range(2):
        with pytest.raises(AddressConflict):
            network.add()
    assert network.net.held() == {f"10.0.0.{n}" for n in range(2, 6)}
    assert network.add() == ("10.0.0.12",)


def test_many_that_have_one_each(tmp_path):
    network = Network(tmp_path, rangeEnd="10.0.0.41")
    network.others = {ip_address(f"10.0.0.{n}"): f"02:00:00:00:01:{n:02x}" for n in range(2, 42)}
    for _ in range(10):
        with pytest.raises(AddressConflict, match="exclude the addresses of others"):
            network.add()
    assert len(network.net.held()) == 10, "a quarter of forty"


def test_the_only_one_there_is(tmp_path):
    network = Network(tmp_path, "10.0.0.2", rangeEnd="10.0.0.2")
    for _ in range(2):
        with pytest.raises(AddressConflict, match=f"10.0.0.2 is in use by another host on the link .MAC {MAC}."):
            network.add()
    assert network.net.held() == set()


def test_a_slow_one_is_not_waited_for_again_and_again(tmp_path, monkeypatch):
    network = Network(tmp_path, *(f"10.0.0.{n}" for n in range(2, 10)))
    now = iter(range(0, 1000, 3))
    monkeypatch.setattr("ipam.link.monotonic", lambda: next(now))
    with pytest.raises(AddressConflict):
        network.add()
    assert len(network.asked) == 2


def test_nothing_is_let_go_that_was_held_before(tmp_path):
    network = Network(tmp_path)
    network.add("c", "10.0.0.2")
    network.others[ip_address("10.0.0.3")] = MAC
    with pytest.raises(AddressConflict):
        network.add("c", "10.0.0.3")
    assert "c:net1" in network.net.leases()


def test_what_fails_meanwhile(tmp_path):
    network = Network(tmp_path)
    network.ask = lambda _: (_ for _ in ()).throw(IoFailure("no"))
    with pytest.raises(IoFailure):
        network.add()
    assert network.net.leases() == {}


def test_cooldown_of_a_lease_that_lost_all(tmp_path):
    network = Network(tmp_path)
    key = Key("c", "net1")
    network.add("c", terms=Terms(cooldown=60))
    network.store.decline(key, {ip_address("10.0.0.2"): MAC}, 600, lambda taken, _: list(taken))
    assert network.store.check(key) == ()
    network.store.release(key)
    assert network.net.held() == {"10.0.0.2"}
    assert network.net.agrees()


@pytest.mark.parametrize("then", ["ADD", "DEL"])
def test_killed_at_every_step(tmp_path, then):
    """After any failure an address is in one line, and the lease exists until its DEL."""
    network = Network(tmp_path / "warm", "10.0.0.2", "10.0.0.3", **BOTH)
    network.add()
    for step in drawn.steps(1):
        network = Network(tmp_path / str(step), "10.0.0.2", "10.0.0.3", **BOTH)
        if not killed_at(step, network.add):
            assert step > 20
            return
        network.store = FileStore(network.net.dir, [])
        if then == "ADD":
            assert network.add() == ("10.0.0.4", "fd00::2"), step
        else:
            network.store.release(Key("c", "net1"))
        held = {"10.0.0.2", "10.0.0.3", "10.0.0.4", "fd00::2"}
        assert network.net.leases().keys() == ({"c:net1"} if then == "ADD" else set()), step
        network.net.add("last", args="IP=10.0.0.9,fd00::9")
        assert network.net.agrees(), step
        assert network.store.verify() == [], step
        assert network.net.held() <= held | {"10.0.0.9", "fd00::9"}, step


def test_shown(tmp_path, clock, capsys):
    network = Network(tmp_path, "10.0.0.2")
    network.add()
    command = ["hpn", "ipam", "show", "--data-dir", str(tmp_path / "ipam")]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "0 held" not in text
    assert "1 conflict" in text
    (line,) = [line.split() for line in text.splitlines() if "10.0.0.2 " in line]
    assert line[:5] == ["10.0.0.2", MAC, "-", "conflict", "until"]
    clock[0] += 600
    main(command)
    assert "conflict" not in capsys.readouterr().out
