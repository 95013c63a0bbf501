"""The node's devices as a table."""

from collections.abc import Iterable, Iterator
from typing import Final

from ctl.hardware.functions import Function
from ctl.screen import Table
from node.model import Kind

_COLUMNS: Final = (
    "DEVICE", "NETDEV", "ID", "DRIVER", "NUMA", "VFS", "ESWITCH", "RDMA", "STATE", "LINK", "GPUS", "USED BY",
)  # fmt: skip
_MAY_GO: Final = ("ESWITCH", "GPUS")  # columns that are left out where no device has anything there
_NONE: Final = "-"


def table(found: Iterable[Function]) -> Table:
    """A line for each device, VFs and scalable functions below their PF."""
    rows = [row for one in found for row in _tree(one)]
    gone = [n for n, name in enumerate(_COLUMNS) if name in _MAY_GO and all(row[n] == _NONE for row in rows)]
    header, *kept = (tuple(cell for n, cell in enumerate(row) if n not in gone) for row in (_COLUMNS, *rows))
    return Table(header, kept)


def _tree(one: Function) -> Iterator[tuple[str, ...]]:
    yield _row(one, one.device.id if one.device.kind in (Kind.PF, Kind.NETDEV) else _title(one))
    yield from (_row(lower, f"  {_title(lower)}") for lower in one.below)


def _title(one: Function) -> str:
    return f"{one.device.kind.value}{one.device.index} {one.device.id}"


def _row(one: Function, title: str) -> tuple[str, ...]:
    device = one.device
    ports = [(f"{hca.name}/{port.number}", port) for hca in one.hcas for port in hca.ports]
    hidden = [rdma.name for rdma in device.rdma if rdma.name not in {hca.name for hca in one.hcas}]
    cells = (
        title,
        ", ".join(device.names),
        f"{device.vendor}:{device.product}" if device.vendor else "",
        device.driver,
        f"{device.numa}" if device.numa >= 0 else "",
        _vfs(one),
        one.eswitch,
        ", ".join([name for name, _ in ports] + hidden),
        ", ".join(port.state_name for _, port in ports),
        ", ".join(dict.fromkeys(port.link_layer for _, port in ports)) or device.link_type,
        ", ".join(f"{gpu.address} {gpu.word}" for gpu in one.gpus),
        used_by(one),
    )
    return tuple(cell or _NONE for cell in cells)


def _vfs(one: Function) -> str:
    """ "2/8, 1 free"."""
    if one.total_vfs is None:
        return ""
    count = f"{one.device.vfs}/{one.total_vfs}"
    return f"{count}, {one.free} free" if one.device.vfs else count


def used_by(one: Function) -> str:
    """Who has the device, in words; empty for a PF that nobody has as a whole."""
    if one.holder or one.device.kind in (Kind.PF, Kind.NETDEV):
        return one.holder or ("host" if one.device.reserved else "")
    return "host" if one.device.needed else "free"
