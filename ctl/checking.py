"""hpn check: CHECK of every attachment, by its record."""

from collections.abc import Sequence

from cni import checking, standing
from cni.attachments import Found
from cni.protocol.errors import CniError, KernelRefused
from cni.protocol.spec import Json
from ctl import chosen, command_line
from ctl.command_line import as_document
from ctl.screen import Table, progress, text
from ipam import main as ipam

_COLUMNS = ("POD", "IFNAME", "NETWORK", "STATE", "WHY")
# Of these a command's own answer tells more.
_AT_WORK = (standing.ATTACHING, standing.DETACHING, standing.DETACHED)


def answer(words: Sequence[str]) -> tuple[str, int]:
    """What the command prints, and its exit status.  Raises IoFailure, and SystemExit for wrong options."""
    about = "Compare attachments with what ADD left, as CNI's CHECK does, and change nothing (docs/inspect.md)."
    options = chosen.parser("check", about, "hpn check default/worker-0", what="*").parse_args(words)
    found = chosen.chosen(options, options.what)
    checked = [_checked(one) for one in progress(found, "checking")]
    unknown = chosen.unknown(options.what, found)
    status = 1 if unknown or any(a["wrong"] for a in checked) else 0
    if options.json:
        state_dirs = [str(state_dir) for state_dir in command_line.state_dirs(options)]
        return as_document({"stateDirs": state_dirs, "attachments": checked, "unknown": unknown}), status
    parts: list[Table | str] = [Table(_COLUMNS, [_row(a) for a in checked])] if checked else []
    parts += [chosen.nothing(options, unknown)] if unknown or not checked else []
    return text(parts), status


def _checked(one: Found) -> Json:
    """How the attachment stands and, if it is attached, what CHECK says."""
    word, why, code = *one.standing(), 0
    if word == standing.ATTACHED and one.record:
        word, why = "ok", ""
        try:
            checking.attachment(one.state_dir, one.record, {"hpn-ipam": ipam.ask})
        except (CniError, OSError) as e:
            word, why, code = "wrong", chosen.words_of(e), getattr(e, "code", KernelRefused.code)
    wrong = word != "ok" and word not in _AT_WORK
    return {**chosen.identified(one), "state": word, "why": why, "code": code, "wrong": wrong}


def _row(a: Json) -> tuple[str, ...]:
    return a["pod"] or a["containerID"][:12], a["ifname"], a["network"], a["state"], a["why"] or "-"
