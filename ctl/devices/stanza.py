"""Ready selectors for a PF's devices: of ``hpn node``'s own file, and of sriov-network-device-plugin's."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Final

from ctl.hardware.functions import Function
from node.model import Kind

Selectors = Mapping[str, object]
_PREFIX: Final = "example.com"  # kubelet wants one; of the other program's it is a flag


def hpn_node(found: list[Function]) -> str:
    """An entry of ``resources`` for the VFs of each PF, or for a PF that has none; empty for nothing to offer."""
    entries = [line for name, kind, selectors in _resources(found) for line in _entry(name, kind, selectors)]
    return "\n".join(["resources:", *entries]) if entries else ""


def sriov_network_device_plugin(found: list[Function]) -> str:
    """Its configuration; empty for nothing to offer."""
    resources = [{"resourceName": name, "selectors": selectors} for name, _, selectors in _resources(found)]
    lines = ",\n".join(f"  {json.dumps(one)}" for one in resources)
    return f'{{"resourceList": [\n{lines}\n]}}' if lines else ""


def _resources(found: list[Function]) -> Iterator[tuple[str, str, Selectors]]:
    """A name, a kind, and selectors that both programs know."""
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
    """The PF by the name of its interface, or by its address without one, and which of its VFs."""
    numbers = [one.device.index for one in vfs]
    some = "" if whole else f"#{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"#{numbers[0]}"
    if pf.device.pf_netdev:
        return {"pfNames": [f"{pf.device.pf_netdev}{some}"]}
    return {"rootDevices": [f"{pf.device.id}{some}"]}


def _entry(name: str, kind: str, selectors: Selectors) -> Iterator[str]:
    yield f"- name: {_PREFIX}/{name}"
    yield f"  kind: {kind}"
    yield "  selectors:"
    yield from (f"    {key}: {json.dumps(value)}" for key, value in selectors.items())
