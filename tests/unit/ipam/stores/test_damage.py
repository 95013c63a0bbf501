"""A store with foreign writes: no lease is dropped silently, no address has two owners or stays held for ever."""

import json
import os
from dataclasses import replace

import pytest
from support.ipam_calls import Net

from ipam import inventory
from ipam import main as program
from ipam.stores import access, none_gone
from ipam.stores.files.codec import BLANK, to_line

IPAM = {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]}
DAMAGE = [b"\0" * 512, b"#", b"\xff" * 512, b"[]".ljust(511) + b"\n", b'{"containerID":"x"}'.ljust(511) + b"\n"]
VALID = [to_line({"hello": 1}), to_line({"containerID": 7, "ifname": [], "addresses": ["x"]})]


@pytest.fixture
def net(tmp_path):
    return Net(tmp_path, json.loads(json.dumps(IPAM)))


def quarantined(net):
    return sorted(path.name for path in (net.dir / "quarantine").iterdir())


@pytest.mark.parametrize("damage", [*DAMAGE, *VALID])
@pytest.mark.parametrize("first", ["ADD", "CHECK", "DEL", "GC", "another's ADD", "STATUS"])
def test_a_lease_that_cannot_be_read(net, damage, first):
    a, b = net.add("a"), net.add("b")
    line = net.line("a")
    net.overwrite(line, damage)
    found = net.lines()[line]
    logged = []
    match first:
        case "GC":
            assert net.gc(("b", "net1"))["code"] == 108
        case "another's ADD" | "STATUS":
            reply = net.reply(first.split()[-1], "c")
            assert reply.exit_code == 0
            logged = [text for text in reply.log if "could not be read" in text]
            assert logged, "who finds it says so"
        case _:
            assert net.call(first, "a")["code"] == {"CHECK": 107}.get(first, 108)
    assert (net.dir / "quarantine" / quarantined(net)[0]).read_bytes() == found
    if first not in ("GC", "DEL"):
        assert net.held() >= {*a, *b}, "nobody else gets them"
        assert net.call("ADD", "d", args=f"IP={a[0]}")["code"] == 102
        assert net.call("ADD", "a")["code"] == 108
        assert net.call("CHECK", "a")["code"] == 107
        answer = net.call("DEL", "a")
        assert answer["code"] == 108
        assert a[0] in answer["msg"]
        assert a[1] in answer["msg"]
    assert net.call("DEL", "a") == {}
    assert net.held().isdisjoint(a)
    assert net.held() >= set(b)
    assert net.agrees()
    assert net.add("a", args=f"IP={a[0]}")[0] == a[0]
    assert net.add("a")[0] == a[0], "what is in quarantine from before is no obstacle"
    assert any("quarantine has" in text for text in net.reply("STATUS").log), "until someone has looked"


def test_one_that_cannot_be_read_and_may_be_in_use(net):
    """Two failures at once: the lease is unreadable, and its interface's removal is unconfirmed."""
    a = net.add("a")
    net.overwrite(net.line("a"), b"#")
    request = replace(net.request("DEL", "a"), in_use=True)
    assert json.loads(program.run(request).stdout)["code"] == 108
    assert net.held() == set(a)
    assert program.run(request).exit_code == 0
    assert net.held() == set(a)
    assert set(a).isdisjoint(net.add("b"))
    assert net.agrees()


@pytest.mark.parametrize("valid", [("a",), ()])
def test_gc_goes_by_the_key_of_one_that_cannot_be_read(net, valid):
    a, b = net.add("a"), net.add("b")
    net.overwrite(net.line("a"), b"#")
    assert net.call("GC") == {}, "without a list, of this boot"
    answer = net.gc(*((cid, "net1") for cid in valid))
    assert answer.get("code") == (None if valid else 108)
    assert net.held() == (set(a) if valid else set())
    assert net.held().isdisjoint(b)
    assert net.gc() == {} or valid
    assert net.agrees()


def test_gc_without_a_list_releases_what_an_older_boot_could_not_read(net):
    net.add("a")
    net.overwrite(net.line("a"), b"#")
    net.call("CHECK", "a")
    (number,) = (i for i, line in enumerate(net.lines()) if b"unreadable" in line)
    body = json.loads(net.lines()[number])
    del body["crc"]
    net.replace(number, body | {"boot": "another"})
    assert net.call("GC")["code"] == 108
    assert net.held() == set()
    assert net.call("GC") == {}


