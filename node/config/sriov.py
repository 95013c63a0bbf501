"""The file of sriov-network-device-plugin: "resourceList".

Source: its pkg/types/types.go, cmd/sriovdp/manager.go and pkg/factory.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from base.yaml_document import BadFile, shown
from hardware.model import Kind
from node.config.peers import Texts, named_well, refuse_twins, take
from node.config.values import Object, entries
from node.model import Resource, Selector, Settings, Sharing, Verbs

PROGRAM: Final = "sriov-network-device-plugin"
PREFIX: Final = "intel.com"
NO_PKEY: Final = -1
_PKEY: Final = re.compile(r"(0x)?[0-9a-f]{1,4}", re.IGNORECASE)
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")


class File(Object):
    """The whole file."""

    resourceList: list[Any]  # noqa: N815
    """The resources.
    Refused: empty"""


class Entry(Object):
    """An entry of ``resourceList``."""

    resourceName: str = ""  # noqa: N815
    """The name after the prefix.
    Default: required
    Refused: other than `A-Z a-z 0-9 _ -`; twice in the file with one prefix"""
    resourcePrefix: str = ""  # noqa: N815
    """The prefix.
    Default: `--resource-prefix`, and without that `intel.com`"""
    deviceType: Annotated[  # noqa: N815
        Literal["netDevice", "auxNetDevice", "accelerator"],
        BeforeValidator(lambda text: "netDevice" if text == "" else text),
    ] = "netDevice"
    """The type of devices: VFs, and PFs without VFs; scalable functions; accelerators (PCI class 12).
    Refused: another type"""
    excludeTopology: bool = False  # noqa: N815
    """Do not report NUMA nodes to kubelet."""
    selectors: Any = None
    """The devices that match one of the objects, in every list of it that is not empty.
    Value: object, list of objects
    Default: required"""
    additionalInfo: Annotated[dict[str, dict[str, str]], Field(default_factory=dict)]  # noqa: N815
    """Additional members of `PCIDEVICE_..._INFO`, by PCI address or for `*`."""


class Common(Object):
    """The common keys of selectors for a ``netDevice`` and an ``auxNetDevice``."""

    vendors: Texts
    """PCI vendors, as four hexadecimal digits in lower case; for a scalable function that of its PF."""
    devices: Texts
    """PCI devices, likewise."""
    drivers: Texts
    """Drivers."""
    pfNames: Texts  # noqa: N815
    """Interfaces of PFs, each with its VFs or scalable functions after `#`: `rail0#0,2-7`."""
    rootDevices: Texts  # noqa: N815
    """PCI addresses of PFs, likewise."""
    linkTypes: Texts  # noqa: N815
    """`ether` or `infiniband`."""
    isRdma: bool = False  # noqa: N815
    """Only devices with an RDMA device, which the container gets.
    Refused: with `vdpaType`"""
    needVhostNet: bool = False  # noqa: N815
    """The container gets `/dev/vhost-net` and `/dev/net/tun`."""


class NetDevice(Common):
    """An object of ``selectors`` for a ``netDevice``."""

    pciAddresses: Texts  # noqa: N815
    """PCI addresses of the devices."""
    acpiIndexes: Texts  # noqa: N815
    """ACPI indexes."""
    ddpProfiles: Texts  # noqa: N815
    """The resource is left out: hpn does not read the profile of a NIC."""
    pKeys: Texts  # noqa: N815
    """InfiniBand partition keys, such as `0x8001`; the membership bit is ignored."""
    vdpaType: str = ""  # noqa: N815
    """`vhost` or `virtio`: only VFs with a vDPA device of this type.
    Value: `vhost`, `virtio`"""


class AuxNetDevice(Common):
    """An object of ``selectors`` for an ``auxNetDevice``."""

    acpiIndexes: Texts  # noqa: N815
    """No effect, there and here."""
    auxTypes: Texts  # noqa: N815
    """Must be `["sf"]`.
    Default: required
    Refused: another type"""


class Accelerator(Object):
    """An object of ``selectors`` for an ``accelerator``."""

    vendors: Texts
    """PCI vendors, as four hexadecimal digits in lower case."""
    devices: Texts
    """PCI devices, likewise."""
    drivers: Texts
    """Drivers; a container gets the nodes of `vfio-pci` and of uio."""
    pciAddresses: Texts  # noqa: N815
    """PCI addresses of the devices."""


def settings(document: dict[str, Any], *, prefix: str, cdi: bool) -> Settings:
    """The settings of a parsed file.  Raises BadFile."""
    notes, left_out, resources = list[str](), list[str](), list[Resource]()
    file = take(File, document, "", notes)
    if not file.resourceList:
        raise BadFile("resourceList [] has no entry; add one")
    unserved = set[str]()
    for at, value in enumerate(file.resourceList):
        path = f"resourceList[{at}]"
        entry = take(Entry, value, path, notes)
        try:
            given = _given(entry, f"{path}.selectors", notes)
        except _Ignored as e:
            left_out.append(f"{e}; {PROGRAM} ignores such an entry too")
            continue
        resources.append(_resource(entry, given, path, notes, prefix=prefix, cdi=cdi))
        if why := _why_unserved(entry, given):
            left_out.append(why)
            unserved.add(path)
    refuse_twins(resources)
    kept = tuple(named_well([one for one in resources if one.source not in unserved], left_out))
    return Settings(kept, PROGRAM, left_out=tuple(left_out), notes=tuple(notes))


class _Ignored(Exception):
    """An entry that the program ignores with a warning; the message has the reason."""


_Given = dict[str, NetDevice | AuxNetDevice | Accelerator]
_MODELS: Final[Mapping[str, type[NetDevice | AuxNetDevice | Accelerator]]] = {
    "auxNetDevice": AuxNetDevice,
    "accelerator": Accelerator,
}


def _given(entry: Entry, path: str, notes: list[str]) -> _Given:
    """The objects of ``selectors``, by their places.  Raises BadFile, _Ignored."""
    if entry.selectors is None:
        raise BadFile(f"{path} is missing; add it; {{}} selects every device")
    listed = entry.selectors if isinstance(entry.selectors, list) else None
    objects = {path: entry.selectors} if listed is None else {f"{path}[{at}]": one for at, one in enumerate(listed)}
    if not objects:
        raise _Ignored(f"{path} [] has no entry; {{}} selects every device")
    if null := [at for at, one in objects.items() if one is None]:
        raise BadFile(f"{null[0]} is null; remove it")
    model = _MODELS.get(entry.deviceType, NetDevice)
    try:
        return {at: take(model, one, at, notes) for at, one in objects.items()}
    except BadFile as e:
        raise _Ignored(e.msg) from e


def _why_unserved(entry: Entry, given: _Given) -> str:
    """Why hpn cannot offer the resource of the entry; empty if it can."""
    for at, one in given.items():
        if isinstance(one, NetDevice) and one.ddpProfiles:
            return (
                f"{at}.ddpProfiles {shown(one.ddpProfiles)}: hpn does not read the profile of a NIC, so "
                f"{shown(entry.resourceName)} is left out; select by pfNames, rootDevices or pciAddresses"
            )
    return ""


def _resource(entry: Entry, given: _Given, path: str, notes: list[str], *, prefix: str, cdi: bool) -> Resource:
    if not _NAME.fullmatch(entry.resourceName):
        raise BadFile(
            f"{path}.resourceName {shown(entry.resourceName)} must be of A-Z, a-z, 0-9, '_' and '-'; correct it"
        )
    of_network = [one for one in given.values() if isinstance(one, Common)]
    for key in ("isRdma", "needVhostNet"):
        wanted = [at for at, one in given.items() if getattr(one, key, False)]
        if wanted and len(wanted) < len(given):
            notes.append(f"{wanted[0]}.{key} counts here for all devices of {path} that have what it requires")
    return Resource(
        prefix=entry.resourcePrefix or prefix or PREFIX,
        name=entry.resourceName,
        sharing=Sharing.EXCLUSIVE,
        selectors=tuple(_selector(one, at, notes) for at, one in given.items()),
        verbs=Verbs.MANAGEMENT if any(one.isRdma for one in of_network) else Verbs.NONE,
        topology=not entry.excludeTopology,
        cdi=cdi,
        vhost_net=any(one.needVhostNet for one in of_network),
        extra=entry.additionalInfo,
        source=path,
    )


def _selector(one: NetDevice | AuxNetDevice | Accelerator, path: str, notes: list[str]) -> Selector:
    of_all = Selector(vendors=frozenset(one.vendors), products=frozenset(one.devices), drivers=frozenset(one.drivers))
    if isinstance(one, Accelerator):
        return replace(of_all, kinds=frozenset({Kind.ACCELERATOR}), addresses=frozenset(one.pciAddresses))
    pf_names, wrong = entries(one.pfNames)
    pf_addresses, wrong_too = entries(one.rootDevices)
    notes += [f"{path}.pfNames: {why}" for why in wrong] + [f"{path}.rootDevices: {why}" for why in wrong_too]
    common = replace(
        of_all,
        pf_names=pf_names,
        pf_addresses=pf_addresses,
        link_types=frozenset(one.linkTypes),
        rdma=one.isRdma,
    )
    return _network(one, common, path, notes) if isinstance(one, NetDevice) else _scalable(one, common, path, notes)


def _network(one: NetDevice, common: Selector, path: str, notes: list[str]) -> Selector:
    if one.isRdma and one.vdpaType:
        raise BadFile(f"{path} has both isRdma and vdpaType; remove one")
    if one.vdpaType not in ("", "vhost", "virtio"):
        notes.append(f"{path}.vdpaType {shown(one.vdpaType)} selects nothing; write vhost or virtio")
    return replace(
        common,
        kinds=frozenset({Kind.PF, Kind.VF}),
        addresses=frozenset(one.pciAddresses),
        acpi_indexes=frozenset(one.acpiIndexes),
        pkeys=frozenset(_pkeys(one.pKeys, path, notes)),
        vdpa=one.vdpaType,
    )


def _scalable(one: AuxNetDevice, common: Selector, path: str, notes: list[str]) -> Selector:
    if set(one.auxTypes) != {"sf"}:
        raise BadFile(f'{path}.auxTypes {shown(one.auxTypes)} must be ["sf"], the only type; write that')
    if one.acpiIndexes:
        notes.append(f"{path}.acpiIndexes selects nothing for an auxNetDevice, there and here; remove it")
    return replace(common, kinds=frozenset({Kind.SF}))


def _pkeys(texts: list[str], path: str, notes: list[str]) -> Iterator[int]:
    """The keys without the membership bit; NO_PKEY for an invalid one, because an empty set would select everything."""
    for text in texts:
        if _PKEY.fullmatch(text):
            yield int(text, 16) & 0x7FFF
        else:
            notes.append(f"{path}.pKeys {shown(text)} is not a partition key and selects nothing; write it as 0x8001")
            yield NO_PKEY
