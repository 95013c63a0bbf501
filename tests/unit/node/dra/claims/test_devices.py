"""A device as a claim gets it: its metadata has the attributes of its slice."""

from types import SimpleNamespace
from typing import Any

from hardware.model import Device, Kind
from hardware.neighbors import Neighbor
from node.dra.claims.devices import Devices
from node.dra.slices import content
from node.model import Offer, Resource, Sharing, Unit

PF = "0000:3b:00.0"
VF = Device("0000:3b:00.2", Kind.VF, pf=PF, pf_netdev="rail7", link_type="ether", index=0)
OFFER = Offer(Resource("example.com", "vf", Sharing.EXCLUSIVE, (), kind="vf", by_dra=True), (Unit(VF.id, (VF,)),))
AT = Neighbor("mac", "02:00:00:00:00:01", "ifname", "Eth1/1", "leaf3", vlan=100, max_frame=9216, speed=400)


def test_the_switch_port_is_in_a_claims_metadata() -> None:
    """Once it is known, as in the slice."""
    publisher: Any = SimpleNamespace(is_cleared=lambda _: True)
    devices, (entry,) = Devices(publisher), content.entries("node1", (OFFER,))
    devices.offer((OFFER,))
    wires = []
    for heard in ({}, {PF: AT}):
        devices.update({}, heard)
        found = devices.find(entry.pool, entry.name)
        assert found
        wires.append({name: of for name, of in found.attributes.items() if name in ("rail", "speed") or "leaf" in name})
    assert wires == [
        {"rail": {"int": 7}},
        {
            "rail": {"int": 7},
            "leaf": {"string": "leaf3"},
            "leafPort": {"string": "Eth1/1"},
            "leafVlan": {"int": 100},
            "leafMaxFrame": {"int": 9216},
            "speed": {"int": 400},
        },
    ]
