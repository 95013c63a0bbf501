"""A VF's attributes, which its PF holds (include/uapi/linux/if_link.h, IFLA_VF_*): bytes both ways, pure."""

import socket
import struct
from dataclasses import dataclass, fields
from typing import Final

from base.kernel.links import IFLA_VFINFO_LIST, pack_mac
from base.kernel.netlink import attr, attributes, pairs

RTEXT_FILTER_VF: Final = 1
IFLA_VF_INFO: Final = 1
IFLA_VF_MAC, IFLA_VF_SPOOFCHK, IFLA_VF_LINK_STATE, IFLA_VF_RATE, IFLA_VF_TRUST, IFLA_VF_VLAN_LIST = 1, 4, 5, 6, 9, 12
IFLA_VF_VLAN: Final = 2
IFLA_VF_IB_NODE_GUID, IFLA_VF_IB_PORT_GUID = 10, 11
IFLA_VF_VLAN_INFO: Final = 1
PROTOCOLS: Final = {"802.1q": 0x8100, "802.1ad": 0x88A8}
LINK_STATES: Final = {"auto": 0, "enable": 1, "disable": 2}


@dataclass(frozen=True)
class VfSettings:
    """One VF's attributes on its PF.  None if this kernel or driver does not report one.

    - ``mac``: None for an InfiniBand VF, which has GUIDs instead.
    - ``vlan``: id, qos, protocol (a key of PROTOCOLS).
    - ``rate``: lowest and highest, in Mbit/s, 0 for no limit.
    - ``link_state``: a key of LINK_STATES.
    """

    mac: str | None = ""
    vlan: tuple[int, int, str] = (0, 0, "802.1q")
    rate: tuple[int, int] = (0, 0)
    spoofchk: bool | None = None
    trust: bool | None = None
    link_state: str | None = None
    node_guid: str | None = None
    port_guid: str | None = None

    @classmethod
    def from_json(cls, body: dict[str, object]) -> "VfSettings":
        """The inverse of ``dataclasses.asdict`` after JSON, which turns tuples into lists."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in body.items()})  # type: ignore[arg-type]

    def differing(self, other: "VfSettings") -> list[str]:
        """The names of the attributes that differ in ``other``; those that are None here do not count."""
        return [f.name for f in fields(self) if getattr(self, f.name) not in (None, getattr(other, f.name))]


def set_attribute(index: int, name: str, value: object) -> bytes:
    """IFLA_VFINFO_LIST with one attribute, for RTM_SETLINK on the PF, as by: ip link set PF vf INDEX NAME VALUE.
    Raises ValueError for an unknown attribute or value."""
    match name, value:
        case "mac", str(mac):
            one = attr(IFLA_VF_MAC, struct.pack("=I", index) + pack_mac(mac).ljust(32, b"\0"))
        case "vlan", (int(vlan), int(qos), str(protocol)):
            info = struct.pack("=III", index, vlan, qos) + struct.pack("!H", PROTOCOLS[protocol]) + bytes(2)
            one = attr(IFLA_VF_VLAN_LIST, attr(IFLA_VF_VLAN_INFO, info))
        case "rate", (int(low), int(high)):
            one = attr(IFLA_VF_RATE, struct.pack("=III", index, low, high))
        case "spoofchk" | "trust", bool(on):
            one = attr(IFLA_VF_TRUST if name == "trust" else IFLA_VF_SPOOFCHK, struct.pack("=II", index, on))
        case "link_state", str(state):
            one = attr(IFLA_VF_LINK_STATE, struct.pack("=II", index, LINK_STATES[state]))
        case "node_guid" | "port_guid", str(guid):
            kind = IFLA_VF_IB_NODE_GUID if name == "node_guid" else IFLA_VF_IB_PORT_GUID
            one = attr(kind, struct.pack("=I4xQ", index, int(guid.replace(":", ""), 16)))
        case _:
            raise ValueError(f"a VF has no {name} {value!r}")
    return attr(IFLA_VFINFO_LIST, attr(IFLA_VF_INFO, one))


def parse(payload: bytes) -> dict[int, VfSettings]:
    """The VFs in IFLA_VFINFO_LIST's payload: VF index -> attributes."""
    return dict(_parse_one(attributes(one)) for _, one in pairs(payload))


def _parse_one(attrs: dict[int, bytes]) -> tuple[int, VfSettings]:
    index, mac = struct.unpack_from("=I6s", attrs[IFLA_VF_MAC])
    return index, VfSettings(
        # An IPoIB netdev reports its own address for every VF (ipoib_get_vf_config).
        mac=None if IFLA_VF_IB_PORT_GUID in attrs else mac.hex(":"),
        vlan=_vlan(attrs),
        rate=struct.unpack_from("=II", attrs[IFLA_VF_RATE], 4) if IFLA_VF_RATE in attrs else (0, 0),
        spoofchk=_switch(attrs.get(IFLA_VF_SPOOFCHK)),
        trust=_switch(attrs.get(IFLA_VF_TRUST)),
        link_state=_link_state(attrs.get(IFLA_VF_LINK_STATE)),
        node_guid=_guid(attrs.get(IFLA_VF_IB_NODE_GUID)),
        port_guid=_guid(attrs.get(IFLA_VF_IB_PORT_GUID)),
    )


def _vlan(attrs: dict[int, bytes]) -> tuple[int, int, str]:
    info = attributes(attrs.get(IFLA_VF_VLAN_LIST, b"")).get(IFLA_VF_VLAN_INFO)
    if info:
        vlan, qos = struct.unpack_from("=II", info, 4)
        protocol = socket.ntohs(struct.unpack_from("=H", info, 12)[0])
        return vlan, qos, next((k for k, v in PROTOCOLS.items() if v == protocol), "802.1q")
    if IFLA_VF_VLAN in attrs:
        vlan, qos = struct.unpack_from("=II", attrs[IFLA_VF_VLAN], 4)
        return vlan, qos, "802.1q"
    return 0, 0, "802.1q"


def _switch(payload: bytes | None) -> bool | None:
    """On or off; None if the driver does not report it, for which the kernel has 2^32-1."""
    value = struct.unpack_from("=I", payload, 4)[0] if payload else 0xFFFFFFFF
    return None if value == 0xFFFFFFFF else bool(value)


def _link_state(payload: bytes | None) -> str | None:
    value = struct.unpack_from("=I", payload, 4)[0] if payload else None
    return next((k for k, v in LINK_STATES.items() if v == value), None)


def _guid(payload: bytes | None) -> str | None:
    """A GUID; None for zero, which mlx5 reports for a GUID that was not set through this PF."""
    value: int = struct.unpack_from("=Q", payload, 8)[0] if payload else 0
    return value.to_bytes(8, "big").hex(":") if value else None
