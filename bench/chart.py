"""Figures as SVG: text, so that a diff shows each change, and without a drawing library."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10

OURS, THEIRS = "#2ca02c", "#d62728"
_LEFT, _WIDTH, _ROW = 490, 420, 46
_LEAST, _DECADES = 0.1, 5  # from 0.1 to 10,000 ms


@dataclass(frozen=True)
class Bar:
    """One comparison, in milliseconds per pod."""

    title: str
    theirs: float
    ours: float


def bars(rows: Sequence[Bar], theirs: str, ours: str) -> str:
    """Two bars per row, on a logarithmic scale."""

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


@dataclass(frozen=True)
class Panel:
    """One quantity of each side, as a ratio to the first side."""

    title: str
    of: dict[str, float]


def panels(grid: Sequence[Sequence[Panel]], says: str) -> str:
    """Panels in rows, each with its own scale and one bar per ratio; ``says`` explains 1.0."""
    width, left, row = 330, 100, 24
    heights = [row * max(len(panel.of) for panel in line) + 50 for line in grid]
    size = f'width="{width * max(map(len, grid))}" height="{sum(heights) + 34}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20">{says}</text>',
    ]
    for n, line in enumerate(grid):
        for m, panel in enumerate(line):
            parts.append(f'<g transform="translate({width * m} {34 + sum(heights[:n])})">')
            parts.append(f'<text x="10" y="18" font-size="14">{panel.title}</text>')
            bottom, unit = 30 + row * len(panel.of), min(100, 170 / max(panel.of.values()))
            parts.append(f'<path d="M{left + unit:.1f} 26V{bottom}" stroke="#555" stroke-dasharray="3"/>')
            for i, (name, ratio) in enumerate(panel.of.items()):
                top = 30 + row * i
                parts.append(f'<text x="{left - 8}" y="{top + 13}" text-anchor="end">{name}</text>')
                parts.append(f'<rect x="{left}" y="{top}" width="{unit * ratio:.1f}" height="17" fill="{OURS}"/>')
                end = left + unit * max(ratio, 1)  # beside the line at 1.0, not across it
                parts.append(f'<text x="{end + 5:.1f}" y="{top + 13}">{ratio:.2f}</text>')
            parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])
