"""hpn fabric wiring: the table of rails and leaves, and the findings."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from base.kernel import sysfs
from base.protocol.errors import CniError
from base.protocol.spec import Json
from base.table import printable_lines
from ctl.command_line import as_document
from ctl.fabric.wiring import findings, reading
from ctl.fabric.wiring.findings import Miswired
from ctl.fabric.wiring.groups import LeafGroup, Wire, grouped, in_order, majority
from ctl.screen import Table, text

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_CANNOT: Final = 2
_ABOUT: Final = "Show at which leaf each rail is, by LLDP, and where a node differs from the others."


def add(commands: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the parser of this command."""
    about = "Exit status: 0; 1 for a finding; 2 if it could not look, and for wrong options."
    parser = commands.add_parser("wiring", help=_ABOUT[0].lower() + _ABOUT[1:-1], description=_ABOUT, epilog=about)
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE",
        help="compare all nodes, by the ResourceSlices of this API server; default: this node alone",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON document")


def answer(options: argparse.Namespace, root: Path = sysfs.SYS) -> tuple[str, int]:
    """The command's output and exit status."""
    try:
        wires = reading.of_cluster(options.kubeconfig) if options.kubeconfig else reading.of_this_node(root)
    except (CniError, OSError) as e:
        why = e.msg if isinstance(e, CniError) else e.strerror or f"{e}"
        sys.stderr.write(printable_lines(f"hpn fabric wiring: {why}\n"))
        return "", _CANNOT
    groups = grouped(wires) if options.kubeconfig else []
    found = list(findings.in_cluster(wires, groups) if options.kubeconfig else findings.on_node(wires))
    if not options.kubeconfig and root == sysfs.SYS:
        found += reading.of_firmware(wires)
    status = 1 if found else 0
    if options.json:
        return as_document(_document(wires, groups, found)), status
    table = _of_groups(groups) if options.kubeconfig else _of_node(wires)
    return text([table, *_sentences(wires, found)]), status


def _sentences(wires: Sequence[Wire], found: Sequence[Miswired]) -> Iterator[str]:
    yield from (one.text for one in found)
    if not found:
        nodes, heard = len({one.node for one in wires}), sum(1 for one in wires if one.leaf)
        yield f"no finding: {nodes} node{'s' * (nodes != 1)}, {heard} port{'s' * (heard != 1)} with a neighbor"


def _of_groups(groups: Sequence[LeafGroup]) -> Table:
    rows = [
        (
            f"{number}",
            rail,
            group.expected.get(rail, ""),
            f"{sum(1 for one in wires if one.leaf == group.expected.get(rail))}/{len(wires)}",
            *_numbers(wires),
        )
        for number, group in enumerate(groups, 1)
        for rail, wires in group.by_rail.items()
    ]
    return _table(("GROUP", "RAIL", "LEAF", "NODES", "GB/S", "MAX FRAME", "VLAN"), rows)


def _numbers(wires: Sequence[Wire]) -> tuple[str, str, str]:
    """The numbers that most of the wires have."""
    speed, frame, vlan = (majority(getattr(one, name) for one in wires) for name in ("speed", "max_frame", "vlan"))
    return f"{speed or ''}", f"{frame or ''}", f"{vlan or ''}"


def _of_node(wires: Sequence[Wire]) -> Table:
    rows = [(one.pf, one.rail, one.leaf, one.port, *_numbers([one])) for one in in_order(wires)]
    return _table(("PF", "RAIL", "LEAF", "PORT", "GB/S", "MAX FRAME", "VLAN"), rows)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    return Table(header, [tuple(cell or "-" for cell in row) for row in rows])


def _document(wires: Sequence[Wire], groups: Sequence[LeafGroup], found: Sequence[Miswired]) -> Json:
    return {
        "wires": [
            {
                "node": one.node,
                "rail": one.rail,
                "pf": one.pf,
                "leaf": one.leaf or None,
                "leafPort": one.port or None,
                "vlan": one.vlan or None,
                "maxFrame": one.max_frame or None,
                "speed": one.speed or None,
            }
            for one in in_order(wires)
        ],
        "groups": [
            {"leaves": sorted(one.leaves), "nodes": list(one.nodes), "expected": dict(one.expected)} for one in groups
        ],
        "findings": [one.to_json() for one in found],
    }
