"""The last error of an attachment, for people: a small file beside its record, with the record's lifetime.

    /run/hpn/attachments/<network>/<containerID>:<ifname>.error    time, command, code, msg and details of the answer

It is written if DEL or CHECK fails while there is a record, and if ADD could not undo all its changes.  Any other
failed ADD leaves nothing; only its caller learns of it.  No command's answer depends on this file.
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
from base.state import durable, journal, trust
from base.state.journal import Entry

COMMANDS: Final = ("ADD", "DEL", "CHECK")
# Characters of one text.  A message has a few hundred.
_LONGEST: Final = 1 << 12


def note(request: Request, reply: Reply) -> None:
    """Keep the reply's error, if the attachment has a record, and the caller still waits for the reply.

    If the caller has gone, another command may have run since.  The command has released the attachment's lock.  If
    another one holds it now, nothing is kept: that one may keep its own error, and this must not wait.
    """
    if request.command not in COMMANDS or request.var(DELEGATED):
        return
    with suppress(CniError, OSError, ValueError, TypeError, KeyError):  # the command's answer stands
        where = location(spec.configuration(request))
        entry = Entry(where.state_dir, where.network, request.key)
        if entry.version():
            with journal.lock(entry.state_dir, entry.network, entry.key, timeout=0):
                if _is_its_own(entry, request):
                    # Others than root could have redirected the path.
                    trust.refuse_unless_ours(os.path.dirname(entry.error_file))
                    durable.write(entry.error_file, {"command": request.command, **_answer(reply)})


def read(record: Path) -> Json | None:
    """The last error of the attachment with this record file; None if there is none, or if it is unreadable."""
    with suppress(CniError):
        body = durable.read(f"{record}".removesuffix(".json") + ".error")
        return body if body and body.keys() >= {"time", "command", "code", "msg"} else None
    return None


def _is_its_own(entry: Entry, request: Request) -> bool:
    """Whether the attachment is still there, and the request was its last one.  Call it with the lock."""
    if not entry.version() or request.abandoned():
        return False
    # A failed ADD has no part in an attachment that an earlier ADD has completed.
    record = journal.peek(entry.state_dir, entry.network, entry.key) if request.command == "ADD" else None
    return not (record and record.complete)


def _answer(reply: Reply) -> Json:
    document = json.loads(reply.stdout)
    texts = {name: str(document[name])[:_LONGEST] for name in ("msg", "details") if name in document}
    return {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "code": int(document["code"]), **texts}
