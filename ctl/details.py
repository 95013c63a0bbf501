"""All that is known of one attachment."""

from collections.abc import Iterator

from cni import whereabouts
from cni.attachments import WORDS, Found, are_dead, describe, with_error
from cni.protocol.spec import Json
from ctl import chosen
from ctl.screen import moment


def known(one: Found) -> Json:
    """As JSON, with WORDS."""
    word, why = one.standing()
    body: Json = {**chosen.identified(one), "state": word, "why": why, "record": str(one.path)}
    if one.record is None:
        return body
    [is_dead] = are_dead([one])
    body |= with_error(describe(one.record, alive=not is_dead), one)
    body["namespace"] = one.record.identity.inode
    if not one.is_refused:
        try:
            place = whereabouts.of(one.record)
        except OSError as e:
            place = whereabouts.Place("unknown", f"could not be looked for: {e.strerror or e}")
        body["now"] = {"where": place.where, "words": place.words, "name": place.name, "netns": place.netns}
    return body


def lines(one: Found, a: Json) -> Iterator[str]:
    """The same for a person: whose it is, then a name and a value in each line."""
    yield one.whose
    for name, value in _values(a):
        if value:
            yield f"  {name:10} {value}"


def _values(a: Json) -> Iterator[tuple[str, str]]:
    yield "state", f"{a['state']}: {a['why']}"
    yield "record", a["record"]
    if "kind" not in a:
        return
    yield "container", a["containerID"]
    yield "since", moment(a["since"])
    yield "namespace", f"{a['netns']} (net:[{a['namespace']}]), {'alive' if a['alive'] else 'dead'}"
    yield "interface", ", ".join(filter(None, (f"{a['kind']} {a.get(WORDS, '')}".strip(), _mac(a))))
    yield "PF", f"{a['pf']} {a.get('pfName', '')}".strip() if "pf" in a else ""
    yield "resource", a["resource"]["name"] if "resource" in a else ""
    yield "addresses", ", ".join(a["addresses"])
    yield "RDMA", ", ".join(a["rdma"]["devices"])
    for gid in a["rdma"]["gids"]:
        yield "GID", f"{gid['device']}/{gid['port']} index {gid['index']}, {gid['type']}: {gid['address']}"
    yield "now", a["now"]["words"] if "now" in a else ""
    yield "trouble", a.get("trouble", "")
    yield "last error", chosen.failure(a["lastError"]) if "lastError" in a else ""


def _mac(a: Json) -> str:
    return f"MAC {a['mac']}" if a["mac"] else ""
