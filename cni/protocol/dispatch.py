"""From request to reply: the checks that every plugin owes, and the one place where an exception becomes a CNI error
(SPEC 1.1.0, "Error").
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence

from cni.protocol import spec
from cni.protocol.errors import CniError, told
from cni.protocol.result import Result
from cni.protocol.spec import Config, Reply, Request

_encode = json.JSONEncoder(separators=(",", ":")).encode

# A command gets the request, the decoded configuration and a list, to which it may append lines for stderr.  It returns
# ADD's result, or None.
Command = Callable[[Request, Config, list[str]], Result | None]


def answer(request: Request, commands: Mapping[str, Command]) -> Reply:
    """Answer one request by the command for its verb.  VERSION needs none.  Never raises."""
    version, log = spec.NEWEST, list[str]()
    try:
        spec.check_environment(request)
        if request.command == "VERSION":
            return Reply(_document(version, supportedVersions=list(spec.VERSIONS)))
        conf = spec.configuration(request)
        version = spec.version_of(conf, request.command)
        spec.network_of(conf)
        result = commands[request.command](request, conf, log)
        return Reply(_document(version, **result.to_json(version)) if result else "", log=tuple(log))
    except Exception as e:  # noqa: BLE001  # the one place where an exception becomes an answer
        return failed(version, e, log)


def failed(version: str, error: Exception, log: Sequence[str] = ()) -> Reply:
    """The reply with the error document of SPEC 1.1.0, in that version; for a bug also its trace."""
    answered = told(error)
    fields = {"details": answered.details} if answered.details else {}
    document = _document(version, code=answered.code, msg=answered.msg, **fields)
    return Reply(document, exit_code=1, log=(*log, *_trace(error)), code=answered.code)


def _document(version: str, **fields: object) -> str:
    return _encode({"cniVersion": version, **fields}) + os.linesep


def _trace(error: Exception) -> list[str]:
    """The traceback of a bug, for stderr.  What was meant, or was the kernel's word, needs none."""
    if isinstance(error, CniError | OSError):
        return []
    import traceback  # noqa: PLC0415  # a fortieth of the start

    return traceback.format_exception(error)
