"""Text for people: aligned columns, and strangers' text made safe for a terminal or a log.

Names come from pods, and a terminal would execute their control characters.  Both ctl and node need it.
"""

from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """A line for each row, with its cells in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def abridged(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """The first ``most`` of the texts, with the number of the others: "a, b and 3 more"."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return f"{between.join(texts[:most])}{more}"


def printable(line: str) -> str:
    """The line with escapes for control characters and for bytes that are no text."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def printable_lines(text: str) -> str:
    """The same for several lines, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))
