"""The lines of OFED's ibdev2netdev: which interface an RDMA port has."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from cni.kernel import sysfs
from cni.protocol.printable import printable
from ctl.hardware.rdma import Hca, Port

_MELLANOX: Final = "0x15b3"
# Vital product data (PCI Local Bus 3.0, appendix I): the tags of its name and of what cannot be written.
_NAME, _READ_ONLY, _END = 0x82, 0x90, 0x78
_HEADER: Final = 3  # a tag, and the length of what follows


def lines(hcas: Iterable[Hca], root: Path = sysfs.SYS, *, verbose: bool = False) -> Iterator[str]:
    """A line for each port whose interface is in this namespace; with ``verbose`` those of ``ibdev2netdev -v``."""
    for hca in hcas:
        for port in hca.ports:
            if port.netdev:
                begin = _begin(hca, port, root) if verbose else f"{hca.name} port {port.number}"
                yield printable(f"{begin} ==> {port.netdev} ({_link(port, root)})")


def _begin(hca: Hca, port: Port, root: Path) -> str:
    name, part = _product(f"{root}/bus/pci/devices/{hca.device}/vpd")
    who = f"{hca.device or '-'} {hca.name} ({_model(hca, root)} - {part:11}) {name:15}"
    return f"{who} fw {hca.fw_ver or 'NA'} port {port.number} ({port.state_name:6})"


def _link(port: Port, root: Path) -> str:
    return "Up" if sysfs.line(f"{root}/class/net/{port.netdev}/carrier") == "1" else "Down"


def _model(hca: Hca, root: Path) -> str:
    """ "MT4123" as Mellanox calls its chips, of others PCI's numbers."""
    vendor, device = (sysfs.line(f"{root}/bus/pci/devices/{hca.device}/{name}") for name in ("vendor", "device"))
    if not re.fullmatch("0x[0-9a-fA-F]{1,8}", device):
        return "NA"
    return f"MT{int(device, 16)}" if vendor == _MELLANOX else f"{vendor[2:]}:{device[2:]}"


def _product(path: str) -> tuple[str, str]:
    """The product's name and part number; "" and "NA" where they cannot be read, as without privileges."""
    try:
        data = Path(path).read_bytes()
    except OSError:
        return "", "NA"
    found = dict(_resources(data))
    parts = dict(_fields(found.get(_READ_ONLY, b"")))
    return _text(found.get(_NAME, b"")), _text(parts.get(b"PN", b"")) or "NA"


def _resources(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _HEADER and data[0] != _END:
        length = int.from_bytes(data[1:_HEADER], "little")
        yield data[0], data[_HEADER : _HEADER + length]
        data = data[_HEADER + length :]


def _fields(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    while len(data) >= _HEADER:
        length = data[2]
        yield data[:2], data[_HEADER : _HEADER + length]
        data = data[_HEADER + length :]


def _text(data: bytes) -> str:
    return data.decode("ascii", "replace").strip("\0 ")
