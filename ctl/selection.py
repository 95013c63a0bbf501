"""The attachments that a command is about: those that its words name, in the state directories that it looks in."""

import argparse
from collections.abc import Sequence

from base.protocol.spec import Json
from cni.attachments import WORDS, Found, find
from ctl.command_line import add_state_dir, parser_for, state_dirs, word
from ctl.screen import moment

_WHAT = (
    "a pod (name or namespace/name), container, interface, PCI address, master, RDMA device, network, MAC, address, "
    "or the path of the namespace"
)


def parser(command: str, about: str, example: str, *, what: str) -> argparse.ArgumentParser:
    """The command's options, with those that all of these commands have.  ``what`` is how often a word that names
    attachments may stand there, as argparse's nargs; empty for never."""
    made = parser_for(command, about, f"example: {example}")
    if what:
        made.add_argument("what", nargs=what, type=word, default=[], metavar="WHAT", help=f"{_WHAT}; default: all")
    made.add_argument("--json", action="store_true", help="one JSON document")
    add_state_dir(made)
    return made


def selected(options: argparse.Namespace, what: Sequence[str]) -> list[Found]:
    """The attachments that a word names, all if there is no word.  Raises IoFailure."""
    found = find(state_dirs(options))
    return [one for one in found if not what or any(map(one.is_called, what))]


def identified(one: Found) -> Json:
    """The members by which each of the commands names an attachment in JSON."""
    return {
        "pod": one.record.pod if one.record else "",
        "network": one.network,
        "containerID": one.key.container_id,
        "ifname": one.key.ifname,
    }


def unknown(words: Sequence[str], found: Sequence[Found]) -> list[str]:
    """The words that name none of these."""
    return [what for what in words if not any(one.is_called(what) for one in found)]


def without_words(a: Json) -> Json:
    """The same for JSON: WORDS are for people."""
    return {key: value for key, value in a.items() if key != WORDS}


def failure(error: Json) -> str:
    """An attachment's last error, for people: the command, when, and what it answered."""
    at, details = moment(str(error["time"])), f" ({error['details']})" if "details" in error else ""
    return f"{error['command']} failed, {at}, code {error['code']}: {error['msg']}{details}"


def words_of(error: Exception) -> str:
    """An error as one sentence for people."""
    notes = "; ".join(getattr(error, "__notes__", ()))
    said = f"{getattr(error, 'msg', '') or getattr(error, 'strerror', '') or error}"
    return f"{said} ({notes})" if notes else said


def nothing(options: argparse.Namespace, what: Sequence[str]) -> str:
    """The sentence for no attachment found."""
    where = ", ".join(map(str, state_dirs(options)))
    return (
        f"nothing is attached that is called {' or '.join(what)}, says {where}"
        if what
        else (f"nothing is attached, says {where}")
    )
