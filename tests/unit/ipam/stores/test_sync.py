"""Calls sync without the lock: others continue meanwhile, and a failing disk keeps no part of the change."""

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.ipam_calls import Net, killed_at

from base.protocol.errors import TryAgain
from base.state.locks import Lock

DUAL = {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]}
# A lease of one line, and one of several.
LONG = "K8S_POD_NAMESPACE=" + "n" * 250 + ";K8S_POD_NAME=" + "p" * 60


AtTheSync = Callable[[Callable[[], object]], None]


@pytest.fixture
def net(tmp_path: Path) -> Net:
    net = Net(tmp_path, DUAL)
    net.add("first")
    return net


@pytest.fixture
def at_the_sync(monkeypatch: pytest.MonkeyPatch) -> Iterator[AtTheSync]:
    """Call a function before the next sync."""
    waiting, sync = list[Callable[[], object]](), os.fdatasync

    def fdatasync(fd: int) -> None:
        if waiting:
            waiting.pop()()
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    yield waiting.append
    assert not waiting


def fail() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("ours", ["ADD", "DEL", "GC"])
@pytest.mark.parametrize("command", ["ADD", "DEL", "GC", "CHECK"])
def test_others_go_on(net: Net, at_the_sync: AtTheSync, command: str, ours: str) -> None:
    def more(command: str, *staying: str) -> dict[str, object]:
        keys = [{"containerID": name, "ifname": "net1"} for name in staying]
        return {"cni.dev/valid-attachments": keys} if command == "GC" else {}

    answers = list[dict[str, object]]()
    before, given = net.add("other"), () if ours == "ADD" else net.add("c")
    name = "another" if command == "ADD" else "other"
    at_the_sync(lambda: answers.append(net.call(command, name, **more(command, "c"))))
    if ours == "ADD":
        given = net.add("c")
    else:
        assert net.call(ours, "c", **more(ours, "first", "other", "another")) == {}
    assert "code" not in answers[0]
    held = net.leases()
    assert held.pop("c:net1", ()) == (given if ours == "ADD" else ())
    assert (held.get("other:net1") == before) == (command in ("ADD", "CHECK"))
    assert ("another:net1" in held) == (command == "ADD")
    assert len({a for ips in held.values() for a in ips} | set(given)) == 2 * len(held) + 2
    assert net.agrees()


def locked(net: Net) -> None:
    with pytest.raises(TryAgain):
        Lock(str(net.dir / "lock"), 0)


def test_a_lease_of_several_lines_is_released_alone(net: Net, at_the_sync: AtTheSync) -> None:
    """Its continuations become available only once its end is on disk."""
    net.add("c", args=LONG)
    assert b'"next"' in net.lines()[net.line("c")]
    at_the_sync(partial(locked, net))
    assert net.call("DEL", "c") == {}
    assert net.agrees()


def test_a_lease_changes_alone(net: Net, at_the_sync: AtTheSync) -> None:
    """Its old addresses become available only once its new state is on disk."""
    net.add("c", args="IP=10.0.0.20")
    at_the_sync(partial(locked, net))
    assert net.add("c", args="IP=10.0.0.21")[0] == "10.0.0.21"
    assert net.agrees()


def test_continuations_are_on_disk_before_the_line_that_names_them(net: Net, at_the_sync: AtTheSync) -> None:
    def half() -> None:
        kinds.append((any(b'"of"' in line for line in net.lines()), "c:net1" in net.leases()))

    kinds = list[tuple[bool, bool]]()
    at_the_sync(half)
    net.add("c", args=LONG)
    assert kinds == [(True, False)]
    assert "c:net1" in net.leases()


