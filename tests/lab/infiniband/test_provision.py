"""GUIDs of InfiniBand VFs by the device file: assigned to VFs without one, and kept."""

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from guest import hca
from guest.hca import GUID, PF, VFS
from guest.machine import Guest
from guest.node import pci
from support.node_process import PROGRAM, RIGHTS, ROOT, NodeProcess
from support.topology import ip, until


@pytest.fixture
def process(guest: Guest) -> Iterator[NodeProcess]:
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        process = NodeProcess(Path(folder), [])
        process.mounts.clear()
        process.write(
            [{"name": "example.com/ib", "kind": "vf", "selectors": {"linkTypes": ["infiniband"]}}],
            pfs=[{"selectors": {"ifNames": [PF]}, "guids": True}],
        )
        yield process
    for number, device in enumerate(vfs()):
        for what in ("node_guid", "port_guid"):
            ip("link", "set", PF, "vf", f"{number}", what, hca.NONE)
        ip("link", "set", PF, "vf", f"{number}", "state", "auto")
        hca.drive(device, "testib")


def vfs() -> list[str]:
    pf = Path("/sys/bus/pci/devices", pci(PF))
    return [(pf / f"virtfn{number}").resolve().name for number in range(VFS)]


def told() -> list[tuple[str, str]]:
    """The GUIDs of each VF on the PF."""
    return [(vf["node guid"], vf["port guid"]) for vf in map(hca.vf, range(VFS))]


@pytest.mark.parametrize("rights", [[], RIGHTS], ids=["service", "container"])
def test_guids(process: NodeProcess, rights: list[str]) -> None:
    """The second VF has GUIDs already, and keeps them.  The port of a VF that gets GUIDs must not stay down."""
    process.program = [*rights, *PROGRAM]
    for number, state in enumerate(("disable", "disable", "enable", "auto")):
        ip("link", "set", PF, "vf", f"{number}", "state", state)
    for what in ("node_guid", "port_guid"):
        ip("link", "set", PF, "vf", "1", what, GUID)
    own = hca.guids(pci(PF))[1]
    made = [hashlib.sha256(f"hpn {own} {number}".encode()).digest()[:8] for number in range(VFS)]
    wanted = [(bytes([one[0] & 0xFE | 2, *one[1:]]).hex(":"),) * 2 for one in made]
    wanted[1] = (GUID, GUID)
    with process:
        process.says("guids of VF 0, 2-3: none -> ", 180)
    assert told() == wanted
    assert [hca.vf(number)["link_state"] for number in range(VFS)] == ["auto", "disable", "enable", "auto"]
    # The VF reads its GUIDs when its driver binds.
    assert [hca.guids(device) for device in vfs()][2:] == wanted[2:]
    indexes = rdma_devices()
    process.said.clear()
    with process:
        process.says("offers example.com/ib: 4 units", 180)
    assert [line for line in process.said if "guids" in line] == []
    assert (told(), rdma_devices()) == (wanted, indexes)


def rdma_devices() -> set[tuple[int, str]]:
    done = subprocess.run(["rdma", "-j", "dev"], capture_output=True, text=True, check=True)
    return {(one["ifindex"], one["ifname"]) for one in json.loads(done.stdout)}


def test_trust_of_infiniband(process: NodeProcess) -> None:
    process.write([{"name": "example.com/ib", "kind": "vf"}], pfs=[{"selectors": {"ifNames": [PF]}, "trust": True}])
    words = [*PROGRAM, "node", "--dry-run", "--config", f"{process.file}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "is InfiniBand, and its VFs have no MAC to trust" in done.stdout) == (3, True)
    until(lambda: told() == [(hca.NONE, hca.NONE)] * VFS)
