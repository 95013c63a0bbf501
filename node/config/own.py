"""hpn's own device file: "resources".  It refuses unknown keys."""

# ruff: noqa: RUF012  # pydantic copies each default

from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from base.protocol.memlock import KEEP
from base.yaml_document import BadFile, shown
from hardware.model import Kind
from node.config import values
from node.config.peers import named_well, refuse_twins
from node.config.values import Object, entries, validated
from node.model import MOST, PfRule, Resource, Selector, Settings, Sharing, Verbs

PROGRAM: Final = "hpn"
_MOST_VFS: Final = 65535  # NumVFs has 16 bits (PCI Express Base Specification, SR-IOV Extended Capability)
# Keys that select VFs by their PF, and the key that selects the PF.
_OF_VFS: Final = {"pfNames": "ifNames", "rootDevices": "pciAddresses"}
_Seconds = Annotated[float, Field(ge=0, le=3600)]


class File(Object):
    """The whole file."""

    resources: list[Any]
    """The resources that pods can request: [below](#resources).  If two select a device, the first gets it, unless both
    share it.
    Refused: empty"""
    health: Any = {}
    """When a device counts as unhealthy: [below](#health).
    Value: object"""
    pfs: list[Any] = []
    """Properties that PFs get before their devices are offered: [below](#pfs).
    Default: none"""
    rdmaNamespaces: Literal["exclusive", "shared"] | None = None  # noqa: N815
    """Whether an RDMA device is in one network namespace at a time, or in all: [below](#rdmanamespaces).
    Default: left as it is"""
    lldp: bool = False
    """Whether `hpn node` hears which switch port is at the other end of each PF: [below](#lldp)."""
    labels: bool | Literal["hca"] = False
    """Whether `hpn node` labels its Node by the rails that it offers: [below](#labels).  `hca`: also by
    `rdma=hca`."""


class Health(Object):
    """``health``."""

    downAfter: _Seconds = 10.0  # noqa: N815
    """Seconds for which a link must be down before kubelet learns it."""
    upAfter: _Seconds = 30.0  # noqa: N815
    """Seconds for which a link must be up again before kubelet learns it."""


class Entry(Object):
    """An entry of ``resources``."""

    name: str
    """The resource's name, such as `nvidia.com/rail0_vf`.  A name without a prefix gets that of `--resource-prefix`.
    Refused: twice in the file"""
    kind: Literal["vf", "pf", "sf", "shared", "master", "accelerator"]
    """`vf`, `pf`, `sf`: VFs, whole PFs, scalable functions, each for one container.  `shared`: HCAs, each for `count`
    containers at a time.  `master`: interfaces for macvlan or ipvlan, each for `count` containers.  `accelerator`:
    FPGAs and the like (PCI class 12), each for one container."""
    selectors: Any = None
    """The devices of this kind: [below](#selectors).
    Value: object, list of objects
    Default: all; of `pf` and `master` required
    Refused: empty list"""
    count: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """How many containers may share each device; with `pooled`, how many may share all of them.  A resource has at most
    50000 IDs.
    Default: `100`
    Refused: with other kinds than `shared` and `master`"""
    pooled: bool = False
    """A container gets all devices of the resource instead of one.
    Refused: with other kinds than `shared`"""
    rdma: Literal["verbs", "management", "none"] | None = None
    """The RDMA nodes of its device that a container gets.  `verbs`: uverbs, and rdma_cm if the node has it.
    `management`: also umad and issm, with which it can manage the whole InfiniBand subnet.
    Default: `verbs`; of `master` `none`
    Refused: `none` with `shared`"""
    useInterfaceNetwork: bool = False  # noqa: N815
    """Offer devices with addresses and routes of the host too, for a network with
    [that key](reference.md#useinterfacenetwork).
    Refused: with other kinds than `pf`"""
    topology: bool = True
    """Report the NUMA nodes to kubelet, so that it can choose a device near the pod's processors and GPUs."""
    cdi: bool = False
    """Give devices by CDI names instead of device nodes; `--use-cdi` does it for all resources."""
    vhostNet: bool = False  # noqa: N815
    """Give `/dev/vhost-net` and `/dev/net/tun` too."""
    additionalInfo: dict[str, dict[str, str]] = {}  # noqa: N815
    """Additional members of `PCIDEVICE_..._INFO`, by bus address or for `*`.
    Default: nothing"""
    memlock: values.Memlock | None = None
    """The limit of locked memory for containers that get the device: `unlimited`, bytes, or `keep` for the runtime's
    ([more](#locked-memory)).
    Value: `unlimited`, `keep`, bytes
    Default: `unlimited` for devices with RDMA nodes, with `cdi` or `by: dra`; else `keep`
    Refused: without `cdi` or `by: dra`, except `keep`"""
    by: Literal["devicePlugin", "dra"] = "devicePlugin"
    """How pods get the devices: from the device plugin, or by Dynamic Resource Allocation
    ([below](#dynamic-resource-allocation)).
    Refused: `dra` with a name of more than 64 characters"""


