"""Output for people: tables, sentences, and progress.

On a terminal rich draws it in colour and at the terminal's width.  Elsewhere the same text is in plain columns, for
grep and for a ticket, without the time of rich's import.
"""

import io
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from base.table import aligned, printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")

# The first word of a cell -> its style.
_STYLES: Final = {
    **dict.fromkeys(("alive", "attached", "ok", "up", "active", "held", "yes"), "green"),
    **dict.fromkeys(("dead", "down", "error", "lost", "wrong", "unreadable", "refused"), "bold red"),
    **dict.fromkeys(("warning", "incomplete", "half-attached", "half-detached", "doubtful", "init", "armed"), "yellow"),
    "-": "dim",
}
_QUIET: Final = 1.0  # seconds of work before a bar appears


class Alarm(str):
    """A cell that is drawn as an error, whatever its text."""

    __slots__ = ()


@dataclass(frozen=True)
class Table:
    """A header, and rows of the same length."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def text(parts: Iterable[Table | str]) -> str:
    """The parts below each other, each with a newline.

    Unprintable characters are escaped: names may come from a pod, and a terminal would obey them.
    """
    return _drawn(parts) if os.isatty(1) else "".join(f"{line}\n" for part in parts for line in _plain(part))


def show(words: str) -> None:
    """Write to stdout at once, for a command that runs until it is stopped."""
    sys.stdout.write(words)
    sys.stdout.flush()


def show_over(line: str) -> None:
    """Show a line: on a terminal it replaces the previous one, elsewhere it follows it."""
    show(f"\r{line}" if os.isatty(1) else f"{line}\n")


def live(frames: Iterable[Sequence[Table | str]]) -> None:
    """Show frames as they come: on a terminal each replaces the previous one, elsewhere they follow each other."""
    if not os.isatty(1):
        for frame in frames:
            show(text([*frame, ""]))
        return
    from rich.console import Console  # noqa: PLC0415  # only a terminal waits for it
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    with Live(console=Console(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as drawn:
        for frame in frames:
            drawn.update(Text.from_ansi(text(frame)), refresh=True)


def progress(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items; after 1 s of work show a bar on stderr, if that is a terminal."""
    if not os.isatty(2):
        yield from items
        return
    begun = time.monotonic()
    for number, item in enumerate(items):
        yield item
        if time.monotonic() - begun > _QUIET:
            rest = items[number + 1 :]
            break
    else:
        return
    # Most commands end before they need this import.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    console = Console(stderr=True)
    with Progress(console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task(printable(what), total=len(items), completed=len(items) - len(rest))
        for item in rest:
            yield item
            bar.advance(task)


def moment(when: str | int) -> str:
    """A time as "2026-11-22 16:08:57Z".  ``when`` is ISO 8601 in UTC, or seconds since 1970."""
    return f"{when[:19].replace('T', ' ') if isinstance(when, str) else time.strftime('%F %T', time.gmtime(when))}Z"


def _plain(part: Table | str) -> Iterator[str]:
    if isinstance(part, str):
        yield from printable_lines(part).split("\n")
    else:
        yield from aligned([tuple(map(printable, row)) for row in (part.header, *part.rows)])


def _drawn(parts: Iterable[Table | str]) -> str:
    from rich.console import Console  # noqa: PLC0415  # only a terminal waits for it

    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, markup=False, highlight=False, emoji=False)
    for part in parts:
        if isinstance(part, str):
            console.print("\n".join(_plain(part)), soft_wrap=True)
        else:
            _draw(console, part)
    return drawn.getvalue()


def _draw(console: "Console", table: Table) -> None:
    from rich.table import Table as Rich  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Rich(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in table.header:
        drawn.add_column(Text(name), overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(printable(cell), _style(cell)) for cell in row))
    console.print(drawn)


def _style(cell: str) -> str:
    if isinstance(cell, Alarm):
        return "bold red"
    words = cell.lower().replace(",", " ").split()
    return _STYLES.get(words[0], "") if words else ""
