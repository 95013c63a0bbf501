"""A network's files: their contents, their permissions, and failing writes."""

import json
import os
import resource
import signal
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor
from ipaddress import ip_interface
from multiprocessing import get_context
from pathlib import Path

import pytest
from filelock import FileLock
from support.elapsed import cost
from support.ipam_calls import Net

from base.protocol.errors import TryAgain
from base.protocol.spec import Key
from base.state import durable
from ipam.stores import Owner, Terms
from ipam.stores.files import lines as lines_file
from ipam.stores.files.store import FileStore
from ipam.stores.holdings import Lease

DUAL = {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]}
POD = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;X=1"


@pytest.fixture
def net(tmp_path):
    return Net(tmp_path, json.loads(json.dumps(DUAL)))


def test_lease_on_disk(net):
    net.add("c", args=POD)
    body = net.body()
    assert time.strptime(body.pop("time"), "%Y-%m-%dT%H:%M:%SZ")
    assert len(body.pop("crc")) == 8
    assert body == {
        "containerID": "c", "ifname": "net1", "addresses": ["10.0.0.2/24", "fd00::2/64"], "pod": "ns/p",
        "netns": "/run/netns/p", "boot": durable.boot_id(), "n": 1,
    }  # fmt: skip
    assert net.held() == {"10.0.0.2", "fd00::2"}
    assert {path.name: path.stat().st_mode & 0o777 for path in net.dir.iterdir()} == {
        "lock": 0o600, "leases": 0o600, "index": 0o600, "ranges": 0o600,
    }  # fmt: skip
    assert net.dir.stat().st_mode & 0o777 == 0o700
    assert net.agrees()


def test_ordinary_tools_read_it(net):
    net.add("c")
    net.add("d")
    net.call("DEL", "c")
    text, found = net.file.read_text(), []
    while text := text.lstrip():  # as jq does: values, and white space between them
        value, end = json.JSONDecoder().raw_decode(text)
        found.append(value.get("addresses"))
        text = text[end:]
    assert found == [None, ["10.0.0.3/24", "fd00::3/64"]]
    grep = subprocess.run(["grep", "-F", '"10.0.0.3/', net.file], capture_output=True, check=True)
    assert json.loads(grep.stdout)["containerID"] == "d"


def test_names_with_dots_and_suffixes(net):
    # The most confusing names the specification allows.
    for cid, ifname in (("a.json", "e.json"), ("a", "e.json.tmp"), ("a", "e"), ("a", "e.0")):
        net.add(cid, ifname)
    assert len(net.leases()) == 4
    assert net.agrees()
    assert net.gc(("a", "e.0")) == {}
    assert list(net.leases()) == ["a:e.0"]


# The file system


@pytest.mark.parametrize("directory", ["/proc/hpn", "/dev/null"])
def test_nowhere_to_write(net, directory):
    answer = net.call("ADD", ipam=net.ipam | {"dataDir": directory})
    assert answer["code"] == 5
    assert directory in answer["msg"]


def test_nothing_can_be_written(net):
    kept = net.add("a")

    def full():
        # Every write fails, also in place.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        answers = net.call("ADD", "b"), net.call("DEL", "a"), net.call("STATUS")
        assert [answer["code"] for answer in answers] == [5, 5, 50]
        assert all(str(net.file) in answer["msg"] for answer in answers)

    assert in_a_child(full)
    assert net.leases() == {"a:net1": kept}
    assert net.agrees()
    assert net.call("DEL", "a") == {}
    assert net.add("b")


def in_a_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def test_busy_store_says_which_lock(net):
    net.add()
    with FileLock(net.dir / "lock"), pytest.raises(TryAgain, match=r"net/lock was held by process \d+ .* for 0\.1 s"):
        # time: it ends by that
        FileStore(net.dir, [], timeout=0.1).release(Key("c", "net1"))
    assert list(net.leases()) == ["c:net1"]


# Many at once


def _one(state: str, i: int) -> list[tuple[str, ...]]:
    net, given = Net(Path(state), {"ranges": [[{"subnet": "10.0.0.0/26"}], [{"subnet": "fd00::/64"}]]}), []
    for turn in range(3):
        given = [net.add(f"c{i}-{turn}"), net.add(f"c{i}-{turn}")]
        if turn < 2:
            net.call("DEL", f"c{i}-{turn}")
    return given


def test_twenty_processes(tmp_path):
    with ProcessPoolExecutor(20, mp_context=get_context("fork")) as pool:
        answers = list(pool.map(_one, [str(tmp_path)] * 20, range(20)))
    assert all(first == again for first, again in answers)
    assert len({address for answer in answers for address in answer[0]}) == 40
    net = Net(tmp_path, {})
    assert net.leases() == {f"c{i}-2:net1": answer[0] for i, answer in enumerate(answers)}
    assert net.agrees()


@pytest.mark.parametrize("subnet", ["10.0.0.0/8", "fd00::/64"])
def test_subnets_of_any_size(tmp_path, subnet):
    def in_one_of(subnet):
        net = Net(tmp_path / subnet.replace("/", "-"), {"subnet": subnet})
        names = (f"c{n}" for n in range(9))

        def work():
            net.add(next(names))
            assert net.call("STATUS") == {}

        return cost(work)

    assert in_one_of(subnet) < 20 * in_one_of("10.0.0.0/26")


def test_gc_leaves_a_line_that_says_something_else_by_now(net):
    """GC reads it without the lock, so the data proves nothing about the line's present lease."""
    net.add("c")
    line = net.line("c")

    def meanwhile():
        net.call("DEL", "c")
        net.add("another")
        assert net.line("another") == line
        return ()

    assert FileStore(net.dir, []).collect(frozenset(), meanwhile) == 0
    assert net.leases().keys() == {"another:net1"}
    assert net.agrees()


def test_adopting_as_a_rehearsal_changes_nothing(net):
    net.add("c")
    before = net.file.read_bytes()
    other = Owner(Key("other", "net1"), "", "/run/netns/p", None, Terms())
    lease = Lease(other, (ip_interface("10.0.0.77/24"),), durable.boot_id(), "2026-01-01T00:00:00Z")
    store = FileStore(net.dir, [])
    assert store.adopt([lease], dry_run=True) == []
    assert net.file.read_bytes() == before
    assert store.adopt([lease]) == []
    assert net.leases()["other:net1"] == ("10.0.0.77",)


def test_what_is_read_is_a_file_and_no_link(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    os.close(lines_file.reading(tmp_path / "file"))
    for name in ("link", "fifo"):
        with pytest.raises(OSError, match=r"symbolic links|not a file"):
            lines_file.reading(tmp_path / name)
