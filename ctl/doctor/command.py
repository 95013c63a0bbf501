"""hpn doctor: report the problems of this node, and their remedies."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ctl import screen
from ctl.command_line import as_document, parser_for
from ctl.doctor import cluster, containerd, hardware, machine, networks, programs, state, wiring
from ctl.doctor.checks import CHECKS
from ctl.doctor.model import Facts, Finding, Severity
from ctl.doctor.reading import Reader

_ORDER: Final = {severity: order for order, severity in enumerate(Severity)}
_EXAMPLE: Final = """\
example:
  hpn doctor                                          # as root; docs/user/operations.md explains each finding
  hpn doctor --json | jq -r '.findings[] | select(.severity == "error") | .id'
  hpn doctor --kubeconfig /etc/kubernetes/admin.conf  # also the API server's NetworkAttachmentDefinitions
"""


def answer(words: Sequence[str], file: str = "", build: str = "") -> tuple[str, int]:
    """The command's output and exit status.  ``file`` is the running program, ``build`` its version."""
    about = "Report the problems of this node, and their remedies.  Nothing is changed."
    parser = parser_for("doctor", about, _EXAMPLE, fails="there is an error or a warning")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--root", type=Path, default=Path("/"), help="the directory of the node's files; default /")
    as_whom = "also read NetworkAttachmentDefinitions and nodes from the API server, with this credential"
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help=as_whom)
    options = parser.parse_args(words)
    found = findings(facts(options.root, file, build, options.kubeconfig))
    status = int(any(finding.severity is not Severity.NOTE for _, finding in found))
    if options.json:
        document = {"checks": list(CHECKS), "findings": [{"id": name, **vars(finding)} for name, finding in found]}
        return as_document(document), status
    return screen.text(_parts(found)), status


def findings(known: Facts) -> list[tuple[str, Finding]]:
    """The findings of all checks, each with the check's id; the most severe first."""
    found = [(name, finding) for name, check in CHECKS.items() for finding in check(known)]
    return sorted(found, key=lambda pair: _ORDER[pair[1].severity])


def _parts(found: Sequence[tuple[str, Finding]]) -> Iterator[screen.Table | str]:
    rows = [
        row
        for name, finding in found
        for row in ((finding.severity, name), ("", finding.evidence), ("", f"remedy: {finding.remedy}"))
    ]
    if rows:
        yield screen.Table(("SEVERITY", "FINDING"), rows)
    counts = [sum(finding.severity is severity for _, finding in found) for severity in Severity]
    words = [f"{count} {severity}{'s' * (count != 1)}" for count, severity in zip(counts, Severity, strict=True)]
    yield f"{', '.join(words)} of {len(CHECKS)} checks"


def facts(root: Path, file: str, build: str, kubeconfig: Path | None = None) -> Facts:
    """The facts of the node with its files below ``root``, and of the API server if there is a ``kubeconfig``.
    ``file`` is the running program, ``build`` its version."""
    read = Reader(root)
    on_disk = state.state_of(read)
    running = machine.machine(read, on_disk.folders)
    node_file = networks.node_file(read, running.processes)
    devices, slices = hardware.hardware(read), cluster.slices(read, node_file)
    found = Facts(
        running,
        devices,
        networks.networks(read),
        node_file,
        on_disk,
        programs.programs(read, file, build),
        cluster.cluster(read, kubeconfig) if kubeconfig else None,
        networks.without_names(read),
        slices=slices,
        policy_refused=networks.policy_refused(read),
        broken=networks.broken(read),
        containerd=containerd.containerd(read, running.processes),
        wiring=tuple(wiring.wiring(read, devices, slices, kubeconfig)),
    )
    known = [(one.source, one.conf) for one in found.networks]
    known += [(one.file, one.conf) for one in on_disk.attachments if one.alive]
    here = read.is_this_kernel
    return replace(
        found,
        addresses=tuple(one for source, conf in known for one in networks.addresses_of(source, conf, is_here=here)),
        own_addresses=machine.own_addresses(read),
        unread=tuple(sorted(read.unread.items())),
    )