@pytest.mark.parametrize("args", ["", f";{LONG}"], ids=["short", "long"])
def test_the_power_goes_while_an_address_changes_hands(net: Net, at_the_sync: AtTheSync, args: str) -> None:
    """The disk may have the allocation and not the release: both end with the boot, without a warning."""
    address, _ = given = net.add("c")
    before, line = net.lines(), net.line("c")
    at_the_sync(lambda: (net.add("other"), net.add("another", args=f"IP={address}{args}")))
    net.call("DEL", "c")
    net.overwrite(line, before[line])
    for name in ("c", "another"):
        net.rewrite(name, boot="0" * 32)
    net.rewrite("c", n=99)  # the one that was given last stays
    net.another_boot()
    reply = net.reply("ADD", "new")
    assert (reply.exit_code, reply.log) == (0, ())
    held = net.leases()
    assert "new:net1" in held
    assert len(held.keys() & {"c:net1", "another:net1"}) == 1
    assert len([ip for ips in held.values() for ip in ips if ip in given]) <= 2
    assert not any(line.startswith(b'{"of"') for line in net.lines())
    assert not (net.dir / "quarantine").exists()
    assert net.agrees()


def test_one_of_this_boot_stands_before_one_of_an_older(net: Net) -> None:
    """Also if the older one has the higher number, because the count restarts with a removed index."""
    given = net.add("c")
    old, line = net.lines()[net.line("c")], net.line("c")
    net.call("DEL", "c")
    net.add("other")
    assert net.line("other") == line
    net.call("DEL", "other")
    assert net.add("another", args=f"IP={given[0]}")[0] == given[0]
    free = max(net.line("first"), net.line("another")) + 1
    net.overwrite(free, old)
    net.rewrite("c", boot="0" * 32, n=99)
    reply = net.reply("ADD", "new")
    assert (reply.exit_code, reply.log) == (0, ())
    assert net.leases().keys() == {"first:net1", "another:net1", "new:net1"}
    assert net.agrees()


def test_the_disk_fails_when_a_lease_is_released(net: Net, at_the_sync: AtTheSync) -> None:
    net.add("c")
    at_the_sync(fail)
    assert net.call("DEL", "c")["code"] == 5
    net.add("another")
    assert net.call("DEL", "c") == {}
    assert net.leases().keys() == {"first:net1", "another:net1"}
    assert net.agrees()


def test_the_disk_fails(net: Net, at_the_sync: AtTheSync) -> None:
    before = net.leases()
    at_the_sync(fail)
    answer = net.call("ADD", "c")
    assert (answer["code"], "leases: Input/output error" in answer["msg"]) == (5, True)
    assert net.leases() == before
    net.add("c")
    assert net.agrees()


def test_the_disk_fails_and_others_went_on(net: Net, at_the_sync: AtTheSync) -> None:
    def others() -> None:
        net.add("another")
        fail()

    before = net.leases()
    at_the_sync(others)
    assert net.call("ADD", "c")["code"] == 5
    assert net.leases().keys() == {*before, "another:net1"}
    net.add("c")
    assert net.agrees()


def test_the_disk_fails_and_its_line_is_anothers(net: Net, at_the_sync: AtTheSync) -> None:
    def others() -> None:
        lines.append(net.line("c"))
        net.call("DEL", "c")
        net.add("another")
        lines.append(net.line("another"))
        fail()

    before, lines = net.leases(), list[int]()
    at_the_sync(others)
    assert net.call("ADD", "c")["code"] == 5
    assert lines[0] == lines[1]
    assert net.leases().keys() == {*before, "another:net1"}
    net.add("c")
    assert net.agrees()


def test_the_disk_fails_when_a_lease_changes(net: Net, at_the_sync: AtTheSync) -> None:
    given = net.add("c", args="IP=10.0.0.20")
    at_the_sync(fail)
    assert net.call("ADD", "c", args="IP=10.0.0.21")["code"] == 5
    assert net.leases()["c:net1"] == given
    assert net.call("CHECK", "c") == {}
    assert net.agrees()


@pytest.mark.parametrize("args", ["", LONG], ids=["short", "long"])
def test_what_a_killed_one_wrote_is_synced(net: Net, at_the_sync: AtTheSync, args: str) -> None:
    """Also if its lease is equal, of the same second, so that nothing needs writing."""
    found = 0
    for step in range(1, 200):
        net.call("DEL", "c")
        if not killed_at(step, lambda: net.reply("ADD", "c", args=args)):
            break
        if "c:net1" in net.leases():
            found += 1
            syncs = list[int]()
            at_the_sync(partial(syncs.append, 1))
            given = net.add("c", args=args)
            assert (net.leases()["c:net1"], syncs) == (given, [1])
            assert net.agrees()
    assert found > 2
