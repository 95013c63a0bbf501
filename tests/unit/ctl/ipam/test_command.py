"""hpn ipam: the leases that it shows, the addresses that it releases, and the damage that it reports."""

import json

import pytest
from support.ipam_calls import Net

from ctl.main import main

SMALL = {"ranges": [[{"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.9"}], [{"subnet": "fd00::/64"}]]}
POD = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p"


@pytest.fixture
def net(tmp_path):
    return Net(tmp_path, json.loads(json.dumps(SMALL)))


@pytest.fixture
def hpn(net, capsys):
    """Return a function that runs the command, checks its status, and returns its output."""

    def run(*words, status=0):
        command, *rest = words
        assert main(["hpn", "ipam", command, "--data-dir", str(net.state / "ipam"), *rest]) == status, (
            capsys.readouterr()
        )
        out, err = capsys.readouterr()
        return out or err

    return run


def of_another_boot(net, cid):
    net.rewrite(cid, boot="another")


def test_show_nothing(hpn, net):
    folder = net.state / "ipam"
    folder.mkdir()
    assert hpn("show") == f"no address is held (searched {folder})\n"
    assert not list(folder.iterdir())


@pytest.mark.parametrize("words", [["show"], ["lease"], ["gc"], ["verify"], ["release", "net", "1:hpn0"]])
def test_a_directory_that_is_not_there(hpn, net, words):
    """A missing directory is an error, because a misspelt path would otherwise show no leases and no problem."""
    said = hpn(*words, status=1)
    assert said == (
        f"hpn ipam: --data-dir {net.state}/ipam: No such file or directory; give a configuration's dataDir\n"
    )
    assert not list(net.state.iterdir())


def test_show_json(hpn, net):
    net.add("a", args=POD)
    net.add("b")
    of_another_boot(net, "b")
    (network,) = json.loads(hpn("show", "--json"))["networks"]
    assert network["network"] == "net"
    states = {"held": 1, "dead": 1, "cooling": 0, "sticky": 0, "conflict": 0, "doubtful": 0, "unreadable": 0}
    assert network["pools"] == [
        {"ranges": ["10.0.0.2-10.0.0.9"], "size": 8, **states, "free": 6},
        {"ranges": ["fd00::2-fd00::ffff:ffff:ffff:ffff"], "size": 2**64 - 2, **states, "free": 2**64 - 4},
    ]
    assert [(lease["pod"], lease["addresses"], lease["state"]) for lease in network["leases"]] == [
        ("ns/p", ["10.0.0.2/24", "fd00::2/64"], "held"),
        ("", ["10.0.0.3/24", "fd00::3/64"], "dead"),
    ]


@pytest.mark.parametrize("words", [["show"], ["lease"], ["gc", "--dry-run"], ["gc"], ["release", "net", "a\x1b:x"]])
def test_names_that_a_terminal_would_obey(hpn, net, words):
    net.add("a", args="IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=\x1b[31m")
    of_another_boot(net, "a")
    said = hpn(*words, status=1 if words[0] == "release" else 0)
    assert "\\x1b" in said
    assert "\x1b" not in said


def test_show_for_people(hpn, net):
    net.add("a", args=POD)
    net.add("b")
    net.add("c")
    of_another_boot(net, "b")
    net.overwrite(net.line("c"), b"#")
    lines = hpn("show").splitlines()
    assert lines[:3] == [f"net  ({net.dir})", "  10.0.0.2-10.0.0.9", f"    [####xxxx{'.' * 22}] 1 held, 1 dead, 6 free"]
    assert lines[4] == f"    [#x{'.' * 28}] 1 held, 1 dead, 2^63 free"
    assert lines[5].split() == ["ADDRESS", "POD", "IFNAME", "STATE", "SINCE", "CONTAINER"]
    assert lines[6].split()[:5] == ["10.0.0.2,", "fd00::2", "ns/p", "net1", "held"]
    assert lines[7].split()[2:5] == ["-", "net1", "dead"]
    assert "lines [3] cannot be read" in lines[8]


def test_long_leases_are_shown_whole(hpn, net):
    net.ipam = {"ranges": [[{"subnet": f"fd00:{i}::/64"}] for i in range(1, 20)]}
    held = net.add("a" * 220)
    (lease,) = json.loads(hpn("lease", "a" * 220, "--json"))["leases"]
    assert [address.partition("/")[0] for address in lease["addresses"]] == list(held)