class Selectors(Object):
    """An object of ``selectors``."""

    pfNames: list[values.Pf] = []  # noqa: N815
    """Interfaces of the devices' PFs, by name or altname; `rail0#0,2-7` selects some VFs or scalable functions of a PF.
    Refused: with other kinds than `vf`, `sf` and `shared`"""
    rootDevices: list[values.RootDevice] = []  # noqa: N815
    """PCI addresses of the devices' PFs, likewise.
    Refused: likewise"""
    ifNames: list[values.Interface] = []  # noqa: N815
    """The devices' own interfaces, by name or altname.
    Refused: with `accelerator`"""
    pciAddresses: list[values.PciAddress] = []  # noqa: N815
    """The devices' own PCI addresses.
    Refused: with `sf`"""
    vendors: list[values.PciId] = []
    """PCI vendors, such as `15b3`; for a scalable function that of its PF."""
    devices: list[values.PciId] = []
    """PCI devices, such as `101e`, likewise."""
    drivers: list[values.Driver] = []
    """Drivers."""
    acpiIndexes: list[values.AcpiIndex] = []  # noqa: N815
    """ACPI indexes: the number in an interface's name such as `eno1`."""
    linkTypes: list[Literal["ether", "infiniband"]] = []  # noqa: N815
    """Link types.
    Value: list of `ether`, `infiniband`
    Refused: with `accelerator`"""
    pKeys: list[values.PKey] = []  # noqa: N815
    """InfiniBand partition keys, such as `0x8001`; the membership bit is ignored.
    Refused: with `accelerator`"""
    isRdma: bool = False  # noqa: N815
    """Only devices with an RDMA device; `shared` always requires one.
    Refused: with `accelerator`"""
    vdpaType: Literal["vhost", "virtio"] | None = None  # noqa: N815
    """Only VFs with a vDPA device of this type.
    Refused: with other kinds than `vf`"""
    kinds: list[Literal["pf", "vf", "sf", "netdev"]] = []
    """The kinds of devices; `netdev` is an interface without a device below it, such as a bond or a VLAN.
    Value: list of `pf`, `vf`, `sf`, `netdev`
    Default: `pf`; with `ifNames` `netdev` too
    Refused: with other kinds than `shared` and `master`"""


# The kind of device for each ``kind``, if the selectors name none.
KINDS: Final = {
    "vf": Kind.VF,
    "pf": Kind.PF,
    "sf": Kind.SF,
    "shared": Kind.PF,
    "master": Kind.PF,
    "accelerator": Kind.ACCELERATOR,
}
_VERBS: Final = {"verbs": Verbs.CHOSEN, "management": Verbs.MANAGEMENT, "none": Verbs.NONE}
_COUNT: Final = 100
_ATTRIBUTE: Final = 64  # characters (k8s.io/api/resource/v1, DeviceAttributeMaxValueLength)
# The kinds that a selector applies to; others apply to all.
_SELECTORS: Final = {
    **dict.fromkeys(_OF_VFS, ("vf", "sf", "shared")),
    "ifNames": ("vf", "pf", "sf", "shared", "master"),
    "pciAddresses": ("vf", "pf", "shared", "master", "accelerator"),
    **dict.fromkeys(("linkTypes", "pKeys", "isRdma"), ("vf", "pf", "sf", "shared", "master")),
    "vdpaType": ("vf",),
    "kinds": ("shared", "master"),
}


def settings(document: dict[str, Any], *, prefix: str, cdi: bool) -> Settings:
    """The settings of a parsed file.  Raises BadFile."""
    file = validated(File, document, "")
    health = validated(Health, file.health, "health")
    if not file.resources:
        raise BadFile("resources [] has no entry; add one")
    resources = [_resource(one, f"resources[{at}]", prefix, cdi=cdi) for at, one in enumerate(file.resources)]
    refuse_twins(resources)
    left_out = list[str]()
    kept = tuple(named_well(resources, left_out))
    return Settings(
        kept,
        PROGRAM,
        health.downAfter,
        health.upAfter,
        left_out=tuple(left_out),
        pfs=tuple(_rule(one, f"pfs[{at}]") for at, one in enumerate(file.pfs)),
        rdma_exclusive=None if file.rdmaNamespaces is None else file.rdmaNamespaces == "exclusive",
        lldp=file.lldp,
        labels=bool(file.labels),
        hca_label=file.labels == "hca",
    )


