"""What the other commands say of the node, each as its document.  One that cannot answer does not keep the others."""

import json
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from cni.protocol.errors import CniError
from cni.protocol.spec import Json

# Of each part of the report: the command that fills it, in words, the module that answers it, and what it is asked.
PARTS: Final = {
    "findings": ("hpn doctor --json", "ctl.doctor.report", ["--json"]),
    "attachments": ("hpn inspect --json", "ctl.inspection", ["--json"]),
    "devices": ("hpn devices --json", "ctl.devices.command", ["--json"]),
    "gids": ("hpn gids --json", "ctl.gids", ["--json"]),
    "pools": ("hpn ipam show --json", "ctl.addresses", ["show", "--json"]),
}


@dataclass(frozen=True)
class Told:
    """The answer of one command: its command line, its document, and why there is none."""

    command: str
    document: Json
    trouble: str = ""


def ask(part: str, file: str, build: str) -> Told:
    """What the command of a part says; ``file`` and ``build`` are of the program that runs now."""
    command, module, words = PARTS[part]
    try:
        # Only one of them compares this program with what is installed.
        more = (file, build) if part == "findings" else ()
        text, _ = import_module(module).answer(words, *more)
        return Told(command, json.loads(text))
    except (CniError, OSError) as e:
        return Told(command, {}, str(e))
    except Exception as e:  # noqa: BLE001  # a node that breaks one command is the node whose report is needed
        return Told(command, {}, f"{type(e).__name__}: {e}")
