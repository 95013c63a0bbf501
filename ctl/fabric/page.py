"""The result of a test as one HTML page with a heat map for each rail, which loads nothing and runs nothing.  Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from base.protocol.spec import Json
from base.table import printable_lines

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } .dim { opacity: .7; } .wide { overflow-x: auto; }
table { border-collapse: collapse; } th, td { padding: .2rem .4rem; text-align: left; font-size: 12px; }
.map td { text-align: right; color: #000; min-width: 3rem; } .map th { font-weight: 400; }
.none { background: #dee2e6; } .ok { background: hsl(calc(120 * var(--share)) 65% 70%); } .slow { background: #ffa94d; }
.cut, .leaks { background: #ff6b6b; }
.not { background: repeating-linear-gradient(45deg, #ced4da 0 4px, #f1f3f5 4px 8px); }
pre { overflow-x: auto; font-size: 12px; }
"""


def page(body: Json) -> str:
    """The page of a document (document.py)."""
    found = body["findings"]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>hpn fabric test</title><style>{_STYLE}</style>"
    )
    counts = ", ".join(f"{count} {word}" for word, count in body["counts"].items())
    about = f"{body['time']}, {len(body['hosts'])} hosts, {counts or 'no trial'}, {body['seconds']:.0f} s"
    parts = [f"<h1>hpn fabric test</h1><p class=dim>{_text(about)}</p>", f"<h2>Findings: {len(found)}</h2>"]
    parts += [_finding(one) for one in found] or ["<p class=dim>none</p>"]
    parts += _maps(body)
    document = _text(json.dumps(body, indent=1))
    parts.append(f"<h2>The document</h2><details><summary>JSON</summary><pre>{document}</pre></details>")
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _finding(one: Json) -> str:
    places = " and ".join(f"rail {place['rail']} of {place['host']}" for place in one["places"])
    causes = "".join(f"<li>{_text(cause)}</li>" for cause in one["causes"])
    return (
        f"<p><b>{_text(one['verdict'])}: {_text(places)}</b> ({_text(one['culprit'])})<br>{_text(one['why'])}</p>"
        f"<ul>{causes}</ul>"
    )


def _maps(body: Json) -> Iterator[str]:
    names = [host["name"] for host in body["hosts"]]
    rails = sorted({one["rails"][0] for one in body["trials"]})
    for rail in rails:
        trials = [one for one in body["trials"] if one["rails"][0] == rail]
        most = max((one[way] or 0.0 for one in trials for way in ("forth", "back")), default=0.0) or 1.0
        cells = {}
        for one in trials:
            first, second = one["hosts"]
            cells[first, second], cells[second, first] = _cell(one, "forth", most), _cell(one, "back", most)
        yield f"<h2>Rail {rail}: Gb/s from the row's host to the column's</h2>{_map(names, cells)}"


def _map(names: Sequence[str], cells: Mapping[tuple[str, str], str]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    rows = "".join(
        f"<tr><th>{_text(one)}</th>{''.join(cells.get((one, other), '<td class=none></td>') for other in names)}</tr>"
        for one in names
    )
    return f'<div class="wide"><table class="map"><tr><th></th>{head}</tr>{rows}</table></div>'


def _cell(one: Json, way: str, most: float) -> str:
    value = one[way]
    words = "-" if value is None else f"{value:.4g}"
    latency = "" if one["latency"] is None else f", {one['latency']:.4g} us"
    kind, share = str(one["verdict"]).split()[0], 0.0 if value is None else value / most
    title = _text(f"{one['verdict']}{latency} {one['why']}")
    return f'<td class="{_text(kind)}" style="--share:{share:.3f}" title="{title}">{words}</td>'


def _text(words: str) -> str:
    return escape(printable_lines(words))
