"""An ADD waits for the disk without the lock: others go on meanwhile, and a disk that fails keeps nothing of it."""

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from unit.ipam_calls import Net, killed_at

DUAL = {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]}
# Of one line, and of several.
LONG = "K8S_POD_NAMESPACE=" + "n" * 250 + ";K8S_POD_NAME=" + "p" * 60


AtTheSync = Callable[[Callable[[], object]], None]


@pytest.fixture
def net(tmp_path: Path) -> Net:
    net = Net(tmp_path, DUAL)
    net.add("first")
    return net


@pytest.fixture
def at_the_sync(monkeypatch: pytest.MonkeyPatch) -> Iterator[AtTheSync]:
    """Have something done before the next sync."""
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


@pytest.mark.parametrize("command", ["ADD", "DEL", "GC", "CHECK"])
def test_others_go_on(net: Net, at_the_sync: AtTheSync, command: str) -> None:
    answers = list[dict[str, object]]()
    before = net.add("other")
    more = {"cni.dev/valid-attachments": [{"containerID": "c", "ifname": "net1"}]} if command == "GC" else {}
    at_the_sync(lambda: answers.append(net.call(command, "another" if command == "ADD" else "other", **more)))
    given = net.add("c")
    assert "code" not in answers[0]
    held = net.leases()
    assert held.pop("c:net1") == given
    assert (held.get("other:net1") == before) == (command in ("ADD", "CHECK"))
    assert ("another:net1" in held) == (command == "ADD")
    assert len({a for ips in held.values() for a in ips} | set(given)) == 2 * len(held) + 2
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


@pytest.mark.parametrize("args", ["", LONG], ids=["short", "long"])
def test_what_a_killed_one_wrote_is_synced(net: Net, at_the_sync: AtTheSync, args: str) -> None:
    """Also where its lease is that of the same second, and there is nothing to write."""
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
