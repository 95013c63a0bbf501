"""The last error of an attachment, for people: a small file beside its record, which goes with it.

    <stateDir>/attachments/<network>/<containerID>:<ifname>.error    time, command, code, msg and details of the answer

It is written when DEL or CHECK answers with an error while there is a record, and when ADD could not undo all that it
did; another ADD that fails leaves nothing, and only its caller knows of it.  What a command answers never depends on
this file.
"""

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from base.protocol import spec
from base.protocol.errors import CniError
from base.protocol.location import location
from base.protocol.spec import DELEGATED, Json, Reply, Request
from base.state import durable, journal, places, trust
from base.state.journal import Entry

COMMANDS: Final = ("ADD", "DEL", "CHECK")
# Characters of one text.  A message has a few hundred.
_LONGEST: Final = 1 << 12


def note(request: Request, reply: Reply) -> None:
    """Keep the error that is the reply's, if the attachment has a record, and somebody waits for the reply.

    If nobody does, another command may have been sent, and answered, since.  The command has released the attachment's
    lock.  If another has it now, nothing is kept: that one may keep its own error, and nobody should wait for this.
    """
    if request.command not in COMMANDS or request.var(DELEGATED):  # guard: no-delegate (DELEGATED)
        return
    with suppress(CniError, OSError, ValueError, TypeError, KeyError):  # the command has ended as it has
        where = location(spec.configuration(request))
        dirs = (where.state_dir, places.state_dir_of(where.network, request.key))
        entries = [Entry(state_dir, where.network, request.key) for state_dir in dirs if state_dir]
        entry = next((entry for entry in entries if entry.version()), None)
        if entry:
            with journal.lock(entry.state_dir, entry.network, entry.key, timeout=0):  # guard: locked
                if _is_its_own(entry, request):
                    _write(entry, {"command": request.command, **_answer(reply)})


def read(record: Path) -> Json | None:
    """The last error of the attachment with its record in this file; None if there was none, or it cannot be read."""
    with suppress(CniError):
        body = durable.read(f"{record}".removesuffix(".json") + ".error")
        # guard below: members (and body.keys)
        return body if body and body.keys() >= {"time", "command", "code", "msg"} else None
    return None


def _is_its_own(entry: Entry, request: Request) -> bool:
    """Whether the attachment is still there, and the request was the last one of it.  Asked with the lock."""
    if not entry.version() or request.abandoned():  # guard: abandoned (abandoned())
        return False
    return request.command != "ADD" or not _is_complete(entry)  # guard: attached = True


def _is_complete(entry: Entry) -> bool:
    """Whether an earlier ADD has attached it: then it has nothing to do with an ADD that failed."""
    record = journal.peek(entry.state_dir, entry.network, entry.key)
    return record is not None and record.complete


def _answer(reply: Reply) -> Json:
    document = json.loads(reply.stdout)
    # guard below: short (_LONGEST)
    texts = {name: str(document[name])[:_LONGEST] for name in ("msg", "details") if name in document}
    return {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "code": int(document["code"]), **texts}


def _write(entry: Entry, body: Json) -> None:
    """Raises CniError, OSError; InvalidConfig where others than root could have led us elsewhere."""
    trust.refuse_unless_ours(os.path.dirname(entry.error_file))  # guard: trusted
    durable.write(entry.error_file, body)
