"""Output in the formats of other programs: OFED's ibdev2netdev, and selectors for device plugins."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Final

from base.kernel import sysfs
from base.table import printable
from hardware.functions import Function
from hardware.model import Kind
from hardware.rdma_devices import Hca, Port

_MELLANOX: Final = "0x15b3"
# Vital product data (PCI Local Bus 3.0, appendix I): the tags of the name, of read-only fields, and of the end.
_NAME, _READ_ONLY, _END = 0x82, 0x90, 0x78
_HEADER: Final = 3  # a tag, and the length of its data


def ibdev2netdev(hcas: Iterable[Hca], root: Path = sysfs.SYS, *, verbose: bool = False) -> Iterator[str]:
    """A line for each port with an interface in this namespace; ``verbose`` is the option -v of ibdev2netdev."""
    for hca in hcas:
        for port in hca.ports:
            if port.netdev:
                begin = _begin(hca, port, root) if verbose else f"{hca.name} port {port.number}"
                is_up = sysfs.line(f"{root}/class/net/{port.netdev}/carrier") == "1"
                yield printable(f"{begin} ==> {port.netdev} ({'Up' if is_up else 'Down'})")


def _begin(hca: Hca, port: Port, root: Path) -> str:
    name, part = _product(f"{root}/bus/pci/devices/{hca.device}/vpd")
    who = f"{hca.device or '-'} {hca.name} ({_model(hca, root)} - {part:11}) {name:15}"
    return f"{who} fw {hca.fw_ver or 'NA'} port {port.number} ({port.state_name:6})"


def _model(hca: Hca, root: Path) -> str:
    """ "MT4123" as Mellanox calls its chips, of others PCI's numbers."""
    vendor, device = (sysfs.line(f"{root}/bus/pci/devices/{hca.device}/{name}") for name in ("vendor", "device"))
    if not re.fullmatch("0x[0-9a-fA-F]{1,8}", device):
        return "NA"
    return f"MT{int(device, 16)}" if vendor == _MELLANOX else f"{vendor[2:]}:{device[2:]}"


def _product(path: str) -> tuple[str, str]:
    """The product's name and part number; "" and "NA" if unreadable, as without privileges."""
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


Selectors = Mapping[str, object]
_PREFIX: Final = "example.com"  # kubelet requires one; the other program takes it as a flag


def hpn_node(found: list[Function]) -> str:
    """Entries of ``resources`` for the VFs of each PF, or for a PF without VFs; empty for nothing to offer."""
    lines = list[str]()
    for name, kind, selectors in _entries(found):
        lines += [f"- name: {_PREFIX}/{name}", f"  kind: {kind}", "  selectors:"]
        lines += [f"    {key}: {json.dumps(value)}" for key, value in selectors.items()]
    return "\n".join(["resources:", *lines]) if lines else ""


def sriov_network_device_plugin(found: list[Function]) -> str:
    """Its configuration; empty for nothing to offer."""
    resources = [{"resourceName": name, "selectors": selectors} for name, _, selectors in _entries(found)]
    lines = ",\n".join(f"  {json.dumps(one)}" for one in resources)
    return f'{{"resourceList": [\n{lines}\n]}}' if lines else ""


def _entries(found: list[Function]) -> Iterator[tuple[str, str, Selectors]]:
    """A name, a kind, and selectors in the syntax of both programs."""
    for pf in found:
        if pf.device.kind is not Kind.PF or pf.device.reserved:
            continue
        title = re.sub(r"\W", "_", pf.device.pf_netdev or pf.device.id)
        vfs = [one for one in pf.below if one.device.kind is Kind.VF]
        if not vfs:
            yield f"{title}_pf", "pf", _common(pf) | {"pciAddresses": [pf.device.id]}
        for number, (_, same) in enumerate(groupby(vfs, key=_common)):
            chosen = list(same)
            name = f"{title}_vf" if not number else f"{title}_vf{chosen[0].device.index}"
            yield name, "vf", _common(chosen[0]) | _of_pf(pf, chosen, whole=len(chosen) == len(vfs))


def _common(one: Function) -> dict[str, object]:
    device = one.device
    lists = {"vendors": [device.vendor], "devices": [device.product], "drivers": [device.driver]}
    rdma: dict[str, object] = {"isRdma": True} if device.rdma else {}
    return {key: values for key, values in lists.items() if values[0]} | rdma


def _of_pf(pf: Function, vfs: list[Function], *, whole: bool) -> dict[str, object]:
    """The PF by its interface's name, or else by its address; and a range of its VFs."""
    numbers = [one.device.index for one in vfs]
    some = "" if whole else f"#{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"#{numbers[0]}"
    if pf.device.pf_netdev:
        return {"pfNames": [f"{pf.device.pf_netdev}{some}"]}
    return {"rootDevices": [f"{pf.device.id}{some}"]}
