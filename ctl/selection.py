"""The attachments that a command's arguments name."""

import argparse
from collections.abc import Iterable, Sequence

from base.protocol.spec import Json
from cni.attachments import WORDS, Found, find
from ctl.command_line import add_state_dir, as_document, parser_for, state_dir, word
from ctl.screen import moment

_WHAT = (
    "a pod or claim (name or namespace/name), container, interface, PCI address, master, RDMA device, network, MAC, "
    "address, or the path of the namespace"
)


def parser(command: str, about: str, example: str, *, what: str) -> argparse.ArgumentParser:
    """The options of a command about attachments; ``what`` is argparse's nargs for the words that name them."""
    made = parser_for(command, about, f"example: {example}")
    if what:
        made.add_argument("what", nargs=what, type=word, default=[], metavar="WHAT", help=f"{_WHAT}; default: all")
    made.add_argument("--json", action="store_true", help="one JSON document")
    add_state_dir(made)
    return made


def selected(options: argparse.Namespace, what: Sequence[str]) -> list[Found]:
    """The attachments that match a word, all without words.  Raises IoFailure."""
    found = find(state_dir(options))
    return [one for one in found if not what or any(map(one.is_called, what))]


def identified(one: Found) -> Json:
    """The members that identify an attachment in every command's JSON."""
    return {
        "pod": one.record.pod if one.record else "",
        "network": one.network,
        "containerID": one.key.container_id,
        "ifname": one.key.ifname,
    }


def unknown(words: Sequence[str], found: Sequence[Found]) -> list[str]:
    """The words that match none of these attachments."""
    return [what for what in words if not any(one.is_called(what) for one in found)]


def without_words(described: Iterable[Json]) -> list[Json]:
    """The descriptions for JSON: without WORDS, which are for people."""
    return [{key: value for key, value in a.items() if key != WORDS} for a in described]


def document(options: argparse.Namespace, **members: object) -> str:
    """The output of ``--json``: the directory of attachments, and these members."""
    return as_document({"stateDirs": [f"{state_dir(options)}"], **members})


def who(a: Json) -> str:
    """The pod of a described attachment, or the beginning of its container's id."""
    return str(a["pod"] or a["containerID"][:12])


def failure(error: Json) -> str:
    """An attachment's last error for people: the command, the time, the code and the message."""
    at, details = moment(str(error["time"])), f" ({error['details']})" if "details" in error else ""
    return f"{error['command']} failed, {at}, code {error['code']}: {error['msg']}{details}"


def words_of(error: Exception) -> str:
    """An error as one sentence for people."""
    notes = "; ".join(getattr(error, "__notes__", ()))
    message = f"{getattr(error, 'msg', '') or getattr(error, 'strerror', '') or error}"
    return f"{message} ({notes})" if notes else message


def nothing(options: argparse.Namespace, what: Sequence[str]) -> str:
    """The sentence for no attachment found."""
    found = f"no attachment is called {' or '.join(what)}" if what else "nothing is attached"
    return f"{found} (searched {state_dir(options)})"