def test_addresses_outside_the_ranges(hpn, net):
    """After a change of ranges the leases stay, the latest ADD's ranges apply, and that ADD reports the change once."""
    net.ipam = {"subnet": "10.0.0.0/24"}
    net.add("a")
    net.ipam = {"subnet": "10.1.0.0/30"}
    reply = net.reply("ADD", "b")
    assert [line for line in reply.log if "10.0.0.2-10.0.0.254 to 10.1.0.2; " in line], reply.log
    assert not net.reply("ADD", "b").log
    pools = json.loads(hpn("show", "--json"))["networks"][0]["pools"]
    assert [(pool["ranges"], pool["held"], pool["free"]) for pool in pools] == [
        (["10.1.0.2"], 1, 0),
        ([], 1, None),
    ]
    assert "outside its ranges" in hpn("show")


def test_two_configurations_of_one_name(net):
    """Two rails share a network name by mistake: each allocates from its own ranges, and neither releases the other's
    leases."""
    one, other = {"subnet": "10.0.0.0/24"}, {"subnet": "10.1.0.0/24"}
    given, warned = {}, []
    for i in range(6):
        net.ipam = (one, other)[i % 2]
        given[f"c{i}:net1"] = net.add(f"c{i}")
        warned += net.reply("ADD", f"c{i}", "again").log
        given[f"c{i}:again"] = net.leases()[f"c{i}:again"]
    assert warned == [], "said once, by the ADD that came with others"
    assert net.leases() == given
    assert {address.rpartition(".")[0] for key, (address,) in given.items() if key[1] in "024"} == {"10.0.0"}
    assert {address.rpartition(".")[0] for key, (address,) in given.items() if key[1] in "135"} == {"10.1.0"}
    net.ipam = one
    assert any("its ranges changed from 10.1.0.2" in text for text in net.reply("ADD", "c9").log)
    assert net.call("CHECK", "c1") == {}, "another's, and its own configuration is not asked"
    assert net.call("DEL", "c1") == {}
    assert net.gc(*((key.split(":")[0], key.split(":")[1]) for key in given if key != "c1:net1")) == {}
    del given["c1:net1"]
    assert net.leases() == given
    assert net.agrees()


@pytest.mark.parametrize("what", ["a", "a:net1", "10.0.0.2", "fd00::2", "ns/p"])
def test_lease(hpn, net, what):
    net.add("a", args=POD)
    net.add("b")
    found = json.loads(hpn("lease", what, "--json"))["leases"]
    assert [(lease["network"], lease["containerID"]) for lease in found] == [("net", "a")]
    assert "addresses    10.0.0.2/24, fd00::2/64\n" in hpn("lease", what)
    assert len(json.loads(hpn("lease", "--json"))["leases"]) == 2


