"""From request to reply: the checks of every plugin, and the only conversion of exceptions to CNI errors (SPEC 1.1.0,
"Error").

``serve`` is for a process that answers one request: the only reader of environment and stdin, and the only writer of
stdout.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

from base.protocol import spec
from base.protocol.errors import CniError, IoFailure, as_cni_error
from base.protocol.result import Result
from base.protocol.spec import NEWEST, Config, Program, Reply, Request, variables

# containerd's go-cni takes an error of DEL with these words for success, and forgets the attachment.  The second ones
# are Go's for ENOENT, and count if the pod has no namespace any more.
_FORGOTTEN: Final = re.compile("not found|no such file or directory")
_encode = json.JSONEncoder(separators=(",", ":")).encode

# A command gets the request, the decoded configuration, and a list to which it may append lines for stderr.  It returns
# ADD's result, or None.
Command = Callable[[Request, Config, list[str]], Result | None]


def answer(request: Request, commands: Mapping[str, Command]) -> Reply:
    """Answer one request with its verb's command.  VERSION needs no command.  Never raises."""
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
    except Exception as e:  # noqa: BLE001  # the one place that turns an exception into an answer
        reply = failed(version, e, log)
        if request.command != "DEL":
            return reply
        return replace(reply, stdout=_FORGOTTEN.sub("missing", reply.stdout))


def failed(version: str, error: Exception, log: Sequence[str] = ()) -> Reply:
    """The reply with the error document of SPEC 1.1.0, in that version; for a bug also its trace."""
    answered = as_cni_error(error)
    fields = {"details": answered.details} if answered.details else {}
    document = _document(version, code=answered.code, msg=answered.msg, **fields)
    return Reply(document, exit_code=1, log=(*log, *_trace(error)), code=answered.code)


def _document(version: str, **fields: object) -> str:
    return _encode({"cniVersion": version, **fields}) + os.linesep


def _trace(error: Exception) -> list[str]:
    """The traceback of a bug, for stderr; empty for errors that are ours or the kernel's."""
    if isinstance(error, CniError | OSError):
        return []
    import traceback  # noqa: PLC0415  # a fortieth of the program's start

    return traceback.format_exception(error)


def environment() -> dict[str, str]:
    """This process's original environment, for other programs: Python adds variables to it (PEP 538)."""
    given = variables(Path("/proc/self/environ").read_bytes())
    return {name: value for name, value in given.items() if name in os.environ}


def serve(program: Program) -> NoReturn:
    """Answer the request that started this process, and exit with its code."""
    reply = _answer_this_process(program)
    for line in reply.log:
        sys.stderr.write(f"{line}\n")
    sys.stdout.write(reply.stdout)
    sys.stdout.flush()
    sys.exit(reply.exit_code)


def _answer_this_process(program: Program) -> Reply:
    try:
        environ = environment()
    except OSError as e:
        why = f"/proc/self/environ cannot be read: {e.strerror}; run: mount -t proc proc /proc"
        return failed(NEWEST, IoFailure(why))
    try:
        # VERSION may come without stdin, and a person at a terminal sends none.
        stdin = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()
        return program(Request(environ, stdin, process=os.getpid()))
    except OSError as e:
        return failed(NEWEST, IoFailure(f"stdin cannot be read: {e.strerror}"))
