"""What the commands do to a network's leases on disk, in order and out of order."""

import json
import os
import resource
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from filelock import FileLock
from unit.ipam_calls import Net

from cni import durable
from cni.errors import TryAgain
from cni.spec import Key
from ipam.stores.files import FileStore

DUAL = {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]}
POD = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;X=1"


@pytest.fixture
def net(tmp_path):
    return Net(tmp_path, json.loads(json.dumps(DUAL)))


def of_another_boot(net, cid):
    """Make a lease an older boot's."""
    body = durable.read(net.lease(cid))
    durable.write(net.lease(cid), {**body, "boot": "another"})


def damaged(net, cid):
    net.lease(cid).write_text(net.lease(cid).read_text()[:40])


def test_lease_on_disk(net):
    net.add("c", args=POD)
    body = durable.read(net.lease())
    assert body.pop("time").endswith("+00:00")
    assert body == {
        "containerID": "c", "ifname": "net1", "addresses": ["10.0.0.2/24", "fd00::2/64"], "pod": "ns/p",
        "netns": "/run/netns/p", "boot": durable.boot_id(),
    }  # fmt: skip
    assert net.index() == {"10.0.0.2": "c:net1", "fd00::2": "c:net1"}
    assert (net.dir / "addresses" / "10.0.0.2").resolve() == net.lease().resolve()
    assert net.dir.stat().st_mode & 0o777 == 0o700
    assert net.agrees()


def test_names_with_dots_and_suffixes(net):
    # The most confusing names the specification allows.
    for cid, ifname in (("a.json", "e.json"), ("a", "e.json.tmp"), ("a", "e"), ("a", "e.0")):
        net.add(cid, ifname)
    assert len(net.leases()) == 4
    assert net.agrees()
    assert net.gc(("a", "e.0")) == {}
    assert list(net.leases()) == ["a:e.0"]


def test_add_again_answers_the_same(net):
    first = net.add()
    before = net.lease().stat()
    assert net.add() == first
    assert net.lease().stat().st_ino == before.st_ino, "nothing to write"
    assert net.agrees()


def test_add_again_elsewhere_updates_the_record(net):
    first = net.add()
    assert net.add(args=POD) == first
    assert durable.read(net.lease())["pod"] == "ns/p"


def test_add_after_reboot_renews_the_lease(net):
    first = net.add()
    of_another_boot(net, "c")
    assert net.add() == first
    assert net.call("GC") == {}
    assert net.leases() == {"c:net1": first}, "a lease renewed in this boot is not an older boot's"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rangeStart": "10.0.0.9"}, ("10.0.0.9", "fd00::2")),  # out of the range: only that one is new
        ({"exclude": ["10.0.0.2"]}, ("10.0.0.3", "fd00::2")),
        ({"gateway": "10.0.0.2"}, ("10.0.0.1", "fd00::2")),
        ({"subnet": "10.0.0.0/23"}, ("10.0.0.2", "fd00::2")),  # kept, with the new length
    ],
)
def test_add_again_under_another_configuration(net, change, expected):
    net.add()
    net.ipam["ranges"][0][0].update(change)
    assert net.add() == expected
    assert net.leases() == {"c:net1": expected}
    assert net.agrees()


def test_add_again_with_another_request_moves(net):
    net.add()
    assert net.add(args="IP=10.0.0.7") == ("10.0.0.7", "fd00::2")
    assert net.agrees()


def test_prefix_of_a_kept_address_is_the_subnets(net):
    net.add()
    net.ipam["ranges"][0][0]["subnet"] = "10.0.0.0/23"
    assert net.call("ADD")["ips"][0]["address"] == "10.0.0.2/23"
    assert durable.read(net.lease())["addresses"][0] == "10.0.0.2/23"


def test_round_robin_does_not_reuse_at_once(net):
    net.add("a")
    net.call("DEL", "a")
    assert net.add("b") == ("10.0.0.3", "fd00::3")


@pytest.mark.parametrize("content", [None, "", "nonsense", "10.0.0.300", b"\xff\xfe", "10.0.0.7\nfd00::7\n"])
def test_any_cursor_is_right(net, content):
    net.add("a")
    if content is None:
        (net.dir / "cursor").unlink()
    else:
        (net.dir / "cursor").write_bytes(content if isinstance(content, bytes) else content.encode())
    net.add("b")
    assert net.agrees()
    assert len(net.index()) == 4


def test_request_held_by_another_names_it(net):
    net.add("a")
    answer = net.call("ADD", "b", args="IP=10.0.0.2")
    assert answer["code"] == 102
    assert "held by a:net1" in answer["msg"]
    assert net.agrees()


