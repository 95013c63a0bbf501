"""hpn report: the output of the reading commands on one HTML page, for a ticket."""

import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from base.protocol.errors import CniError, IoFailure
from ctl.command_line import parser_for
from ctl.main import VERSION, function
from ctl.report.page import Answer, page
from ctl.screen import progress

_EXAMPLE: Final = """\
example:
  hpn report node7.html         one file; it loads nothing, and contains the node's names, addresses and MACs
"""


# Part of the report -> its command line, the function of that command, and its arguments.
PARTS: Final = {
    "findings": ("hpn doctor --json", "ctl.doctor.command.answer", ["--json"]),
    "attachments": ("hpn inspect --json", "ctl.inspection.answer_inspect", ["--json"]),
    "devices": ("hpn devices --json", "ctl.devices.command.answer", ["--json"]),
    "gids": ("hpn gids --json", "ctl.devices.gids.answer", ["--json"]),
    "pools": ("hpn ipam show --json", "ctl.ipam.command.answer", ["show", "--json"]),
}


def answer(words: Sequence[str], file: str = "", build: str = "") -> tuple[str, int]:
    """Write the page; return the output and the exit status.  ``build`` is the version of ``file``, this program."""
    what = "Write the output of the reading commands as one HTML page."
    parser = parser_for("report", what, _EXAMPLE, fails="the file exists or cannot be written")
    parser.add_argument("file", type=Path, metavar="FILE.html", help="the new file; it must not exist")
    target = parser.parse_args(words).file
    answers = {part: ask(part, file, build) for part in progress(tuple(PARTS), "Asking")}
    name = platform.node()
    about = (
        time.strftime("%Y-%m-%d %H:%M:%S %z"),
        f"hpn {VERSION} ({build or 'from its sources'})",
        f"Linux {platform.release()} on {platform.machine()}",
    )
    _write(target, page(f"hpn: {name}", about, answers))
    return f"{target}: {len(answers)} parts\n", 0


def _write(file: Path, text: str) -> None:
    """Create the file with mode 600, because it names pods and their addresses."""
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as e:
        raise IoFailure(f"{file} exists already; name another file, or remove it") from e
    except OSError as e:
        raise IoFailure(f"{file} cannot be created: {e.strerror}") from e
    try:
        with open(fd, "w", encoding="utf-8") as f:
            f.write(text)
    except OSError as e:
        file.unlink(missing_ok=True)
        raise IoFailure(f"{file} cannot be written: {e.strerror}") from e


def ask(part: str, file: str, build: str) -> Answer:
    """The answer of one part's command; ``file`` and ``build`` are the running program's."""
    command, path, words = PARTS[part]
    try:
        # Only doctor compares this program with the installed one.
        more = (file, build) if part == "findings" else ()
        text, _ = function(path)(words, *more)
        return Answer(command, json.loads(text))
    except (CniError, OSError) as e:
        return Answer(command, {}, str(e))
    except Exception as e:  # noqa: BLE001  # a node that breaks one command needs the report most
        return Answer(command, {}, f"{type(e).__name__}: {e}")
