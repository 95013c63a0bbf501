"""Figures as SVG: text, so that a change of one is seen in a diff, and no library to draw it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10

OURS, THEIRS = "#2ca02c", "#d62728"
_LEFT, _WIDTH, _ROW = 490, 420, 46
_LEAST, _DECADES = 0.1, 5  # from 0.1 to 10,000 ms


@dataclass(frozen=True)
class Bar:
    """One comparison, in milliseconds a pod."""

    title: str
    theirs: float
    ours: float


def bars(rows: Sequence[Bar], theirs: str, ours: str) -> str:
    """Two bars a row, by powers of ten."""

    def x(ms: float) -> float:
        return _WIDTH * (log10(ms / _LEAST)) / _DECADES

    width, height = _LEFT + _WIDTH + 80, _ROW * len(rows) + 70
    root = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
    parts = [
        f'{root} font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">ms a pod</text>',
        f'<text x="{_LEFT + 90}" y="20" fill="{THEIRS}">■ {theirs}</text>',
        f'<text x="{_LEFT + 210}" y="20" fill="{OURS}">■ {ours}</text>',
    ]
    for decade in range(_DECADES + 1):
        at = _LEFT + _WIDTH * decade / _DECADES
        parts.append(f'<path d="M{at:.1f} 34V{height - 30}" stroke="#ddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{height - 12}" text-anchor="middle">{_LEAST * 10**decade:g}</text>')
    for i, row in enumerate(rows):
        top = 40 + _ROW * i
        parts.append(f'<text x="{_LEFT - 10}" y="{top + 22}" text-anchor="end">{row.title}</text>')
        for offset, ms, colour in ((4, row.theirs, THEIRS), (20, row.ours, OURS)):
            parts.append(f'<rect x="{_LEFT}" y="{top + offset}" width="{x(ms):.1f}" height="14" fill="{colour}"/>')
            parts.append(f'<text x="{_LEFT + x(ms) + 5:.1f}" y="{top + offset + 11}">{ms:.2f}</text>')
    return "\n".join([*parts, "</svg>", ""])
