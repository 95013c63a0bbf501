"""CHECK of an attachment that nobody asks for: by its record, as a runtime's CHECK of it would end.

A runtime hands over prevResult, the answer of the whole chain, from libcni's cache.  It is read there.  Where there is
none, ADD's own answer has to do, which does not know what later plugins of the chain have changed.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cni import collect, commands
from cni.kernel import rtnl
from cni.parts import delegate
from cni.parts.delegate import Programs
from cni.protocol import spec
from cni.protocol.errors import CheckFailed, RecordUnreadable
from cni.protocol.location import location
from cni.protocol.result import Result
from cni.protocol.spec import Json, Request
from cni.state import journal, libcni_cache
from cni.state import pod as pods
from cni.state.record import Record


def attachment(state_dir: Path, record: Record, programs: Programs) -> None:
    """Raise CniError or OSError unless the attachment is as ADD left it.  Waits for a command that works on it."""
    with journal.lock(state_dir, record.network, record.key):
        # Without a move of what cannot be read: nothing is changed.
        now = journal.peek(state_dir, record.network, record.key)
        if now is None or not now.complete:
            raise CheckFailed(f"{record.whose}, was detached or attached anew meanwhile; repeat this")
        with pods.find(now.identity, now.netns) as pod, rtnl.open_in() as host:
            if pod is None:
                raise CheckFailed(f"{now.whose}: its namespace {now.netns} is gone, or cannot be seen from here")
            try:
                promised = prev_result(now)
                commands.compare(now, Result.from_json(promised), now.netns, pod, host)  # guard: compares
                if ipam := location(now.config).ipam:  # guard: ipam
                    delegate.call(ipam, _request(now, promised), programs)
            except (KeyError, TypeError, ValueError) as e:
                raise RecordUnreadable(f"the record of {now.whose}, is another version's: {e!r}") from e


def prev_result(record: Record) -> Json:
    """The answer of the chain, in libcni's cache; if it is not there, ADD's own."""
    cached = libcni_cache.result(record.network, record.key)
    if cached is not None:  # guard: cached
        return cached
    version = str(record.config.get("cniVersion", spec.NEWEST))
    return {"cniVersion": version, **Result.from_json(record.result).to_json(version)}


def _request(record: Record, promised: Mapping[str, Any]) -> Request:
    """CHECK, as a runtime sends it."""
    environ = {
        "CNI_COMMAND": "CHECK",
        "CNI_CONTAINERID": record.key.container_id,
        "CNI_IFNAME": record.key.ifname,
        "CNI_NETNS": record.netns,
        "CNI_ARGS": record.args,
        "CNI_PATH": os.environ.get("CNI_PATH", collect.PLUGINS),
        "PATH": os.environ.get("PATH", ""),
    }
    return Request(environ, json.dumps({**record.config, "prevResult": promised}).encode())