def test_times_are_dates(hpn, net, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    net.ipam["releaseCooldown"] = 60
    net.add("a", args=POD)
    net.call("DEL", "a")
    said = hpn("lease", "ns/p")
    assert "released     2027-01-15 08:00:00Z\n" in said
    assert "until        2027-01-15 08:01:00Z\n" in said
    assert json.loads(hpn("lease", "ns/p", "--json"))["leases"][0]["until"] == 1_800_000_060


CONTAINER = "3fa9c1d2e4b5" + "0123456789abcdef" * 3 + "0123"


def test_messages_name_the_pod(net):
    """Messages name the pod, and a container by the id's beginning as in `crictl ps`."""
    net.add(CONTAINER, args=POD)
    answer = net.call("ADD", "b", args="IP=10.0.0.2")
    assert "is held by net1 of ns/p, container 3fa9c1d2e4b5, network net; request another" in answer["msg"]
    net.overwrite(net.line(CONTAINER), b"#")
    for command in ("CHECK", "ADD", "DEL", "CHECK"):
        answer = net.call(command, CONTAINER)
        assert "net1 of container 3fa9c1d2e4b5, network net" in answer["msg"]
        assert CONTAINER not in json.dumps(answer)


def test_no_such_lease(hpn, net):
    net.add("a")
    assert "no lease of 10.9.9.9" in hpn("lease", "10.9.9.9", status=1)


def test_release(hpn, net):
    net.add("a")
    net.add("dead")
    of_another_boot(net, "dead")
    assert "holds no address" in hpn("release", "net", "b:net1", status=1)
    assert "no network other" in hpn("release", "other", "a:net1", status=1)
    assert "may be alive and use 10.0.0.2, fd00::2" in hpn("release", "net", "a:net1", status=1)
    assert "released 10.0.0.3, fd00::3" in hpn("release", "net", "dead:net1")
    assert list(net.leases()) == ["a:net1"]
    assert "released 10.0.0.2" in hpn("release", "net", "a:net1", "--force")
    assert net.leases() == {}
    assert net.agrees()


LONG, LIKE = "abcdef0123456789" * 4, "abcdef012345" + "f" * 52


@pytest.mark.parametrize("what", ["abcdef012345", "abcdef012345:net1", "p", "ns/p", "ns/p:net1", "10.0.0.2"])
def test_it_is_named_as_it_is_shown(hpn, net, what):
    net.add(LONG, args=POD)
    net.add("b")
    assert "abcdef012345\n" in hpn("show")
    assert [lease["containerID"] for lease in json.loads(hpn("lease", what, "--json"))["leases"]] == [LONG]
    assert "may be alive and use 10.0.0.2" in hpn("release", "net", what, status=1)
    assert f"released 10.0.0.2, fd00::2 of {LONG}:net1" in hpn("release", "net", what, "--force")
    assert list(net.leases()) == ["b:net1"]


@pytest.mark.parametrize("what", ["p", "abcdef012345", "p:net1", "abcdef01234", "q", ":net1", "", "abcdef012345:net2"])
def test_what_fits_several_or_none_releases_nothing(hpn, net, what):
    """An ambiguous or unknown name releases nothing; here two namespaces have a pod of one name, and the ids begin
    alike."""
    net.add(LONG, args=POD)
    net.add(LIKE, args=POD.replace("=ns", "=other"))
    before = net.leases()
    said = hpn("release", "net", what, "--force", status=1)
    several = what in ("p", "abcdef012345", "p:net1")
    assert said.startswith(f"{what} may be {LONG}:net1 or {LIKE}:net1" if several else f"{what} holds no address")
    assert net.leases() == before


def test_a_whole_name_is_no_others_beginning(hpn, net):
    """A container's id may be the beginning of another's; the whole key selects one."""
    net.add(LONG[:12])
    net.add(LONG)
    assert "may be" in hpn("release", "net", LONG[:12], "--force", status=1)
    hpn("release", "net", f"{LONG[:12]}:net1", "--force")
    assert list(net.leases()) == [f"{LONG}:net1"]


def test_gc(hpn, net):
    net.add("a")
    net.add("dead", args=POD)
    of_another_boot(net, "dead")
    before = net.file.read_bytes()
    said = "net: 10.0.0.3/24, fd00::3/64 of dead net1 ns/p\n"
    assert hpn("gc", "--dry-run") == "would release " + said
    assert net.file.read_bytes() == before
    assert hpn("gc", "net") == "released " + said
    assert list(net.leases()) == ["a:net1"]
    assert hpn("gc") == "nothing is provably dead\n"


@pytest.mark.parametrize("command", [["ipam", "gc"], ["gc", "--state-dir"], ["repair", "--state-dir"]])
def test_gc_says_what_it_did_and_what_it_could_not(net, capsys, tmp_path, command):
    net.add("dead", args=POD)
    of_another_boot(net, "dead")
    bad = net.dir.parent / "bad"
    bad.mkdir()
    (bad / "leases").write_text("of another program")
    bad.chmod(0o755)
    where = [f"{tmp_path}"] if command[-1] == "--state-dir" else []
    assert main(["hpn", *command, *where, "--data-dir", f"{net.dir.parent}"]) == 1
    done, failed = capsys.readouterr().out.splitlines()
    assert done == "released net: 10.0.0.2/24, fd00::2/64 of dead net1 ns/p"
    assert failed.startswith(f"not all addresses of network bad could be released: directory {bad} has mode 755")
    assert net.leases() == {}


def test_verify(hpn, net):
    net.add("a")
    net.add("b")
    assert hpn("verify") == "1 networks, 2 leases: no problem found\n"
    # The index is trusted and wrong: it lists a held address as free.
    index = net.dir / "index"
    page = index.read_bytes().rindex(b"\x01\x00\x00\x80")
    with index.open("r+b") as f:
        f.seek(page)
        f.write(bytes(4))
    assert "of line 1 is missing" in hpn("verify", status=1)


def test_verify_reports_damage_and_quarantine(hpn, net):
    net.add("a")
    net.add("b")
    net.overwrite(net.line("b"), b"#")
    assert "net: line 2: checksum does not match" in hpn("verify", status=1)
    net.call("ADD", "b")
    said = hpn("verify", status=1)
    assert "checksum" not in said
    assert f"{net.dir}/quarantine/leases.0 holds unreadable leases" in said


def test_verify_finds_an_address_given_twice(hpn, net):
    net.add("a")
    net.add("b")
    net.rewrite("b", addresses=["10.0.0.2/24"])
    assert "net: 10.0.0.2 is in 2 leases" in hpn("verify", status=1)


def test_wrong_options(hpn):
    for words in ([], ["shew"], ["release", "net"], ["gc", "--jsn"]):
        with pytest.raises(SystemExit) as ended:
            main(["hpn", "ipam", *words])
        assert ended.value.code == 2
