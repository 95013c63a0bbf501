"""hpn devices, hpn gids and hpn devinfo on the guest's NICs, compared with the output of ip, rdma and ibv_devinfo."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guest.node import PF, RDMA, Node, pci, rdma_devs
from guest.texts import devinfo_lacks, ours, theirs
from support.topology import Pod, ip, until

NAME = "rail0v0"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a63:0001"
# Only verbs provide these for a device with an unknown driver (docs/user/rdma.md).
LACKS = {"fw_ver", "vendor_id", "vendor_part_id", "hw_ver", "max_mtu", "active_mtu"}


@pytest.fixture
def address(node: Node) -> Iterator[None]:
    """The first VF's interface is up and has an address."""
    ip("link", "set", NAME, "up")
    ip("address", "add", "10.99.0.1/24", "dev", NAME)
    until(lambda: states()[RDMA] == "ACTIVE")
    until(lambda: MAPPED in ours("gids", RDMA))
    yield
    ip("address", "del", "10.99.0.1/24", "dev", NAME)
    ip("link", "set", NAME, "down")


def states() -> dict[str, str]:
    return {link["ifname"]: link["state"] for link in json.loads(theirs("rdma", "-j", "link"))}


def described(*words: str) -> dict[str, dict[str, Any]]:
    """The description of each device."""
    found = json.loads(ours("devices", "--json", *words))["devices"]
    return {one["device"]: one for pf in found for one in (pf, *pf.get("below", []))}


def test_devinfo(node: Node, address: None) -> None:
    """Every line is one of ibv_devinfo's, for an active port and for one that is down."""
    other = "hca0v1"
    assert {RDMA, other} <= rdma_devs()
    assert states()[RDMA] == "ACTIVE" != states()[other]
    for name in (RDMA, other):
        assert devinfo_lacks(name) == LACKS


def test_devinfo_in_full(node: Node, address: None) -> None:
    """The lines that ibv_devinfo -v has in addition are limits of the device, or facts that /sys words differently."""
    lacks = devinfo_lacks(RDMA, "-v")
    assert lacks > LACKS
    assert not lacks & {"device_cap_flags", "sm_sl", "pkey_tbl_len", "gid_tbl_len", "active_width", "phys_state"}
    assert not {name for name in lacks if name.startswith("GID[")}


def test_gids(node: Node, address: None) -> None:
    """One row for each index of the table where the kernel has a GID."""
    rows = [line.split("\t") for line in ours("gids", RDMA).splitlines()[2:-1]]
    port = Path(f"/sys/class/infiniband/{RDMA}/ports/1")
    used = {path.name: path.read_text().strip() for path in (port / "gids").iterdir()}
    assert {row[2]: row[3] for row in rows} == {index: gid for index, gid in used.items() if gid.strip("0:")}
    assert {(row[4].rstrip(), row[5], row[6]) for row in rows if row[3] == MAPPED} == {
        ("10.99.0.1", "v1", NAME), ("10.99.0.1", "v2", NAME),
    }  # fmt: skip
    assert ours("gids", RDMA).splitlines()[-1] == f"n_gids_found={len(rows)}"


def test_lines_of_ibdev2netdev(node: Node, address: None) -> None:
    """The lines match rdma and ip."""
    up = {link["ifname"] for link in ip("link") if "LOWER_UP" in link["flags"]}
    links = json.loads(theirs("rdma", "-j", "link"))
    expected = {
        f"{link['ifname']} port {link['port']} ==> {link['netdev']} ({'Up' if link['netdev'] in up else 'Down'})"
        for link in links
    }
    said = {line for line in ours("devices", "-v").splitlines() if " ==> " in line}
    assert said == expected
    assert f"{RDMA} port 1 ==> {NAME} (Up)" in said


def test_functions(node: Node) -> None:
    found, device = described(), Path(f"/sys/class/net/{PF}/device")
    pf = found[pci(PF)]
    vfs = int((device / "sriov_numvfs").read_text())
    total = int((device / "sriov_totalvfs").read_text())
    assert pf["sriov"] == {"numVfs": vfs, "totalVfs": total, "free": vfs}
    assert (pf["netdevs"], pf["driver"], f"0x{pf['product']}\n") == ([PF], "igb", (device / "device").read_text())
    for number, vf in enumerate(pf["below"]):
        assert vf["device"] == (device / f"virtfn{number}").resolve().name
        assert (vf["netdevs"], vf["driver"], vf["usedBy"]) == ([f"{PF}v{number}"], "igbvf", "free")
        assert [hca["device"] for hca in vf["rdma"]] == [f"hca0v{number}"]
    assert "\nRDMA devices are exclusive: each is in one network namespace\n" in ours("devices")


def test_a_vf_that_a_pod_has(node: Node, pod: Pod) -> None:
    """The journal names the VF, and the host does not have it; later it is free again."""
    before = described()
    node.ok("ADD", pod, node.conf())
    taken = described("--state-dir", f"{node.state}")
    assert taken[node.device]["usedBy"] == f"hpn0 of container {pod.name[:12]}, network rail0"
    assert taken[node.device]["rdma"] == [{"device": RDMA}]
    assert taken[pci(PF)]["sriov"]["free"] == before[pci(PF)]["sriov"]["free"] - 1
    # Without the journal, the kernel's state shows that the VF is not free.
    (none := node.tmp_path / "none").mkdir()
    untold = described("--state-dir", f"{none}")
    assert untold[node.device]["usedBy"] == "a namespace that holds its interface"
    node.ok("DEL", pod, node.conf())
    until(lambda: described() == before)


def test_without_privileges(node: Node) -> None:
    """The same devices, and no traceback."""

    def said() -> bytes:
        return repr((described(), ours("gids"), ours("devinfo", "-v"))).encode()

    expected = said()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(writing, said())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        heard = pipe.read()
    os.waitpid(child, 0)
    assert heard == expected


@pytest.fixture
def switch(node: Node) -> Iterator[str]:
    """A PF with a driver that supports devlink and a switch."""
    parameter = Path("/sys/module/testhca/parameters/fatal")
    parameter.write_text(pci(PF))
    yield pci(PF)
    parameter.write_text("\n")


def test_mode_of_a_switch(switch: str) -> None:
    """The mode that devlink sets; without devlink or a switch there is none."""
    assert "ESWITCH" in ours("devices")
    for mode in ("switchdev", "legacy"):
        subprocess.run(["devlink", "dev", "eswitch", "set", f"pci/{switch}", "mode", mode], check=True)
        found = described()
        assert {one["device"]: one["eswitch"] for one in found.values() if one["kind"] == "pf"} == {
            switch: mode, pci("rail1"): "",
        }  # fmt: skip
