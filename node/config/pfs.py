"""``pfs`` of hpn's own file: what PFs shall be like."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from node.config import values
from node.config.refused import Refused, shown
from node.config.section import STRICT, take
from node.model import Kind, PfRule, Selector

_MOST_VFS: Final = 65535  # NumVFs has 16 bits (PCI Express Base Specification, SR-IOV Extended Capability)
# What a PF's VFs are found by, and what the PF itself is.
_OF_VFS: Final = {"pfNames": "ifNames", "rootDevices": "pciAddresses"}


class Pfs(BaseModel):
    """An entry of ``pfs``."""

    model_config = STRICT

    selectors: Any
    """Which PFs: those that agree with every key of the object, and with one entry of each list:
    [below](#selectors-of-pfs).
    Value: object
    Refused: empty; two entries for one PF"""
    numVfs: Annotated[int, Field(ge=0, le=_MOST_VFS)] | None = None  # noqa: N815
    """How many VFs the PF has.
    Default: left as it is
    Refused: more than the PF can have; while somebody has one of its VFs"""
    mtu: Annotated[int, Field(ge=68, le=65535)] | None = None
    """Bytes: of the PF's interface, and of those of its VFs that are on the host.
    Default: left as it is
    Refused: more than the interface can; while somebody has one of its VFs"""
    trust: bool | None = None
    """Whether the PF trusts its VFs: a pod may then change its VF's MAC, and receive what is sent to others.
    Default: left as it is
    Refused: of InfiniBand"""
    guids: bool = False
    """Give GUIDs to InfiniBand VFs that have none, made of the PF's GUID and the VF's number, so the same after each
    boot; have their ports follow the PF's (`link_state` `auto`), where they are to be down.
    Refused: of Ethernet"""


class PfSelectors(BaseModel):
    """``selectors`` of an entry of ``pfs``."""

    model_config = STRICT

    ifNames: Annotated[list[values.Interface], Field(default_factory=list)]  # noqa: N815
    """Interfaces of the PFs."""
    pciAddresses: Annotated[list[values.PciAddress], Field(default_factory=list)]  # noqa: N815
    """Their PCI addresses."""
    vendors: Annotated[list[values.PciId], Field(default_factory=list)]
    """PCI vendors, as `15b3`."""
    devices: Annotated[list[values.PciId], Field(default_factory=list)]
    """PCI devices, as `101d`."""
    drivers: Annotated[list[values.Driver], Field(default_factory=list)]
    """Drivers."""
    linkTypes: Annotated[list[Literal["ether", "infiniband"]], Field(default_factory=list)]  # noqa: N815
    """Link types.
    Value: list of `ether`, `infiniband`"""


def rule(value: Any, path: str) -> PfRule:
    """An entry of ``pfs``, by its place in the file.  Raises Refused."""
    entry = take(Pfs, value, path)
    if entry.numVfs is None and entry.mtu is None and entry.trust is None and not entry.guids:
        raise Refused(f"{path} {shown(value)} asks for nothing; add numVfs, mtu, trust or guids")
    selector = _selector(entry.selectors, f"{path}.selectors")
    return PfRule(selector, path, entry.numVfs, entry.mtu, entry.trust, entry.guids)


def _selector(value: Any, path: str) -> Selector:
    for key, meant in _OF_VFS.items():
        if isinstance(value, dict) and key in value:
            raise Refused(f"{path}.{key} {shown(value[key])} is for VFs, by their PF; of a PF itself write {meant}")
    given = take(PfSelectors, value, path)
    if not any(given.model_dump().values()):
        raise Refused(f"{path} {shown(value)} stands for every PF of the node; add ifNames or pciAddresses")
    return Selector(
        kinds=frozenset({Kind.PF}),
        vendors=frozenset(given.vendors),
        products=frozenset(given.devices),
        drivers=frozenset(given.drivers),
        addresses=frozenset(given.pciAddresses),
        netdevs=frozenset(given.ifNames),
        link_types=frozenset(given.linkTypes),
    )
