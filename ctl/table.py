"""Tables for people."""

from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """A line for each row, with its cells in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
