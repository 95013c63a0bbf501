"""What commands have in common: options with an example, where state is, and one JSON document."""

import argparse
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from base.protocol.errors import IoFailure
from base.protocol.location import IPAM_DIR, STATE_DIR
from base.protocol.spec import Json

# The path where most runtimes find the plugin.
PLUGIN: Final = "/opt/cni/bin/hpn"
# The program's own loader, in a directory that is named by the version (docs/develop/protocol.md).
_LOADER: Final = "ld-hpn.so.2"


def parser_for(
    command: str, about: str, example: str, *, fails: str = "something is wrong or not there"
) -> argparse.ArgumentParser:
    """A parser that has no options yet.  The command's help ends with the example, as it is, and the exit statuses.

    ``fails`` says when the status is 1.
    """
    return argparse.ArgumentParser(
        prog=f"hpn {command}",
        description=about,
        epilog=f"{example.rstrip()}\n\nExit status: 0; 1 if {fails}; 2 for wrong options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    """Add --state-dir; ``state_dirs`` says what it comes to."""
    parser.add_argument("--state-dir", type=Path, help=f"default {STATE_DIR}, and those that attachments noted")


def state_dirs(options: argparse.Namespace) -> list[Path]:
    """Where to look for attachments.  Raises IoFailure if somebody named a directory that is not there."""
    from base.state import places  # noqa: PLC0415  # half of the commands look at no attachment

    if options.state_dir is None:
        return places.state_dirs()
    return [_there("--state-dir", options.state_dir, STATE_DIR, "a configuration's stateDir")]


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """Add --data-dir, where leases are."""
    parser.add_argument("--data-dir", type=Path, default=Path(IPAM_DIR), help=f"default {IPAM_DIR}")


def data_dir(options: argparse.Namespace) -> Path:
    """Where leases are.  Raises IoFailure if somebody named a directory that is not there."""
    return _there("--data-dir", options.data_dir, IPAM_DIR, "dataDir or <stateDir>/ipam")


def _there(option: str, directory: Path, default: str, what: str) -> Path:
    """The directory; all is well in one that is misspelt.  The default is made by the first ADD."""
    try:
        os.stat(directory)
    except (FileNotFoundError, NotADirectoryError) as e:
        if f"{directory}" != default:  # guard: misspelt
            raise IoFailure(f"{option} {directory}: {e.strerror}; give {what}") from e
    except OSError:
        pass  # who reads it says why
    return directory


def word(text: str) -> str:
    """The type of a word that names something, for argparse.  An empty one, as of a shell's variable that is not set,
    would name what has no name."""
    if not text:
        raise argparse.ArgumentTypeError("an empty word names nothing; leave it out, or name something")
    return text


def build_of(process: str) -> str:
    """The version of hpn that a process of /proc runs; empty for other programs and for unreadable processes."""
    with suppress(OSError):
        path = os.readlink(f"{process}/exe").removesuffix(" (deleted)").split("/")
        return path[-2] if path[-1] == _LOADER else ""
    return ""


def as_document(body: Json) -> str:
    """What ``--json`` prints."""
    return json.dumps(body, indent=1) + "\n"
