"""The report as one HTML page, which loads nothing and runs nothing.  Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from base.protocol.spec import Json
from base.state.record import LOST
from base.table import printable_lines
from ctl.report.drawing import draw
from ctl.screen import moment
from ctl.selection import who

# Only the page's own style: names from pods stay text.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


# Light and dark.
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #212529; --dim: #6c757d; --line: #ced4da; --paper: #fff; --box: #f8f9fa;
  --bad: #c92a2a; --warn: #b35c00; --good: #2b8a3e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e9ecef; --dim: #adb5bd; --line: #495057; --paper: #16191c;
  --box: #212529; --bad: #ff8787; --warn: #ffc078; --good: #8ce99a; } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 75rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; } p { margin: .3rem 0; }
.dim { color: var(--dim); } .wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
td { font-family: ui-monospace, monospace; font-size: 12px; white-space: pre-wrap; }
pre { background: var(--box); padding: .75rem; overflow-x: auto; font-size: 12px; }
.error, .dead, .lost { color: var(--bad); } .warning { color: var(--warn); } .alive { color: var(--good); }
svg { width: 100%; height: auto; font-family: ui-monospace, monospace; }
svg text { fill: var(--ink); font-size: 11px; } svg .name { font-size: 13px; font-weight: 600; }
svg .dim { fill: var(--dim); } svg rect { stroke: var(--line); fill: var(--box); }
svg .numa { fill: none; stroke-dasharray: 4 3; } svg .nic { stroke: var(--own); stroke-width: 2; }
svg .free { fill: var(--paper); } svg .taken { fill: var(--own); stroke: var(--own); }
svg .dead { stroke: var(--bad); stroke-width: 2; } svg .line { fill: none; stroke-width: 1.5; opacity: .8; }
"""


@dataclass(frozen=True)
class Answer:
    """A command's answer: its command line, its document, and why there is none."""

    command: str
    document: Json
    trouble: str = ""


def page(title: str, about: Sequence[str], answers: Mapping[str, Answer]) -> str:
    """The page.  ``about`` is the lines below the title; ``answers`` the answer for each part."""
    documents = {part: one.document for part, one in answers.items()}
    sections = [*_sections(documents), *_troubles(answers.values()), *_raw(answers)]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width"><title>{_text(title)}</title><style>{_STYLE}</style>'
    )
    lines = "".join(f'<p class="dim">{_text(line)}</p>' for line in about)
    body = f"<h1>{_text(title)}</h1>{lines}{''.join(sections)}"
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _sections(documents: Mapping[str, Json]) -> Iterator[str]:
    devices = documents["devices"].get("devices", [])
    attachments = documents["attachments"].get("attachments", [])
    if devices or attachments:
        claims = documents["attachments"].get("claims", [])
        yield f'<h2>The node</h2><div class="wide">{draw(devices, attachments, claims)}</div>'
    findings = [
        [(one["severity"], one["severity"]), one["id"], one["evidence"], one["remedy"]]
        for one in documents["findings"].get("findings", [])
    ]
    yield _section(f"Findings: {len(findings)}", ("severity", "id", "evidence", "remedy"), findings)
    header = ("pod", "claim", "interface", "network", "kind", "device", "addresses", "RDMA", "state", "trouble")
    yield _section(f"Attachments: {len(attachments)}", header, [_attachment(a) for a in attachments])
    yield from _rest(documents)
    networks = documents["pools"].get("networks", [])
    pools = [[network["network"], *_pool(pool)] for network in networks for pool in network["pools"]]
    yield _section("Pools", ("network", "ranges", "held", "kept back", "free", "size"), pools)
    members = ("device", "port", "index", "gid", "type", "netdev")
    yield _section("GIDs", members, [[gid[name] for name in members] for gid in documents["gids"].get("gids", [])])


def _attachment(a: Json) -> list["Cell"]:
    device = str(a.get("device") or a.get("netdev") or a.get("master") or "")
    addresses, rdma = "\n".join(a["addresses"]), "\n".join(a["rdma"]["devices"])
    claim = str(a.get("claim", {}).get("name", ""))
    return [who(a), claim, a["ifname"], a["network"], a["kind"], device, addresses, rdma, _state(a), _trouble(a)]


def _trouble(a: Json) -> str:
    """The attachment's trouble, and the error of its last failed command."""
    lines, error = [a["trouble"]] if "trouble" in a else [], a.get("lastError")
    if error:
        lines.append(f"{error['command']} failed, {moment(error['time'])}, code {error['code']}: {error['msg']}")
    return "\n".join(lines)


def _rest(documents: Mapping[str, Json]) -> Iterator[str]:
    """Claims without their interfaces, detached attachments whose addresses are not released, and unreadable items."""
    members = ("claim", "request", "device", "attach")
    if waiting := [[one[name] for name in members] for one in documents["attachments"].get("claims", [])]:
        yield _section(f"Prepared claims, not attached: {len(waiting)}", members, waiting)
    refused = [
        [who(a), a["network"], "\n".join(a["addresses"]), a.get("trouble", ""), a["file"]]
        for a in documents["attachments"].get("refused", [])
    ]
    if refused:
        header = ("pod", "network", "addresses", "trouble", "file")
        yield _section(f"Detached, and not released by their IPAM: {len(refused)}", header, refused)
    unread = [f"{path} cannot be read" for path in documents["attachments"].get("unreadable", [])]
    unread += documents["devices"].get("unread", [])
    if unread:
        lines = "".join(f'<p class="error">{_text(line)}</p>' for line in unread)
        yield f"<h2>What is unknown</h2>{lines}"


def _pool(pool: Json) -> list["Cell"]:
    ranges = "\n".join(pool["ranges"]) or "elsewhere"
    kept = sum(pool[word] for word in ("dead", "cooling", "sticky", "conflict", "doubtful", "unreadable"))
    return [ranges, pool["held"], kept, _number(pool["free"]), _number(pool["size"])]


def _state(a: Json) -> tuple[str, str]:
    word = "alive" if a["alive"] else "dead"
    if a["kind"] == LOST and a["alive"]:  # a damaged record does not show whether the attachment is in order
        return LOST, LOST
    return word if a["complete"] else f"{word}, incomplete", word


def _number(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


Cell = str | int | tuple[str, str]


def _section(title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table.  A cell of two strings has its text, and the class that colours it."""
    if not rows:
        return f'<h2>{_text(title)}</h2><p class="dim">none</p>'
    cells = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    head = "".join(f"<th>{_text(name)}</th>" for name in header)
    return f'<h2>{_text(title)}</h2><div class="wide"><table><tr>{head}</tr>{cells}</table></div>'


def _cell(cell: Cell) -> str:
    words, kind = cell if isinstance(cell, tuple) else (str(cell), "")
    return f'<td class="{_text(kind)}">{_text(words)}</td>'


def _troubles(answers: Iterable[Answer]) -> Iterator[str]:
    troubles = [one for one in answers if one.trouble]
    if troubles:
        lines = "".join(f'<p class="error">{_text(one.command)}: {_text(one.trouble)}</p>' for one in troubles)
        yield f"<h2>What could not be read</h2>{lines}"


def _raw(answers: Mapping[str, Answer]) -> Iterator[str]:
    """Each document, for processing by programs."""
    yield "<h2>The documents</h2>"
    for one in answers.values():
        text = json.dumps(one.document, indent=1)
        yield f"<details><summary>{_text(one.command)}</summary><pre>{_text(text)}</pre></details>"


def _text(words: str) -> str:
    return escape(printable_lines(words))
