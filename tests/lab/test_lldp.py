"""hpn node hears LLDP on a real driver's PF, whose receive filter must let the group through."""

import time
from typing import Any

from guest.machine import nics
from guest.node import PF
from support import lldp_frames as frames
from support.kubelet import Kubelet
from support.lldp_frames import VENDORS
from support.node_process import NodeProcess
from support.topology import until

from base.kernel import private_flags
from hardware import neighbors

VFS: dict[str, Any] = {"name": "example.com/rail0", "kind": "vf", "selectors": {"pfNames": [PF]}}


def test_the_other_end_of_the_wire(kubelet: Kubelet) -> None:
    """rail0 and rail1 are at one wire: each hears what the other one's interface sends."""
    process = NodeProcess(kubelet.registry.parents[1], [VFS])
    process.write([VFS], lldp=True)
    process.mounts.clear()  # /sys and /run are the guest's own
    address = next(iter(nics.pfs())).address  # rail0

    def heard() -> bool:
        frames.send("rail1", VENDORS["eos"])
        # time: the next announcement
        time.sleep(1)
        return address in neighbors.read()

    with process:
        until(heard)
    assert neighbors.read()[address].leaf == "leaf2"


def test_the_drivers_private_flags() -> None:
    """igb has one, which ethtool shows; none of its flags concerns LLDP."""
    flags = private_flags.read(PF)
    assert "legacy-rx" in flags
    assert neighbors.taken_by_firmware(PF, flags) == ""