def test_exhausted_second_set_leaves_nothing_of_the_first(net):
    net.ipam["ranges"][1][0] = {"subnet": "fd00::/128"}
    net.add("a")
    answer = net.call("ADD", "b")
    assert answer["code"] == 103
    assert "ipam.ranges[1] (fd00::/128): all 1 addresses are held" in answer["msg"]
    assert list(net.leases()) == ["a:net1"]
    assert net.agrees()


def test_more_held_than_are_asked_one_by_one(net):
    net.ipam = {"subnet": "10.0.0.0/24"}
    given = [net.add(f"c{i}")[0] for i in range(253)]
    assert len(set(given)) == 253
    (net.dir / "cursor").unlink()
    assert net.call("ADD", "last")["code"] == 103
    net.call("DEL", "c250")
    assert net.add("last") == (given[250],)


# DEL


def test_delete_is_idempotent(net):
    net.add("a")
    kept = net.add("b")
    for _ in range(2):
        assert net.call("DEL", "a") == {}
        assert net.leases() == {"b:net1": kept}
        assert net.agrees()


def test_delete_of_a_network_never_seen_makes_nothing(net):
    assert net.call("DEL") == {}
    assert net.gc() == {}
    assert not list(net.state.iterdir())


@pytest.mark.parametrize(
    "ipam",
    [
        {"ranges": "nonsense", "foo": 1},  # edited since, and wrong
        {"subnet": "192.168.0.0/24"},  # edited since
        None,
    ],
)
def test_delete_does_not_need_the_ranges(net, ipam):
    net.add()
    net.ipam = ipam
    assert net.call("DEL") == {}
    assert net.leases() == {}
    assert net.agrees()


# CHECK


def test_check(net):
    answer = net.call("ADD")
    assert net.call("CHECK") == {}
    assert net.call("CHECK", prevResult=answer) == {}


def test_check_of_nothing(net):
    assert net.call("CHECK")["code"] == 107
    assert not list(net.state.iterdir())
    net.add("another")
    assert net.call("CHECK")["code"] == 107


@pytest.mark.parametrize(
    ("ips", "code"),
    [
        ([{"address": "10.0.0.2/24"}, {"address": "fd00::2/64"}, {"address": "1.2.3.4/8"}], 0),  # others' are welcome
        ([{"address": "10.0.0.2/24"}], 107),  # one of ours is not there
        ([], 107),
        ([{"address": "x"}], 7),
    ],
)
def test_check_against_prev_result(net, ips, code):
    net.add()
    assert net.call("CHECK", prevResult={"cniVersion": "1.1.0", "ips": ips}).get("code", 0) == code


def test_check_finds_a_link_astray(net):
    net.add()
    (net.dir / "addresses" / "10.0.0.2").unlink()
    answer = net.call("CHECK")
    assert answer["code"] == 107
    assert "10.0.0.2" in answer["msg"]
    net.add()
    assert net.call("CHECK") == {}, "ADD puts it back"


# STATUS


def test_status(net):
    net.ipam["ranges"][1][0]["subnet"] = "fd00::/128"
    assert net.call("STATUS") == {}
    net.add()
    answer = net.call("STATUS")
    assert answer["code"] == 50
    assert "ipam.ranges[1]" in answer["msg"]
    net.ipam["ranges"][0][0]["subnet"] = "10.1"
    assert net.call("STATUS")["code"] == 7


def test_status_where_nothing_can_be_written(net):
    assert net.call("STATUS", stateDir="/proc/hpn")["code"] == 50


# GC


def test_gc_releases_what_is_not_valid(net):
    held = {cid: net.add(cid) for cid in ("a", "b", "c")}
    assert net.gc(("b", "net1"), ("c", "another-if"), ("unknown", "net1")) == {}
    assert net.leases() == {"b:net1": held["b"]}
    assert net.agrees()


def test_gc_without_a_list_releases_other_boots_only(net):
    net.add("old")
    kept = net.add("new")
    of_another_boot(net, "old")
    assert net.call("GC") == {}
    assert net.leases() == {"new:net1": kept}
    assert net.agrees()


def test_gc_goes_on_after_an_error(net):
    for cid in ("a", "b", "c"):
        net.add(cid)
    damaged(net, "b")
    answer = net.gc()
    assert answer["code"] == 108
    assert net.leases() == {}
    assert net.agrees()
    assert net.gc() == {}


# The index is worth what leases/ says


