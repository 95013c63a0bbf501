"""What becomes of an address after its release: cooled down, kept for its pod, or free at once; and reserved ones."""

import errno
import json
from dataclasses import replace

import pytest
from unit.ipam_calls import Net, killed_at

from ctl.main import main
from ipam import main as program
from ipam.stores.files.codec import to_line
from ipam.stores.files.index import Index

ONE = {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.5", "rangeEnd": "10.0.0.5"}
FEW = {"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.4"}  # .2 to .4


@pytest.fixture
def clock(monkeypatch):
    """The time of day, in seconds; the test sets it."""
    now = [1_800_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    return now


@pytest.fixture
def net(tmp_path):
    def network(**ipam):
        return Net(tmp_path, ipam)

    return network


def of(pod, ifname="net1"):
    return (ifname, f"IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod}")


def reboot(net, cid=None):
    """The index is of another boot, and so is the lease."""
    if cid:
        net.rewrite(cid, boot="another")
    index = net.dir / "index"
    index.write_bytes(index.read_bytes()[:8] + bytes(16) + index.read_bytes()[24:])


def kept(net):
    bodies = [json.loads(line) for line in net.lines() if line.strip()]
    return {(body["sticky"], *body["addresses"]) for body in bodies if "released" in body}


# releaseCooldown


@pytest.mark.parametrize("booted", [False, True])
def test_cooldown(net, clock, booted):
    net = net(**ONE, releaseCooldown=60)
    net.add("a")
    assert net.call("DEL", "a") == {}
    assert net.leases() == {}
    if booted:
        reboot(net)
    clock[0] += 59
    assert net.call("ADD", "b")["code"] == 103
    assert net.call("STATUS")["code"] == 50
    answer = net.call("ADD", "b", args="IP=10.0.0.5")
    assert answer["code"] == 102
    assert "held by nobody and kept back after its release, until 2027-01-15 08:01:00Z" in answer["msg"]
    assert net.gc() == {}
    assert net.call("ADD", "b")["code"] == 103, "no list has it, and it stays"
    clock[0] += 1
    assert net.add("b") == ("10.0.0.5",)
    assert net.agrees()


def test_cooldown_is_of_the_lease(net, clock):
    """As it was when the address was given: DEL has to work under any configuration."""
    one = net(**ONE, releaseCooldown=60)
    one.add("a")
    one.ipam = None
    assert one.call("DEL", "a") == {}
    one.ipam = ONE
    assert one.call("ADD", "b")["code"] == 103
    clock[0] += 60
    one.add("b")
    one.call("DEL", "b")
    assert one.add("c") == ("10.0.0.5",)


def test_nobody_waits_while_others_are_free(net, clock):
    net = net(**FEW, releaseCooldown=60)
    given = []
    for i in range(3):
        given += net.add(f"c{i}")
        net.call("DEL", f"c{i}")
    assert sorted(given) == ["10.0.0.2", "10.0.0.3", "10.0.0.4"]
    assert net.call("ADD", "d")["code"] == 103
    clock[0] += 60
    net.add("d")
    assert kept(net) == set(), "all that was over went at once"
    assert net.agrees()


def test_a_clock_that_was_set_back(net, clock):
    net = net(**ONE, releaseCooldown=60)
    net.add("a")
    net.call("DEL", "a")
    clock[0] -= 10**8
    assert net.add("b") == ("10.0.0.5",)


def test_after_a_reboot_nobody_waits(net, clock):
    net = net(**ONE, releaseCooldown=60)
    net.add("a")
    reboot(net, "a")
    assert net.add("b") == ("10.0.0.5",)


def test_gc_lets_cool_down(net, clock):
    net = net(**ONE, releaseCooldown=60)
    net.add("a")
    assert net.gc() == {}
    assert net.call("ADD", "b")["code"] == 103
    clock[0] += 60
    assert net.gc() == {}
    assert kept(net) == set()
    assert net.agrees()


# sticky


def test_sticky(net, clock):
    net = net(**FEW, sticky=3600)
    first = net.add("c1", *of("db-0"))
    net.call("DEL", "c1")
    others = net.add("x", *of("x")) + net.add("y", *of("y"))
    assert net.call("ADD", "z", *of("z"))["code"] == 103
    clock[0] += 3599
    assert net.add("c2", *of("db-0")) == first
    assert kept(net) == set()
    assert len({*first, *others}) == 3
    net.call("DEL", "c2")
    clock[0] += 3600
    # Over, but nobody needed it.
    assert net.add("c3", *of("db-0")) == first
    net.call("DEL", "c3")
    clock[0] += 3600
    assert net.add("z", *of("z")) == first
    assert net.agrees()


def test_sticky_after_a_reboot_without_a_delete(net, clock):
    net = net(**FEW, sticky=3600)
    net.add("other", *of("other"))
    first = net.add("c1", *of("db-0"))
    reboot(net, "c1")
    assert net.add("c2", *of("db-0")) == first
    assert net.call("DEL", "c1") == {}
    assert net.leases() == {"other:net1": ("10.0.0.2",), "c2:net1": first}
    assert net.agrees()


def test_the_living_keep_theirs(net, clock):
    """Two of a name at once: the second gets another, and what is kept is what was released last."""
    net = net(**FEW, sticky=3600, releaseCooldown=60)
    first, second = net.add("c1", *of("db-0")), net.add("c2", *of("db-0"))
    assert first != second
    net.call("DEL", "c1")
    net.call("DEL", "c2")
    assert kept(net) == {("", f"{first[0]}/24"), ("ns/db-0:net1", f"{second[0]}/24")}
    assert net.add("c3", *of("db-0")) == second
    assert net.agrees()


def test_interfaces_of_a_pod_are_two(net, clock):
    net = net(**FEW, sticky=3600)
    held = {ifname: net.add("c", *of("db-0", ifname)) for ifname in ("net1", "net2")}
    for ifname in held:
        net.call("DEL", "c", ifname)
    assert {ifname: net.add("d", *of("db-0", ifname)) for ifname in ("net2", "net1")} == held


@pytest.mark.parametrize(
    "how", [{"more": {"args": {"cni": {"sticky": "disk 7"}}}}, {"args": "IgnoreUnknown=1;K8S_POD_NAME=p;STICKY=disk 7"}]
)
def test_sticky_by_argument(net, clock, how):
    net = net(**FEW, sticky=3600)
    net.more = how.get("more", {})
    first = net.add("c1", "net1", how.get("args", ""))
    net.more = {}
    net.call("DEL", "c1")
    assert kept(net) == {("disk 7:net1", f"{first[0]}/24")}
    assert net.add("c2", *of("p")) != first
    assert net.add("c3", "net1", "STICKY=disk 7") == first


def test_another_request_of_the_sticky(net, clock):
    net = net(**FEW, sticky=3600)
    net.add("c1", *of("db-0"))
    net.call("DEL", "c1")
    assert net.add("c2", "net1", of("db-0")[1] + ";IP=10.0.0.4") == ("10.0.0.4",)
    assert kept(net) == set()
    assert net.agrees()


def test_a_request_for_what_is_kept_for_another(net, clock):
    net = net(**FEW, sticky=3600)
    net.add("c1", *of("db-0"))
    net.call("DEL", "c1")
    assert "kept back for ns/db-0:net1" in net.call("ADD", "c2", "net1", "STICKY=x;IP=10.0.0.2")["msg"]


def test_what_was_kept_is_lost(net, clock):
    """A damaged line keeps its addresses from others, but not its pod from coming back."""
    net = net(**FEW, sticky=3600)
    first = net.add("c1", *of("db-0"))
    net.call("DEL", "c1")
    net.overwrite(1, b"#")
    second = net.add("c2", *of("db-0"))
    assert second != first
    assert net.call("DEL", "c2") == {}
    assert net.add("c3", *of("db-0")) == second
    assert net.agrees()


def test_names_longer_than_a_line(net, clock):
    pod = "p" * 253
    net = net(ranges=[[{"subnet": f"fd00:{i}::/64"}] for i in range(1, 9)], sticky=3600)
    first = net.add("c" * 200, *of(pod))
    net.call("DEL", "c" * 200)
    net.add("other", *of("other"))
    assert net.add("d" * 200, *of(pod)) == first
    reboot(net, "d" * 200)
    assert net.add("e", *of(pod)) == first
    assert net.agrees()


def test_delete_killed_at_every_step(net, clock, tmp_path):
    """Stored, or kept: never free, never both."""
    net = net(**ONE, sticky=3600)
    for step in range(1, 99):
        first = net.add("c1", *of("db-0"))
        killed = killed_at(step, lambda: net.reply("DEL", "c1"))
        assert net.call("ADD", "x", *of("x"))["code"] == 103
        assert net.agrees()
        net.call("DEL", "c1")
        assert kept(net) == {("ns/db-0:net1", f"{first[0]}/24")}
        if not killed:
            break
    assert 3 < step < 99


@pytest.mark.parametrize("name", ["x" * 393, "\N{SNOWMAN}" * 65])
def test_the_longest_name(net, clock, name):
    net = net(**FEW, sticky=3600)
    first = net.add("c" * 220, "net1", f"STICKY={name}")
    net.call("DEL", "c" * 220)
    assert net.add("d", "net1", f"STICKY={name}") == first
    assert net.agrees()


@pytest.mark.parametrize(
    ("ipam", "args", "code", "part"),
    [
        ({"sticky": 60}, "", 4, "name whose address it is"),
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
def test_refused(net, ipam, args, code, part):
    net = net(**FEW, **ipam)
    answer = net.call("ADD", args=args)
    assert (answer["code"], part in answer["msg"]) == (code, True), answer
    assert net.leases() == {}


def test_status_asks_for_nobodys_name(net):
    assert net(**FEW, sticky=60).call("STATUS") == {}


# reserved


def test_reserved_is_for_who_asks(net):
    net = net(**FEW, reserved=["10.0.0.2-10.0.0.3"])
    assert net.add("a") == ("10.0.0.4",)
    assert net.call("ADD", "b")["code"] == 103
    assert net.add("b", args="IP=10.0.0.3") == ("10.0.0.3",)
    assert net.add("b") == ("10.0.0.3",), "its own is kept"


def test_several_addresses_of_a_family(net):
    net = net(ranges=[[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]])
    assert net.add() == ("10.0.0.2", "10.1.0.2", "fd00::2")


def test_shown(net, clock, capsys):
    net = net(**FEW, sticky=3600, releaseCooldown=60)
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
    assert "sticky until 2027-01-15 09:00:00" in text
    clock[0] += 3600
    main(command)
    assert "0 held, 3 free" in capsys.readouterr().out


def test_what_the_index_missed_stays_known(net, monkeypatch):
    """Of two changes in one go the first fails half-way through the index; the second must not call that true."""
    net = net(**FEW, sticky=600)
    for pod in ("a", "b"):
        net.add(pod, *of(pod))
    real, calls = Index.rename, []

    def rename(self, *args):
        calls.append(args)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, *args)

    monkeypatch.setattr(Index, "rename", rename)
    assert net.gc() == {}
    assert len(calls) == 2
    assert net.add("a2", *of("a")) == ("10.0.0.2",)
    assert net.agrees()
    assert not list((net.dir / "quarantine").glob("*"))


# What the pod may use still


def released_in_doubt(net, cid):
    """DEL, by a main plugin that could not see the interface go."""
    return program.run(replace(net.request("DEL", cid), in_use=True)).stdout


@pytest.mark.parametrize("policy", [{}, {"releaseCooldown": 60}, {"sticky": 3600}])
def test_in_use_until_the_next_boot(net, clock, policy, capsys):
    """Not for its sticky name either: another pod of that name is another pod."""
    net = net(**ONE, **policy)
    net.add("a", *of("p"))
    assert released_in_doubt(net, "a") == ""
    assert net.leases() == {}
    for _ in range(2):
        assert net.call("ADD", "b", *of("p"))["code"] == 103
        answer = net.call("ADD", "b", "net1", f"{of('p')[1]};IP=10.0.0.5")
        assert answer["code"] == 102
        assert "held by nobody and kept back until the next boot: its last pod" in answer["msg"]
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
    reboot(net)
    assert net.add("b", *of("p")) == ("10.0.0.5",)
    assert net.agrees()
