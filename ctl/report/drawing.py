"""The node as a picture: for each NUMA node its NICs, for each NIC its GPUs and VFs, and their pods.  Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from base.protocol.spec import Json
from base.table import printable
from ctl.selection import who

# In pixels.  A VF is a square cell, in rows below its NIC.
_GAP, _CELL, _PER_ROW, _NIC_HIGH, _POD_HIGH = 14, 19, 16, 60, 44
_GPU_AT, _NIC_AT, _POD_AT, _WIDE = 96, 236, 680, 960
_NIC_WIDE: Final = _PER_ROW * _CELL + 12
# A line has its NIC's colour; most people can distinguish these.
_COLOURS: Final = ("#1c7ed6", "#e8590c", "#2f9e44", "#9c36b5", "#0c8599", "#c2255c", "#66a80f", "#5f3dc4")
Point = tuple[float, float]


@dataclass(frozen=True)
class Nic:
    """A PF or a standalone device; ``top`` is its vertical position."""

    device: Json
    top: int
    colour: str

    @property
    def below(self) -> list[Json]:
        """Its VFs and subfunctions.  hpn devices lists these, and GPUs, for PFs only."""
        return list(self.device.get("below", ()))

    @property
    def high(self) -> int:
        rows = -(-len(self.below) // _PER_ROW)
        return _NIC_HIGH + rows * _CELL + (6 if rows else 0)

    def cells(self) -> Iterator[tuple[Json, Point]]:
        """Its VFs and subfunctions, with their positions."""
        for number, one in enumerate(self.below):
            row, column = divmod(number, _PER_ROW)
            yield one, (_NIC_AT + 6 + column * _CELL, self.top + _NIC_HIGH + row * _CELL)

    def ends(self) -> Iterator[tuple[str, Point]]:
        """The start of lines to pods, by the names in attachments: bus addresses, and the NIC's interfaces.

        It is at the NIC's edge, beside the VF's row, so that no line crosses text.
        """
        edge = float(_NIC_AT + _NIC_WIDE)
        yield from (
            (name, (edge, self.top + _NIC_HIGH / 2)) for name in (self.device["device"], *self.device["netdevs"])
        )
        yield from ((one["device"], (edge, y + _CELL / 2)) for one, (_, y) in self.cells())


def draw(devices: Sequence[Json], attachments: Sequence[Json], claims: Sequence[Json] = ()) -> str:
    """An SVG element.  The arguments are the lists of ``hpn devices --json`` and ``hpn inspect --json``."""
    nics = _placed(devices)
    pods: dict[str, list[Json]] = {}
    for a in attachments:
        pods.setdefault(who(a), []).append(a)
    for one in claims:  # they await their interfaces
        waiting = {"ifname": one["request"], "addresses": ["not attached"], "alive": True, "device": one["device"]}
        pods.setdefault(f"claim {one['claim']}", []).append(waiting)
    bottom = max((nic.top + nic.high for nic in nics), default=0)
    step = max((bottom - _GAP) / max(len(pods), 1), _POD_HIGH + _GAP)  # spread beside the NICs, without overlap
    places = {pod: 2 * _GAP + number * step for number, pod in enumerate(pods)}
    high = max(bottom, *(top + _POD_HIGH for top in places.values()), 0) + 2 * _GAP
    parts = [*_numa_nodes(nics), *(part for nic in nics for part in _nic(nic))]
    parts += [*_lines(nics, pods, places), *(part for pod in pods for part in _box(pod, pods[pod], places[pod]))]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDE} {high:g}"><title>'
        f"NICs, their VFs, and the pods that have them</title>{''.join(parts)}</svg>"
    )


def _placed(devices: Sequence[Json]) -> list[Nic]:
    """The NICs by NUMA node, with a gap between nodes."""
    nics: list[Nic] = []
    top, numa = _GAP * 2, object()
    for number, device in enumerate(sorted(devices, key=lambda d: (_numa(d), str(d["device"])))):
        top += 2 * _GAP if nics and device["numa"] != numa else 0
        nics.append(Nic(device, top, _COLOURS[number % len(_COLOURS)]))
        top, numa = top + nics[-1].high + _GAP, device["numa"]
    return nics


def _numa(device: Json) -> int:
    return -1 if device["numa"] is None else int(device["numa"])


def _numa_nodes(nics: Sequence[Nic]) -> Iterator[str]:
    for number in sorted({_numa(nic.device) for nic in nics}):
        inside = [nic for nic in nics if _numa(nic.device) == number]
        top, bottom = inside[0].top - 8, inside[-1].top + inside[-1].high + 8
        yield _rect(4, top, _NIC_AT + _NIC_WIDE + 4, bottom - top, "numa")
        yield _text(14, top + 18, "no NUMA node" if number < 0 else f"NUMA node {number}", "dim")


def _nic(nic: Nic) -> Iterator[str]:
    device = nic.device
    for number, gpu in enumerate(device.get("gpus", ())[:2]):
        top = nic.top + number * 28
        yield _rect(_GPU_AT, top, _NIC_AT - _GPU_AT - 14, 24, "gpu")
        yield _text(_GPU_AT + 6, top + 16, f"{gpu['address']} {gpu['word']}", "small")
    yield _rect(_NIC_AT, nic.top, _NIC_WIDE, nic.high, "nic", nic.colour)
    yield _text(_NIC_AT + 8, nic.top + 20, f"{', '.join(device['netdevs']) or device['device']}", "name")
    yield _text(
        _NIC_AT + 8,
        nic.top + 36,
        f"{device['device']}  {device['vendor']}:{device['product']}  {device['driver']}",
        "small",
    )
    yield _text(_NIC_AT + 8, nic.top + 51, "  ".join(_rdma(device)) or "no RDMA device", "small")
    for one, (x, y) in nic.cells():
        name = f"{one['device']} {one['driver']}: {one['usedBy'] or 'nobody has it'}"
        taken = one["usedBy"] not in ("", "free")
        cell = _rect(x + 1, y + 1, _CELL - 3, _CELL - 3, "taken" if taken else "free", nic.colour if taken else "")
        yield f"<g>{cell}<title>{escape(printable(name))}</title></g>"


def _rdma(device: Json) -> Iterator[str]:
    for hca in device["rdma"]:
        for port in hca.get("ports", ()):
            yield f"{hca['device']}/{port['port']} {port['state']}"
        if not hca.get("ports"):
            yield str(hca["device"])


def _lines(nics: Sequence[Nic], pods: Mapping[str, list[Json]], places: Mapping[str, float]) -> Iterator[str]:
    ends = {name: (point, nic.colour) for nic in nics for name, point in nic.ends()}
    for pod, attachments in pods.items():
        for number, a in enumerate(attachments):
            end = ends.get(a.get("device") or a.get("netdev") or "") or ends.get(a.get("master") or "")
            if end:
                (x, y), colour = end
                to = places[pod] + 10 + number * (_POD_HIGH - 20) / max(len(attachments) - 1, 1)
                bend = (x + _POD_AT) / 2
                course = f"M{x:g} {y:g}C{bend:g} {y:g} {bend:g} {to:g} {_POD_AT} {to:g}"
                yield f'<path class="line" stroke="{colour}" d="{course}"/>'


def _box(pod: str, attachments: Sequence[Json], top: float) -> Iterator[str]:
    dead = not all(a["alive"] for a in attachments)
    yield _rect(_POD_AT, top, _WIDE - _POD_AT - 6, _POD_HIGH, "dead" if dead else "pod")
    yield _text(_POD_AT + 8, top + 18, pod + (" (dead)" if dead else ""), "name", 32)
    addresses = (f"{a['ifname']} {(a['addresses'] or ['no address'])[0]}" for a in attachments)
    yield _text(_POD_AT + 8, top + 35, ", ".join(addresses), "small", 39)


def _rect(x: float, y: float, wide: float, high: float, kind: str, colour: str = "") -> str:
    paint = f' style="--own:{colour}"' if colour else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="3" class="{kind}"{paint}/>'


def _text(x: float, y: float, words: str, kind: str, most: int = 46) -> str:
    words = printable(words)
    shown = words if len(words) <= most else f"{words[: most - 1]}…"
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(shown)}</text>'
