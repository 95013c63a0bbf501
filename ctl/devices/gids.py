"""hpn gids: the GIDs of RDMA devices, as mlx-tools' show_gids shows them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from base.kernel import sysfs
from base.protocol import written
from base.protocol.errors import LinkUnavailable
from base.protocol.spec import Json
from base.table import printable
from ctl.command_line import as_document, parser_for
from hardware import rdma_devices
from hardware.rdma_devices import Gid

# show_gids pads with exactly these tabs and blanks.
_HEADER: Final = (
    "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV",
    "---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---",
)
_UNSET: Final = "fe80:0000:0000:0000:0000:0000:0000:0000"


def answer(words: Sequence[str], root: Path = sysfs.SYS) -> tuple[str, int]:
    """The command's output and exit status."""
    about = "Show the GIDs of RDMA devices, as show_gids does."
    parser = parser_for("gids", about, "example: hpn gids mlx5_0 1")
    parser.add_argument("device", nargs="?", default="", help="an RDMA device, such as mlx5_0; default: all")
    parser.add_argument("port", nargs="?", type=written.number, help="default: all")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args(words)
    found = list(_gids(root, options.device, options.port))
    if options.json:
        return as_document({"gids": [_members(gid) for gid in found]}), 0
    lines = [*_HEADER, *("\t".join(_row(gid)) for gid in found), f"n_gids_found={len(found)}"]
    return "".join(f"{line}\n" for line in lines), 0


def _gids(root: Path, device: str, port: int | None) -> Iterator[Gid]:
    """The GIDs in the order of show_gids, which sorts names: 10 comes before 2.  Raises LinkUnavailable."""
    for hca in sorted(rdma_devices.one_of(rdma_devices.hcas(root), device), key=lambda hca: hca.name):
        numbers = [one.number for one in hca.ports]
        if port is not None and port not in numbers:
            there = ", ".join(map(str, numbers)) or "none"
            raise LinkUnavailable(f"{hca.name} has no port {port}; its ports: {there}")
        for one in sorted(hca.ports, key=lambda one: str(one.number)):
            if port in (None, one.number):
                yield from sorted(filter(_is_set, rdma_devices.gids(hca, one)), key=lambda gid: str(gid.index))


def _is_set(gid: Gid) -> bool:
    return gid.gid != _UNSET


def _row(gid: Gid) -> tuple[str, ...]:
    # An address is followed by two blanks; without one the column is a tab.
    address = f"{gid.address}  " if gid.address else "\t"
    ids = (printable(gid.device), f"{gid.port}", f"{gid.index}", gid.gid)
    return *ids, address, _version(gid.kind), printable(gid.netdev)


def _version(kind: str) -> str:
    """ "v2" of "RoCE v2"."""
    at = kind.lower().find("v")
    return kind[at:] if at >= 0 else ""


def _members(gid: Gid) -> Json:
    return {
        "device": gid.device,
        "port": gid.port,
        "index": gid.index,
        "gid": gid.gid,
        "ipv4": gid.address,
        "type": gid.kind,
        "netdev": gid.netdev,
    }