@pytest.mark.parametrize("damage", DAMAGE)
def test_after_a_reboot_nothing_is_known_of_it(net, damage):
    a, b = net.add("a"), net.add("b")
    line = net.line("a")
    net.overwrite(line, damage)
    found = net.lines()[line]
    net.another_boot()
    reply = net.reply("ADD", "c")
    assert reply.exit_code == 0
    assert net.leases().keys() == {"b:net1", "c:net1"}
    assert net.held() >= set(b)
    assert net.held().isdisjoint(a)
    if damage != b"\0" * 512:  # what a file system shows where nothing was ever written
        assert any("could not be read" in text for text in reply.log)
        assert (net.dir / "quarantine" / "leases.0").read_bytes() == found
    assert net.agrees()


@pytest.mark.parametrize("size", [0, 100, 512, 512 * 2, 512 * 2 + 30, 512 * 3 + 100, 512 * 100])
def test_a_file_cut_short(net, size):
    given = {cid: net.add(cid) for cid in ("a", "b", "c")}
    os.truncate(net.file, size)
    whole = [cid for i, cid in enumerate(given, 1) if size >= (i + 1) * 512]
    reply = net.reply("ADD", "d")
    assert reply.exit_code == 0
    d = tuple(ip["address"].partition("/")[0] for ip in json.loads(reply.stdout)["ips"])
    assert net.held() == {address for held in [*given.values(), d] for address in held}, "none of them is given again"
    assert net.leases().keys() == {f"{cid}:net1" for cid in [*whole, "d"]}
    if len(whole) < 3:
        assert any("could not be read" in text for text in reply.log)
    for cid in given:
        assert net.call("DEL", cid).get("code") == (None if cid in whole else 108)
        assert net.call("DEL", cid) == {}
    assert net.held() == set(d)
    assert net.agrees()


@pytest.mark.parametrize("content", [b"hello\n", b"\x7fELF" * 1000, json.dumps({"10.0.0.2": "a"}).encode() + b"\n"])
@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_a_file_of_something_else(net, content, command):
    a = net.add("a")
    net.file.write_bytes(content)
    answer = net.call(command, "b")
    assert answer["code"] == 108
    assert "quarantine/leases.0" in answer["msg"]
    assert (net.dir / "quarantine" / "leases.0").read_bytes() == content
    assert net.add("b")
    assert net.held() >= set(a)
    assert net.call("DEL", "a")["code"] == 108
    assert net.held().isdisjoint(a)
    assert net.agrees()


def test_a_file_of_a_newer_version(net):
    net.add("a")
    content = to_line({"schema": 2}) + b"".join(net.lines()[1:])
    net.file.write_bytes(content)
    answer = net.call("ADD", "b")
    assert answer["code"] == 108
    assert "schema 2, this version reads 1" in answer["msg"]
    assert (net.dir / "quarantine" / "leases.0").read_bytes() == content
    assert net.add("b")
    assert net.agrees()


def test_only_the_first_line_is_damaged(net):
    a = net.add("a")
    net.overwrite(0, b"\xff" * 512)
    assert net.add("b")
    assert net.leases()["a:net1"] == a
    assert net.agrees()


@pytest.mark.parametrize("how", ["gone", "an old copy", "another's place"])
def test_a_file_that_the_index_knows_better(net, how):
    """The intent of a removal is unknown, so living pods keep their addresses."""
    a = net.add("a")
    before = net.file.read_bytes()
    b = net.add("b")
    net.file.unlink()
    if how != "gone":
        net.file.write_bytes(before)
    assert set(net.add("c")).isdisjoint({*a, *b})
    assert net.call("DEL", "b")["code"] == 108
    assert net.call("DEL", "a").get("code") == (108 if how == "gone" else None)
    assert net.leases().keys() == {"c:net1"}
    assert net.agrees()