def _resource(value: Any, path: str, prefix: str, *, cdi: bool) -> Resource:
    entry = validated(Entry, value, path)
    _refuse_foreign_keys(entry, path)
    if entry.memlock not in (None, KEEP) and not (cdi or entry.cdi or entry.by == "dra"):
        raise BadFile(
            f"{path}.memlock {entry.memlock} needs cdi: true or by: dra, because a hook in a CDI file sets the limit; "
            "add one of them, or remove memlock"
        )
    before, slash, name = entry.name.rpartition("/")
    full_name = f"{before if slash else prefix}/{name}"
    if entry.by == "dra" and len(full_name) > _ATTRIBUTE:
        raise BadFile(
            f"{path}.name {full_name!r} has {len(full_name)} characters, and a device's attribute in a ResourceSlice "
            f"has at most {_ATTRIBUTE}; shorten it, or remove by"
        )
    return Resource(
        prefix=before if slash else prefix,
        name=name,
        sharing=Sharing.SHARED if _is_shared(entry) else Sharing.EXCLUSIVE,
        selectors=tuple(_selector(entry, one, at) for at, one in _objects(entry, f"{path}.selectors")),
        count=(entry.count or _COUNT) if _is_shared(entry) else 1,
        pooled=entry.pooled,
        verbs=_VERBS[entry.rdma or ("none" if entry.kind == "master" else "verbs")],
        topology=entry.topology,
        cdi=cdi or entry.cdi,
        vhost_net=entry.vhostNet,
        extra=entry.additionalInfo,
        source=path,
        kind=entry.kind,
        by_dra=entry.by == "dra",
        memlock=entry.memlock or "",
        takes_network=entry.useInterfaceNetwork,
    )


def _is_shared(entry: Entry) -> bool:
    return entry.kind in ("shared", "master")


def _refuse_foreign_keys(entry: Entry, path: str) -> None:
    of_kind = f"with kind {entry.kind}"
    if entry.count is not None and not _is_shared(entry):
        raise BadFile(f"{path}.count {entry.count} {of_kind}: each of these devices is for one container; remove count")
    if entry.pooled and entry.kind != "shared":
        raise BadFile(f"{path}.pooled true {of_kind}: only shared HCAs can be pooled; remove pooled")
    if entry.useInterfaceNetwork and entry.kind != "pf":
        raise BadFile(f"{path}.useInterfaceNetwork true {of_kind}: only a whole PF takes it along; remove the key")
    if entry.rdma == "none" and entry.kind == "shared":
        raise BadFile(f'{path}.rdma "none" {of_kind}: nothing would be shared; remove rdma, or use kind master')
    if entry.selectors is None and entry.kind in ("pf", "master"):
        raise BadFile(f"{path}.selectors is missing; {entry.kind} does not select every interface; add ifNames")


def _objects(entry: Entry, path: str) -> list[tuple[str, Selectors]]:
    """The objects of ``selectors``, with their places."""
    match entry.selectors:
        case None:
            return [(path, Selectors())]
        case []:
            raise BadFile(f"{path} [] has no entry; add one, or remove selectors for all of kind {entry.kind}")
        case list() as listed:
            return [(f"{path}[{at}]", validated(Selectors, one, f"{path}[{at}]")) for at, one in enumerate(listed)]
        case one:
            return [(path, validated(Selectors, one, path))]


def _selector(entry: Entry, given: Selectors, path: str) -> Selector:
    _refuse_foreign_selectors(entry, given, path)
    pf_names, wrong = entries(given.pfNames)
    pf_addresses, wrong_too = entries(given.rootDevices)
    for key, why in [*(("pfNames", why) for why in wrong), *(("rootDevices", why) for why in wrong_too)]:
        raise BadFile(f"{path}.{key}: {why}")
    return replace(
        _own_values(given),
        kinds=_kinds(entry, given),
        acpi_indexes=frozenset(given.acpiIndexes),
        pf_names=pf_names,
        pf_addresses=pf_addresses,
        pkeys=frozenset(map(values.pkey, given.pKeys)),
        rdma=given.isRdma or entry.kind == "shared",
        vdpa=given.vdpaType or "",
    )