@pytest.mark.parametrize("mark", [None, "", "0b5e1d8f", "00000000-0000-0000-0000-000000000000", b"\xff"])
def test_index_not_of_this_boot_is_made_anew(net, mark):
    a, b = net.add("a"), net.add("b")
    (net.dir / "addresses" / b[0]).unlink()  # never reached the disk
    (net.dir / "addresses" / "10.0.0.77").symlink_to("../leases/gone:net1.json")  # its removal did not
    (net.dir / "leases" / "x:net1.json.tmp").write_text("{")
    if mark is None:
        (net.dir / "index").unlink()
    else:
        (net.dir / "index").write_bytes(mark if isinstance(mark, bytes) else mark.encode())
    c = net.add("c")
    assert net.leases() == {"a:net1": a, "b:net1": b, "c:net1": c}
    assert len({*a, *b, *c}) == 6
    assert net.agrees()


# Leases that cannot be read


def test_unreadable_lease_keeps_its_addresses_until_deleted(net):
    a = net.add("a")
    damaged(net, "a")
    (net.dir / "index").unlink()
    reply = net.reply("ADD", "b")
    assert any("leases/a:net1.json" in line for line in reply.log), "the one who finds it says so"
    assert net.index().keys() >= set(a)
    assert [p.name for p in (net.dir / "quarantine").iterdir()] == ["a:net1.json.0"]
    assert net.call("ADD", "c", args=f"IP={a[0]}")["code"] == 102
    answer = net.call("ADD", "a")
    assert answer["code"] == 108
    assert "delete the attachment" in answer["msg"]
    assert net.call("CHECK", "a")["code"] == 107
    answer = net.call("DEL", "a")
    assert answer["code"] == 108
    assert a[0] in answer["msg"]
    assert net.call("DEL", "a") == {}
    assert net.agrees()
    assert net.add("a", args=f"IP={a[0]}")[0] == a[0]
    assert net.add("a")[0] == a[0], "what is in quarantine from before is no obstacle"


@pytest.mark.parametrize(
    "damage",
    [
        b"",  # a power cut, had the write not been synced
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"schema": 99, "sha256": "", "body": {}}',  # of a newer version
    ],
)
@pytest.mark.parametrize("first", ["ADD", "CHECK", "DEL", "GC"])
def test_unreadable_lease_whoever_finds_it(net, damage, first):
    a, b = net.add("a"), net.add("b")
    net.lease("a").write_bytes(damage)
    answer = net.gc(("b", "net1")) if first == "GC" else net.call(first, "a")
    assert answer["code"] == {"CHECK": 107}.get(first, 108)
    assert (net.dir / "quarantine" / "a:net1.json.0").read_bytes() == damage
    if first in ("ADD", "CHECK"):
        assert set(net.index()) == {*a, *b}
        assert net.call("DEL", "a")["code"] == 108
    assert set(net.index()) == set(b)
    assert net.call("DEL", "a") == {}


def test_whole_document_that_is_no_lease(net):
    net.add("a")
    durable.write(net.lease("a"), {"hello": 1})
    assert net.call("DEL", "a")["code"] == 108
    assert net.index() == {}


def test_gc_releases_unreadable_ones_that_are_not_valid(net):
    a, b = net.add("a"), net.add("b")
    damaged(net, "a")
    damaged(net, "b")
    (net.dir / "index").unlink()
    net.add("c")
    assert net.gc(("b", "net1"), ("c", "net1"))["code"] == 108
    assert set(a).isdisjoint(net.index())
    assert set(b) <= set(net.index())
    assert net.gc(("b", "net1"), ("c", "net1")) == {}


# The file system


@pytest.mark.parametrize("directory", ["/proc/hpn", "/dev/null"])
def test_nowhere_to_write(net, directory):
    answer = net.call("ADD", stateDir=directory)
    assert answer["code"] == 5
    assert directory in answer["msg"]


def test_full_disk(net):
    kept = net.add("a")

    def full():
        # What a full disk does: names can be made, data cannot be written.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        answer, status = net.call("ADD", "b"), net.call("STATUS")
        os._exit(0 if answer.get("code") == 5 and "leases/b:net1.json" in answer["msg"] and status["code"] == 50 else 1)

    child = os.fork()
    if child == 0:
        try:
            full()
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert net.leases() == {"a:net1": kept}
    assert net.agrees()
    assert net.call("DEL", "b") == {}
    assert net.add("b")


def test_full_disk_does_not_stop_delete(net):
    net.add("a")
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            os._exit(0 if net.call("DEL", "a") == {} else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert net.leases() == {}
    assert net.index() == {}


def test_busy_store_says_which_lock(net):
    net.add()
    with FileLock(net.dir / "lock"), pytest.raises(TryAgain, match=r"net/lock was held by others for 0\.1 s"):
        FileStore(net.dir, [], patience=0.1).release(Key("c", "net1"))
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
    net = Net(tmp_path, {"subnet": subnet})
    net.add("warm")
    started = time.monotonic()
    net.add()
    assert net.call("STATUS") == {}
    assert time.monotonic() - started < 0.5