@pytest.mark.parametrize("first", ["DEL", "CHECK", "GC", "gc"])
def test_a_removed_file_releases_nothing_silently(net, first):
    """The index still knows the leases.  Each command that meets them finds them, not only ADD."""
    a, b = net.add("a"), net.add("b")
    net.file.unlink()
    assert access.networks(net.dir.parent) == ["net"], "and people are shown it"
    (shown,) = inventory.networks(net.dir.parent, none_gone)
    assert "leases: No such file" in shown.problem
    match first:
        case "DEL":
            answer = net.call("DEL", "a")
            assert (answer["code"], f"{a[0]}, {a[1]} released; repeat the call" in answer["msg"]) == (108, True)
        case "CHECK":
            assert net.call("CHECK", "a")["code"] == 107
        case "GC":
            assert net.gc(("b", "net1"))["code"] == 108
        case "gc":
            assert net.call("GC") == {}
    assert net.held() == ({*b} if first in ("DEL", "GC") else {*a, *b})
    assert net.add("c") not in (a, b)
    for name in ("a", "b"):
        net.call("DEL", name)
        assert net.call("DEL", name) == {}
    assert len(net.held()) == 2


def test_all_that_is_gone_is_forgotten(net):
    net.add("a")
    net.file.unlink()
    (net.dir / "index").unlink()
    assert net.call("DEL", "a") == {}
    assert net.add("b") == ("10.0.0.2", "fd00::2")
    assert net.leases().keys() == {"b:net1"}
    assert net.agrees()


@pytest.mark.parametrize("times", ["kept", "new"])
@pytest.mark.parametrize("how", ["blanked", "another's", "swapped", "before it", "its own before"])
def test_a_line_that_is_an_old_one(net, how, times):
    """For any content in its place: a living pod keeps its address, even if its key is unknown."""
    net.add("other")
    net.call("DEL", "other")
    net.add("a", args="IP=10.0.0.9")
    own, line = net.lines()[net.line("a")], net.line("a")
    a = net.add("a", args="IP=10.0.0.7")
    b = net.add("b")
    stat, lines = net.file.stat(), net.lines()
    match how:
        case "blanked":
            net.overwrite(line, BLANK)
        case "another's":
            net.overwrite(line, lines[net.line("b")])
        case "swapped":
            other = net.line("b")
            net.overwrite(line, lines[other])
            net.overwrite(other, lines[line])
        case "before it":
            net.overwrite(line, to_line({"containerID": "other", "ifname": "net1", "addresses": list(b), "n": 1,
                                      "boot": net.body("b")["boot"], "pod": "", "netns": "", "time": ""}))  # fmt: skip
        case _:
            net.overwrite(line, own)
    if times == "kept":
        os.utime(net.file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    for i in range(1, 20):
        assert set(net.add(f"c{i}")).isdisjoint({*a, *b})
    assert net.call("ADD", "d", args=f"IP={a[0]}")["code"] == 102
    assert net.call("DEL", "other") == {}
    assert net.call("ADD", "d", args=f"IP={b[0]}")["code"] == 102
    assert net.call("DEL", "a").get("code") == (None if how == "swapped" else 108)
    assert net.call("DEL", "b") == {}
    assert net.held().isdisjoint({*a, *b})
    assert net.agrees()


@pytest.mark.parametrize("reboot", [False, True])
def test_a_line_that_somebody_copied(net, reboot):
    a = net.add("a")
    net.overwrite(5, net.lines()[net.line("a")])
    if reboot:
        net.another_boot()
    reply = net.reply("ADD", "b")
    assert any("could not be read" in text for text in reply.log)
    assert net.leases()["a:net1"] == a
    assert net.agrees()
    assert net.call("DEL", "a") == {}
    assert net.held().isdisjoint(a)


@pytest.mark.parametrize("content", [None, b"", b"nonsense" * 1000, b"HPNIDX\0\1", "header", "zeros"])
def test_an_index_of_no_worth(net, content):
    a, b = net.add("a"), net.add("b")
    index = net.dir / "index"
    match content:
        case None:
            index.unlink()
        case "header":
            os.truncate(index, 512)
            net.another_boot()
        case "zeros":
            index.write_bytes(bytes(index.stat().st_size))
        case _:
            index.write_bytes(content)
    c = net.add("c")
    assert net.leases() == {"a:net1": a, "b:net1": b, "c:net1": c}
    assert len({*a, *b, *c}) == 6
    assert net.agrees()
