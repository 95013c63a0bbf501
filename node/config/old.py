"""The file of k8s-rdma-sriov-dev-plugin, an unmaintained program: "mode" (its main.go and server.go)."""

from typing import Any, Final

from base.yaml_document import BadFile, shown
from hardware.model import Kind
from node.config.peers import take
from node.config.values import Object, entries
from node.model import Resource, Selector, Settings, Sharing, Verbs

PROGRAM: Final = "k8s-rdma-sriov-dev-plugin"
_CONTAINERS: Final = 1000  # RdmaHcaMaxResources


class File(Object):
    """The whole file."""

    mode: Any = ""
    """`hca`: `rdma/hca`, for 1000 containers that share all HCAs.  `sriov`: `rdma/vhca`, the existing VFs of
    `pfNetdevices`.  Any other value means `hca`.
    Value: `hca`, `sriov`
    Default: `hca`"""
    pfNetdevices: Any = None  # noqa: N815
    """With `mode` `sriov`: interfaces of the PFs.
    Value: list
    Refused: empty, with `mode` `sriov`"""


def settings(document: dict[str, Any], *, cdi: bool) -> Settings:
    """The settings of a parsed file.  Raises BadFile."""
    notes = list[str]()
    file = take(File, document, "", notes)
    notes.append(
        "as with that program, a container gets all of /dev/infiniband: every RDMA device of the node; with a file of "
        "hpn's own it gets its own device's nodes only"
    )
    if file.mode == "sriov":
        resource = _vfs(file, notes, cdi=cdi)
    else:
        if file.mode != "hca":
            notes.append(f'mode {shown(file.mode)} is read as "hca", there and here; write hca or sriov')
        resource = Resource(
            prefix="rdma",
            name="hca",
            sharing=Sharing.SHARED,
            selectors=(Selector(rdma=True),),
            count=_CONTAINERS,
            pooled=True,
            verbs=Verbs.DIRECTORY,
            cdi=cdi,
            source="mode",
        )
    return Settings((resource,), PROGRAM, notes=tuple(notes))


def _vfs(file: File, notes: list[str], *, cdi: bool) -> Resource:
    names = file.pfNetdevices
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise BadFile(
            f'pfNetdevices {shown(names)} names no PF, so mode "sriov" offers nothing; write a list of '
            'interfaces, such as ["ens1f0"]'
        )
    notes.append(
        "with this file hpn makes no VFs, unlike that program, which also gave them MACs and GUIDs; make them when the "
        "node starts: echo 8 > /sys/class/net/PF/device/sriov_numvfs"
    )
    return Resource(
        prefix="rdma",
        name="vhca",
        sharing=Sharing.EXCLUSIVE,
        selectors=(
            Selector(kinds=frozenset({Kind.VF}), pf_names=entries([name.partition("#")[0] for name in names])[0]),
        ),
        verbs=Verbs.DIRECTORY,
        cdi=cdi,
        source="pfNetdevices",
    )
