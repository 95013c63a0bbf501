"""hpn list: one line for each attachment, and how it stands."""

from collections.abc import Iterator, Sequence

from cni import standing
from cni.attachments import WORDS, Found, describe, standings
from cni.protocol.spec import Json
from ctl import chosen, command_line
from ctl.command_line import as_document
from ctl.screen import Table, text

_COLUMNS = ("POD", "IFNAME", "NETWORK", "DEVICE", "ADDRESS", "RDMA", "STATE")
_MEMBERS = ("kind", "device", "netdev", "master", "addresses", WORDS)


def answer(words: Sequence[str]) -> tuple[str, int]:
    """What the command prints, and its exit status.  Raises IoFailure, and SystemExit for wrong options."""
    about = "List the attachments, and how each stands: attached, dead, half-attached ... (docs/inspect.md)."
    options = chosen.parser("list", about, "hpn list --json", what="").parse_args(words)
    found = chosen.chosen(options, [])
    listed = [_listed(one, *stands) for one, stands in zip(found, standings(found), strict=True)]
    if options.json:
        state_dirs = [str(state_dir) for state_dir in command_line.state_dirs(options)]
        return as_document({"stateDirs": state_dirs, "attachments": [chosen.without_words(a) for a in listed]}), 0
    if not listed:
        return text([chosen.nothing(options, [])]), 0
    troubles = [line for one, a in zip(found, listed, strict=True) for line in _troubles(one, a)]
    return text([Table(_COLUMNS, [_row(a) for a in listed]), *troubles]), 0


def _listed(one: Found, word: str, why: str) -> Json:
    nothing: Json = {"addresses": [], "rdma": {"devices": []}}
    described = describe(one.record, alive=word != standing.DEAD) if one.record else nothing
    listed = chosen.identified(one)
    listed |= {key: described[key] for key in _MEMBERS if key in described}
    return listed | {"rdma": described["rdma"]["devices"], "state": word, "why": why}


def _troubles(one: Found, a: Json) -> Iterator[str]:
    """Lines below the table: why the attachment does not stand, and the last error that a command had with it."""
    if a["state"] != standing.ATTACHED:
        yield f"{one.whose}: {a['why']}"
    if error := one.last_error():
        yield f"{one.whose}: {chosen.failure(error)}"


def _row(a: Json) -> tuple[str, ...]:
    cells = (a.get(WORDS), ", ".join(a["addresses"]), ", ".join(a["rdma"]))
    return (a["pod"] or a["containerID"][:12], a["ifname"], a["network"], *(cell or "-" for cell in cells), a["state"])
