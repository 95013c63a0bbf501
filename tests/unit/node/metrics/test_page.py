"""The page, read by prometheus_client's parser."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from support.metrics_page import made, samples
from support.node_host import vf

from base.protocol.errors import IoFailure
from base.protocol.spec import Key, Request
from base.state import journal
from base.state.data_dirs import data_dirs
from base.state.pod import Identity
from base.state.record import Record
from ipam import main as ipam
from node.metrics import page
from node.metrics.commands import Tally


def test_commands() -> None:
    tally = Tally()
    for line in (b"1 ADD macvlan 0 3000\n", b"1 ADD macvlan 104 30000\n", b"1 GC - 0 30000000\n"):
        assert tally.count(line)
    found = made(page.commands(tally))
    assert found["hpn_commands_total", "0", "macvlan", "ADD"] == 1
    assert found["hpn_commands_total", "104", "macvlan", "ADD"] == 1
    assert found["hpn_commands_total", "0", "", "GC"] == 1
    bounds = ["0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "+Inf"]
    name = "hpn_command_duration_seconds"
    assert [found[f"{name}_bucket", "macvlan", le, "ADD"] for le in bounds] == [1, 1, 1, *[2] * 9]
    assert [found[f"{name}_bucket", "", le, "GC"] for le in bounds] == [*[0] * 11, 1]
    assert found[f"{name}_count", "macvlan", "ADD"] == 2
    assert found[f"{name}_sum", "macvlan", "ADD"] == pytest.approx(0.033)


def test_devices() -> None:
    ill = vf(2, names=("eth2", "eth3"))
    found = made(page.devices({"a/vf": (2, [(ill, 'it "is"\ngone \\')]), "a/none": (0, [])}))
    info = ("hpn_device_info", "0000:3b:00.2", "eth2,eth3", "mlx5_2", 'it "is"\ngone \\', "a/vf")
    assert found == {
        ("hpn_devices", "a/vf", "healthy"): 1, ("hpn_devices", "a/vf", "unhealthy"): 1,
        ("hpn_devices", "a/none", "healthy"): 0, ("hpn_devices", "a/none", "unhealthy"): 0,
        info: 1,
    }  # fmt: skip


def test_names_that_are_no_text() -> None:
    """A pod may name its device by any bytes."""
    ill = vf(2, names=(os.fsdecode(b"e\xff"),))
    found = made(page.devices({"a/vf": (1, [(ill, "gone")])}))
    assert ("hpn_device_info", "0000:3b:00.2", "e\\udcff", "mlx5_2", "gone", "a/vf") in found


def test_what_cannot_be_read_is_a_problem_and_no_more() -> None:
    def broken() -> Iterable[Metric]:
        raise IoFailure("reading /x: it is for root")

    readers = {"pools": broken, "attachments": lambda: page.build("9")}
    text, sentences = page.make(page.build("1.2.3"), readers, {"files": True, "kubelet": False})
    assert sentences == ("metrics: pools cannot be read: reading /x: it is for root",)
    assert samples(text.decode()) == {
        ("hpn_build_info", "1.2.3"): 1, ("hpn_build_info", "9"): 1,
        ("hpn_problems", "files"): 1, ("hpn_problems", "kubelet"): 0,
        ("hpn_problems", "pools"): 1, ("hpn_problems", "attachments"): 0,
    }  # fmt: skip


def test_nothing_of_the_librarys_own_is_on_it() -> None:
    assert {name for name, *_ in made(page.build("1"))} == {"hpn_build_info"}


def attach(folder: Path, number: int, kind: str = "macvlan", network: str = "rail0", **config: Any) -> None:
    key = Key(f"c{number}", "hpn0")
    record = Record(network, key, "/run/netns/x", Identity(1, 1), kind=kind, link={}, config=config)
    journal.Entry(folder, network, key).save(record)


def test_attachments(tmp_path: Path) -> None:
    for number in range(3):
        attach(tmp_path, number)
    attach(tmp_path, 3, "sriov")
    attach(tmp_path, 4, "sriov", "rail1")
    (tmp_path / "attachments/rail1/c5:hpn0.json").write_text("{}")
    assert made(page.attachments(list(journal.files(tmp_path)))) == {
        ("hpn_attachments", "macvlan", "rail0"): 3, ("hpn_attachments", "sriov", "rail0"): 1,
        ("hpn_attachments", "sriov", "rail1"): 1, ("hpn_attachments", "unreadable", "rail1"): 1,
    }  # fmt: skip


def add(folder: Path, network: str, container: str, ranges: list[Any], command: str = "ADD") -> None:
    conf = {"cniVersion": "1.0.0", "name": network, "type": "hpn-ipam"}
    ask = {"type": "hpn-ipam", "dataDir": f"{folder}", "ranges": ranges, "releaseCooldown": 3600}
    environ = {"CNI_COMMAND": command, "CNI_CONTAINERID": container, "CNI_IFNAME": "hpn0", "CNI_NETNS": "/n"}
    reply = ipam.run(Request(environ | {"CNI_PATH": "/p"}, json.dumps(conf | {"ipam": ask}).encode()))
    assert reply.exit_code == 0, reply


def test_pools(tmp_path: Path) -> None:
    v4, v6 = [{"subnet": "10.1.0.0/29"}], [{"subnet": "fd00::/64"}]
    for folder in ("a", "b"):
        add(tmp_path / folder, "rail0", "c1", [v4])
    add(tmp_path / "a", "rail0", "c2", [v4])
    add(tmp_path / "a", "rail0", "c2", [v4], "DEL")  # it stays reserved for a while
    add(tmp_path / "a", "rail1", "c1", [v4, v6])
    found = made(page.pools([tmp_path / "a", tmp_path / "b", tmp_path / "none"]))
    span = "10.1.0.2-10.1.0.6"
    assert found["hpn_pool_addresses", "rail0", span] == 10  # the sum of both stores
    assert found["hpn_pool_leases", "rail0", span] == 3
    assert found["hpn_pool_addresses", "rail1", span] == 5
    (six,) = {key[2] for key in found if key[1] == "rail1"} - {span}
    assert found["hpn_pool_leases", "rail1", six] == 1
    assert found["hpn_pool_addresses", "rail1", six] == pytest.approx(2**64)


def test_leases_outside_of_all_ranges_are_counted(tmp_path: Path) -> None:
    add(tmp_path, "rail0", "c1", [[{"subnet": "10.1.0.0/29"}]])
    add(tmp_path, "rail0", "c2", [[{"subnet": "10.2.0.0/29"}]])
    found = made(page.pools([tmp_path]))
    assert found["hpn_pool_leases", "rail0", ""] == 1
    assert ("hpn_pool_addresses", "rail0", "") not in found


def test_leases_are_looked_for_where_attachments_have_theirs(tmp_path: Path) -> None:
    attach(tmp_path, 1, ipam={"type": "hpn-ipam", "dataDir": "/somewhere"})
    attach(tmp_path, 2, ipam={"type": "hpn-ipam", "dataDir": 7})
    attach(tmp_path, 3, ipam="x")
    dirs = data_dirs(list(journal.files(tmp_path)))
    assert {Path("/somewhere"), Path("/var/lib/cni/hpn/ipam"), Path("/run/hpn/ipam")} <= set(dirs)
