"""On a full or read-only disk nothing is allocated and anything can be released; with free space everything works
again."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster_nodes import Cluster
from support.disks import filled, mounted, read_only, writable
from support.ipam_calls import Net
from support.topology import Host, Pod

from ipam.stores.files.lines import GROWTH

RANGES = {"ranges": [[{"subnet": "10.0.0.0/16"}], [{"subnet": "fd00::/64"}]]}
SIZES = {"tmpfs": "4m", "ext4": "16m"}


@pytest.fixture(params=SIZES)
def disk(request: pytest.FixtureRequest, tmp_path: Path, host: Host) -> Iterator[Path]:
    kind = str(request.param)
    if kind != "tmpfs" and subprocess.run(["losetup", "--find"], capture_output=True, check=False).returncode:
        pytest.skip("no loop device")
    with mounted(tmp_path / "disk", SIZES[kind], kind) as folder:
        yield folder


@pytest.fixture
def net(disk: Path) -> Net:
    return Net(disk / "state", RANGES)


@pytest.mark.parametrize("there", [False, True], ids=["no directory", "an empty directory"])
def test_the_first_add(disk: Path, net: Net, there: bool) -> None:
    if there:
        net.dir.mkdir(0o700, parents=True)
    filler = filled(disk)
    for _ in range(2):
        answer = net.call("ADD")
        assert (answer["code"], str(net.state) in answer["msg"]) == (5, True)
        assert net.call("STATUS")["code"] == 50
        assert net.call("DEL") == {}, "there is nothing to free"
        assert net.call("GC") == net.gc() == {}
        assert net.call("CHECK")["code"] == 107
    filler.unlink()
    assert net.add() == ("10.0.0.2", "fd00::2")
    assert net.agrees()


def test_no_line_is_free(disk: Path, net: Net) -> None:
    given = {f"c{i}:net1": net.add(f"c{i}") for i in range(GROWTH - 1)}
    filler = filled(disk)
    before = net.file.read_bytes()
    for _ in range(2):
        assert net.call("ADD", "new")["code"] == 5
        assert net.call("ADD", "new", args="IP=10.0.9.9")["code"] == 5
        assert net.file.read_bytes() == before
        assert net.add("c7") == given["c7:net1"]
        assert net.call("CHECK", "c7") == {}
    for i in range(GROWTH - 1):
        assert net.call("DEL", f"c{i}") == {}
        del given[f"c{i}:net1"]
        assert net.leases() == given
    assert net.add("new")
    filler.unlink()
    assert net.call("DEL", "new") == {}
    net.add("another")
    assert net.agrees()


def test_a_line_is_free_and_the_index_has_no_room(disk: Path, net: Net) -> None:
    """If a line is free but the index has no room, ADD and DEL still work.  The index may be stale, and must block no
    command."""
    given = {"a:net1": net.add("a")}
    filler = filled(disk)
    for i in range(12):
        cid = f"c{i}"
        given[f"{cid}:net1"] = net.add(cid, args=f"IP=10.0.{20 * i}.9")  # each block of 4096 numbers has its page
        assert net.leases() == given
    assert net.call("ADD", "new", args="IP=10.0.20.9")["code"] == 102
    assert len({address for held in given.values() for address in held}) == 2 * len(given)
    assert net.call("DEL", "a") == {}
    assert net.gc(*((f"c{i}", "net1") for i in range(6))) == {}
    assert net.leases() == {key: held for key, held in given.items() if key in {f"c{i}:net1" for i in range(6)}}
    assert net.call("DEL", "c0") == {}
    assert net.call("STATUS") == {}
    filler.unlink()
    for i in range(6):
        assert net.call("DEL", f"c{i}") == {}
    net.add("another")
    assert net.leases().keys() == {"another:net1"}
    assert net.agrees()


def test_the_index_is_to_be_made_anew(disk: Path, net: Net) -> None:
    """DEL works without the index, which is lost after a reboot."""
    for cid in ("a", "b"):
        net.add(cid)
    (net.dir / "index").unlink()
    filler = filled(disk)
    assert net.call("DEL", "a") == {}
    assert net.leases().keys() == {"b:net1"}
    filler.unlink()
    assert net.call("DEL", "b") == {}
    assert net.agrees()


def test_what_is_kept_back(disk: Path, net: Net) -> None:
    """A reserved address takes the lease's own line, so its DEL works."""
    net.ipam = {**RANGES, "releaseCooldown": 1000, "sticky": 2000}
    pod = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p"
    given = net.add("a", args=pod)
    filler = filled(disk)
    assert net.call("DEL", "a") == {}
    assert net.leases() == {}
    assert net.call("ADD", "b", args=f"IP={given[0]};K8S_POD_NAMESPACE=ns;K8S_POD_NAME=q")["code"] == 102
    assert net.add("c", args=pod) == given
    filler.unlink()
    assert net.call("DEL", "c") == {}
    assert net.agrees()


def test_no_line_is_free_for_the_rest_of_what_is_kept_back(disk: Path, net: Net) -> None:
    """A reserved address with long names takes two lines.  Its DEL works, and the address is free."""
    net.ipam = {**RANGES, "sticky": 2000}
    pod = f"K8S_POD_NAMESPACE={'n' * 250};K8S_POD_NAME={'p' * 60}"
    given = net.add("a", args=pod)
    net.ipam = RANGES
    for i in range(GROWTH - 3):
        net.add(f"c{i}")
    filler = filled(disk)
    assert net.call("ADD", "new")["code"] == 5
    assert net.call("DEL", "a") == {}
    assert (net.kept(), "a:net1" in net.leases()) == (set(), False)
    assert net.add("b", args=f"IP={given[0]}")[0] == given[0]
    filler.unlink()
    assert net.agrees()


def test_read_only(disk: Path, net: Net) -> None:
    given = net.add("a")
    before = net.file.read_bytes()
    read_only(disk)
    for command, cid in (("ADD", "b"), ("ADD", "a"), ("DEL", "a"), ("GC", "a")):
        answer = net.call(command, cid)
        assert (answer["code"], "ead-only" in answer["msg"]) == (5, True), command
    assert net.call("STATUS")["code"] == 50
    assert net.file.read_bytes() == before
    writable(disk)
    assert net.leases() == {"a:net1": given}
    assert net.call("DEL", "a") == {}
    assert net.agrees()


def test_an_attachment(disk: Path, host: Host, pod: Pod) -> None:
    """DEL of a whole attachment works, since removing its record needs no room either."""
    host.state = disk / "state"
    host.ok("ADD", pod)
    filler = filled(disk)
    before = host.picture(pod)
    assert host.refused("ADD", pod, CNI_IFNAME="hpn1")["code"] == 5
    assert host.picture(pod) == before
    host.ok("DEL", pod)
    assert pod.links() == set()
    assert host.state_files() == set()
    filler.unlink()
    host.ok("ADD", pod)
    host.ok("DEL", pod)
    assert host.state_files() == set()


def test_no_block_is_claimed(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADD claims no block of a shared pool, because it writes the claim to disk first."""
    cluster = Cluster(tmp_path, monkeypatch)
    (disk / "node1").mkdir()
    (tmp_path / "node1").symlink_to(disk / "node1")
    one = cluster.node("node1")
    filler = filled(disk)
    assert one.refused("ADD", "a")[0] == 5
    assert cluster.owners() == {}
    filler.unlink()
    assert one.add("a")
    assert list(cluster.owners().values()) == ["node1"]
