"""GID tables from a tree like /sys, and their evaluation."""

import os
import threading
import time
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import pytest

from base.kernel.gids import GidEntry, tables
from base.protocol.errors import GidTableFull, LinkUnavailable
from cni.features import gids
from cni.features.gids import Watch
from cni.models import Rdma

V1, V2 = "IB/RoCE v1", "RoCE v2"
V4, V6 = ip_address("10.56.0.2"), ip_address("fd00:56::2")
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


class Sys:
    """A RoCE device mlx5_0 with six entries on its port, and an InfiniBand device, mlx5_1."""

    def __init__(self, path: Path) -> None:
        self.port = path / "class/infiniband/mlx5_0/ports/1"
        for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
            (self.port / folder).mkdir(parents=True)
        (self.port / "link_layer").write_text("Ethernet\n")
        for index in range(6):
            self.put(index, EMPTY)
        (path / "class/infiniband/mlx5_1/ports/1").mkdir(parents=True)
        (path / "class/infiniband/mlx5_1/ports/1/link_layer").write_text("InfiniBand\n")
        self.root = os.open(path, os.O_PATH)

    def put(self, index: int, gid: object, kind: str = V2, netdev: str = "hpn0") -> None:
        for folder, text in (("gid_attrs/types", kind), ("gid_attrs/ndevs", netdev), ("gids", gid)):
            (self.port / folder / str(index)).write_text(f"{text}\n")

    def watch(self) -> Watch:
        return Watch(self.root, ["mlx5_0"], frozenset(e for t in tables(self.root, "mlx5_0") for e in t.entries))


@pytest.fixture
def sys(tmp_path: Path) -> Iterator[Sys]:
    sys = Sys(tmp_path)
    yield sys
    os.close(sys.root)


def test_an_interface_whose_name_is_no_text(sys: Sys) -> None:
    """It is that of rtnetlink and of directories."""
    sys.put(2, V6)
    (sys.port / "gid_attrs/ndevs/2").write_bytes(b"\xff\n")
    (table,) = tables(sys.root, "mlx5_0")
    assert [entry.netdev for entry in table.entries] == [os.fsdecode(b"\xff")]


def test_tables(sys: Sys) -> None:
    sys.put(2, gids.gid(V4), V1)
    sys.put(5, V6)
    (table,) = tables(sys.root, "mlx5_0")
    assert (table.length, table.free) == (6, 4)
    mapped = IPv6Address("::ffff:10.56.0.2")
    assert table.entries == {GidEntry("mlx5_0", 1, 2, mapped, V1, "hpn0"), GidEntry("mlx5_0", 1, 5, V6, V2, "hpn0")}


def test_no_tables(sys: Sys) -> None:
    assert tables(sys.root, "mlx5_1") == []
    with pytest.raises(FileNotFoundError):
        tables(sys.root, "mlx5_2")


def test_found_when_the_last_is_there(sys: Sys) -> None:
    """It finds the v1 and v2 entries of our interface's addresses, and ignores link-local and other entries."""
    watch, log = sys.watch(), list[str]()
    sys.put(0, "fe80::1")
    sys.put(1, gids.gid(V4), V1)
    sys.put(2, gids.gid(V4))
    sys.put(3, V6, netdev="net1")
    later = threading.Timer(0.2, lambda: sys.put(4, V6))
    later.start()
    found = watch.find("hpn0", [V4, V6], Rdma(required=True), log)
    later.join()
    assert [(f["address"], f["index"], f["type"]) for f in found] == [
        ("10.56.0.2", 1, V1), ("10.56.0.2", 2, V2), ("fd00:56::2", 4, V2),
    ]  # fmt: skip
    assert {(f["device"], f["port"]) for f in found} == {("mlx5_0", 1)}
    assert log == []


def test_what_was_there_before_is_anothers(sys: Sys) -> None:
    sys.put(0, gids.gid(V4))
    watch = sys.watch()
    assert watch.find("hpn0", [V4], Rdma(gidTimeout=0.05), log := []) == []
    assert "10.56.0.2" in log[0]
    sys.put(3, gids.gid(V4))
    assert [f["index"] for f in watch.find("hpn0", [V4], Rdma(), [])] == [3]


def test_what_went_and_came_again_is_ours(sys: Sys) -> None:
    sys.put(0, gids.gid(V4))
    watch = sys.watch()
    sys.put(0, EMPTY)
    later = threading.Timer(0.2, lambda: sys.put(0, gids.gid(V4)))
    later.start()
    found = watch.find("hpn0", [V4], Rdma(required=True, gidTimeout=60), [])
    later.join()
    assert [f["index"] for f in found] == [0]


def test_late(sys: Sys) -> None:
    sys.put(0, gids.gid(V4), V1)  # not the type that is waited for
    with pytest.raises(LinkUnavailable) as caught:
        Watch(sys.root, ["mlx5_0"]).find("hpn0", [V4, V6], Rdma(required=True, gidTimeout=0.05), [])
    said = ("rdma.required", "10.56.0.2, fd00:56::2", "mlx5_0", "0.05 s", "rdma.gidTimeout", "rdma link")
    assert [s for s in said if s not in caught.value.msg] == []


def test_an_empty_table(sys: Sys) -> None:
    """A PF in switchdev mode has no RoCE, whatever its port's state is."""
    with pytest.raises(LinkUnavailable, match="its table is empty, as that of a PF in switchdev mode"):
        Watch(sys.root, ["mlx5_0"]).find("hpn0", [V4], Rdma(required=True, gidTimeout=0.05), [])


def never(seconds: float) -> None:
    pytest.fail(f"it waits {seconds} s")


def test_nobody_waits_for_a_full_table(sys: Sys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", never)
    for index in range(6):
        sys.put(index, f"fd00::{index + 1}", netdev="net1")
    log = list[str]()
    with pytest.raises(GidTableFull, match="0 of 6"):
        sys.watch().find("hpn0", [V4], Rdma(required=True), [])
    assert sys.watch().find("hpn0", [V4], Rdma(), log) == []
    assert ("0 of 6" in log[0], len(log)) == (True, 1)


def test_nobody_waits_where_told_so(sys: Sys) -> None:
    sys.put(0, gids.gid(V4))
    log = list[str]()
    found = Watch(sys.root, ["mlx5_0"]).find("hpn0", [V4, V6], Rdma(required=True, gidTimeout=0), log)
    assert ([f["index"] for f in found], log) == ([0], [])


def test_infiniband_has_none(sys: Sys) -> None:
    assert Watch(sys.root, ["mlx5_1"]).find("hpn0", [V4], Rdma(required=True), []) == []