def _kinds(entry: Entry, given: Selectors) -> frozenset[Kind]:
    """The kinds of devices.  A VLAN or bond must be named: its RDMA devices are those of the PFs below it."""
    by_default = {KINDS[entry.kind], *([Kind.NETDEV] * (_is_shared(entry) and bool(given.ifNames)))}
    return frozenset(map(Kind, given.kinds)) or frozenset(by_default)


def _refuse_foreign_selectors(entry: Entry, given: Selectors, path: str) -> None:
    for key in given.model_fields_set:
        if entry.kind not in _SELECTORS.get(key, KINDS):
            remedy = "use rootDevices" if entry.kind == "sf" else "use ifNames" if key in _OF_VFS else "remove it"
            raise BadFile(f"{path}.{key} {shown(getattr(given, key))} selects nothing of kind {entry.kind}; {remedy}")
    if entry.kind in ("pf", "master") and given == Selectors():
        raise BadFile(f"{path} {{}} selects every interface of the node; add ifNames")


class Pfs(Object):
    """An entry of ``pfs``."""

    selectors: Any
    """The PFs that match every key of the object, and one entry of each list: `ifNames`, `pciAddresses`, `vendors`,
    `devices`, `drivers`, `linkTypes`.
    Value: object
    Refused: empty; two entries for one PF"""
    numVfs: Annotated[int, Field(ge=0, le=_MOST_VFS)] | None = None  # noqa: N815
    """The PF's number of VFs.
    Default: left as it is
    Refused: more than the PF can have; while one of its VFs is in use"""
    mtu: Annotated[int, Field(ge=68, le=65535)] | None = None
    """Bytes: the MTU of the PF's interface, and of its VFs' interfaces on the host.
    Default: left as it is
    Refused: more than the interface can have; while one of its VFs is in use"""
    trust: bool | None = None
    """Whether the PF trusts its VFs: a pod may then change its VF's MAC, and receive frames for others.
    Default: left as it is
    Refused: for InfiniBand"""
    guids: bool = False
    """Give GUIDs to InfiniBand VFs without them.  A GUID derives from the PF's GUID and the VF's number, so it is the
    same after each boot.  A port of such a VF that is set down then follows the PF's (`link_state` `auto`).
    Refused: for Ethernet"""


class PfSelectors(Object):
    """``selectors`` of an entry of ``pfs``."""

    ifNames: list[values.Interface] = []  # noqa: N815
    """Interfaces of the PFs, by name or altname."""
    pciAddresses: list[values.PciAddress] = []  # noqa: N815
    """PCI addresses of the PFs."""
    vendors: list[values.PciId] = []
    """PCI vendors, such as `15b3`."""
    devices: list[values.PciId] = []
    """PCI devices, such as `101d`."""
    drivers: list[values.Driver] = []
    """Drivers."""
    linkTypes: list[Literal["ether", "infiniband"]] = []  # noqa: N815
    """Link types.
    Value: list of `ether`, `infiniband`"""


def _rule(value: Any, path: str) -> PfRule:
    """An entry of ``pfs``, at its place in the file.  Raises BadFile."""
    entry = validated(Pfs, value, path)
    if entry.numVfs is None and entry.mtu is None and entry.trust is None and not entry.guids:
        raise BadFile(f"{path} {shown(value)} changes nothing; add numVfs, mtu, trust or guids")
    selector = _pf_selector(entry.selectors, f"{path}.selectors")
    return PfRule(selector, path, entry.numVfs, entry.mtu, entry.trust, entry.guids)


def _pf_selector(value: Any, path: str) -> Selector:
    for key, own in _OF_VFS.items():
        if isinstance(value, dict) and key in value:
            raise BadFile(f"{path}.{key} {shown(value[key])} selects VFs by their PF; for the PF itself write {own}")
    given = validated(PfSelectors, value, path)
    if not any(given.model_dump().values()):
        raise BadFile(f"{path} {shown(value)} selects every PF of the node; add ifNames or pciAddresses")
    return replace(_own_values(given), kinds=frozenset({Kind.PF}))


def _own_values(given: Selectors | PfSelectors) -> Selector:
    """A selector by the devices' own values, which both models have."""
    return Selector(
        vendors=frozenset(given.vendors),
        products=frozenset(given.devices),
        drivers=frozenset(given.drivers),
        addresses=frozenset(given.pciAddresses),
        netdevs=frozenset(given.ifNames),
        link_types=frozenset(given.linkTypes),
    )
