"""The file of k8s-rdma-shared-dev-plugin: "configList".

Source: its pkg/types/types.go and pkg/resources/resources_manager.go.
"""

import re
from typing import Any, Final

from base.yaml_document import BadFile, shown
from hardware.model import Kind
from node.config.peers import Texts, named_well, refuse_twins, take
from node.config.values import Object
from node.model import MOST, Resource, Selector, Settings, Sharing, Verbs

PROGRAM: Final = "k8s-rdma-shared-dev-plugin"
_NAME: Final = re.compile(r"[a-zA-Z0-9_]+")


class File(Object):
    """The whole file."""

    periodicUpdateInterval: int | None = None  # noqa: N815
    """No effect: hpn node notices changes at once.
    Value: seconds
    Default: 60
    Refused: negative"""
    configList: list[Any]  # noqa: N815
    """The resources.
    Refused: empty"""


class Entry(Object):
    """An entry of ``configList``."""

    resourceName: str = ""  # noqa: N815
    """The name after the prefix.
    Default: required
    Refused: other than `A-Z a-z 0-9 _`; twice in the file, whatever the prefix"""
    resourcePrefix: str = ""  # noqa: N815
    """The prefix.
    Default: `rdma`"""
    rdmaHcaMax: int = 0  # noqa: N815
    """How many containers may have the resource at a time; the IDs begin with `0`.
    Value: 0 or more; more than 50000 counts as 50000
    Refused: negative"""
    devices: Texts
    """The same as `selectors.ifNames`.
    Refused: beside `selectors`"""
    selectors: Any = None
    """The HCAs that match every list that is not empty, by one entry of it.
    Value: object
    Default: required
    Refused: empty, without `devices`"""


class Selectors(Object):
    """``selectors`` of an entry."""

    vendors: Texts
    """PCI vendors, as four hexadecimal digits in lower case."""
    deviceIDs: Texts  # noqa: N815
    """PCI devices, likewise."""
    drivers: Texts
    """Drivers."""
    ifNames: Texts  # noqa: N815
    """Interfaces."""
    linkTypes: Texts  # noqa: N815
    """`ether` or `infiniband`."""


def settings(document: dict[str, Any], *, cdi: bool) -> Settings:
    """The settings of a parsed file.  Raises BadFile."""
    notes, left_out = list[str](), list[str]()
    file = take(File, document, "", notes)
    if file.periodicUpdateInterval is not None:
        if file.periodicUpdateInterval < 0:
            raise BadFile(f"periodicUpdateInterval {file.periodicUpdateInterval} is negative; remove it")
        notes.append("periodicUpdateInterval has no effect here: hpn node notices changes at once")
    if not file.configList:
        raise BadFile("configList [] has no entry; add one")
    resources = [_resource(one, f"configList[{at}]", notes, cdi=cdi) for at, one in enumerate(file.configList)]
    _refuse_one_name(resources)
    kept = tuple(named_well(resources, left_out))
    notes.append(
        "as with that program, a container gets umad and issm of all its resource's HCAs, and can manage the whole "
        "InfiniBand subnet; rdma: verbs in hpn's own file leaves them out"
    )
    return Settings(kept, PROGRAM, left_out=tuple(left_out), notes=tuple(notes))


def _resource(value: Any, path: str, notes: list[str], *, cdi: bool) -> Resource:
    entry = take(Entry, value, path, notes)
    if not _NAME.fullmatch(entry.resourceName):
        raise BadFile(f"{path}.resourceName {shown(entry.resourceName)} must be of A-Z, a-z, 0-9 and '_'; correct it")
    if entry.rdmaHcaMax < 0:
        raise BadFile(f"{path}.rdmaHcaMax {entry.rdmaHcaMax} is negative; write how many containers may share")
    if entry.rdmaHcaMax > MOST:
        notes.append(f"{path}.rdmaHcaMax {entry.rdmaHcaMax}: {MOST} are offered, because kubelet reads no longer list")
    if not entry.rdmaHcaMax:
        notes.append(f"{path}.rdmaHcaMax is 0, so no pod gets it; write how many containers may share")
    return Resource(
        prefix=entry.resourcePrefix or "rdma",
        name=entry.resourceName,
        sharing=Sharing.SHARED,
        selectors=(_selector(entry, path, notes),),
        count=min(entry.rdmaHcaMax, MOST),
        pooled=True,
        verbs=Verbs.ALL,
        cdi=cdi,
        source=path,
    )


def _selector(entry: Entry, path: str, notes: list[str]) -> Selector:
    given = take(Selectors, {} if entry.selectors is None else entry.selectors, f"{path}.selectors", notes)
    listed = {key for key in Selectors.model_fields if getattr(given, key)}
    if listed and entry.devices:
        raise BadFile(f"{path} has both devices and selectors; remove devices, and name them in selectors.ifNames")
    if not listed and not entry.devices:
        raise BadFile(f'{path} has neither selectors nor devices; add selectors, as in {{"ifNames": ["ib0"]}}')
    return Selector(
        kinds=frozenset({Kind.PF, Kind.VF}),
        vendors=frozenset(given.vendors),
        products=frozenset(given.deviceIDs),
        drivers=frozenset(given.drivers),
        netdevs=frozenset(given.ifNames or entry.devices),
        link_types=frozenset(given.linkTypes),
        rdma=True,
    )


def _refuse_one_name(resources: list[Resource]) -> None:
    """Raise BadFile for two resources of one name with any prefixes, as that program does."""
    refuse_twins(resources)
    first = dict[str, Resource]()
    for one in resources:
        other = first.setdefault(one.name, one)
        if other is not one:
            raise BadFile(
                f"{other.source} and {one.source} are both called {shown(one.name)}, and that program accepts a name "
                "once, whatever the prefix; rename one"
            )
