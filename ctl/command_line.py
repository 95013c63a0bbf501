"""Shared by the commands: parsers, state directories, JSON output, the installed program."""

import argparse
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from base.protocol.errors import IoFailure
from base.protocol.location import IPAM_DIR, STATE_DIR, ipam_dir
from base.protocol.location import state_dir as default_state_dir
from base.protocol.spec import Json

# The program's own loader, in a directory that is named by the version (docs/develop/agent.md).
_LOADER: Final = "ld-hpn.so.2"


def parser_for(
    command: str, about: str, example: str, *, fails: str = "something is wrong or missing"
) -> argparse.ArgumentParser:
    """A parser without options.  Its help ends with the example and the exit statuses; ``fails`` describes 1."""
    return argparse.ArgumentParser(
        prog=f"hpn {command}",
        description=about,
        epilog=f"{example.rstrip()}\n\nExit status: 0; 1 if {fails}; 2 for wrong options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    """Add --state-dir, which ``state_dir`` evaluates."""
    parser.add_argument("--state-dir", type=Path, default=default_state_dir(), help=f"default {STATE_DIR}")


def state_dir(options: argparse.Namespace) -> Path:
    """The directory of attachments.  Raises IoFailure if --state-dir names a missing directory."""
    return _there("--state-dir", options.state_dir, f"{default_state_dir()}", "a directory that ADD used")


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """Add --data-dir, the directory of leases."""
    parser.add_argument("--data-dir", type=Path, default=Path(ipam_dir()), help=f"default {IPAM_DIR}")


def data_dir(options: argparse.Namespace) -> Path:
    """The directory of leases.  Raises IoFailure if --data-dir names a missing directory."""
    return _there("--data-dir", options.data_dir, ipam_dir(), "a configuration's dataDir")


def _there(option: str, directory: Path, default: str, what: str) -> Path:
    """The directory, which must exist unless it is the default, which the first ADD creates.  Raises IoFailure."""
    try:
        os.stat(directory)
    except (FileNotFoundError, NotADirectoryError) as e:
        if f"{directory}" != default:
            raise IoFailure(f"{option} {directory}: {e.strerror}; give {what}") from e
    except OSError:
        pass  # the code that reads it reports why
    return directory


def is_same_file(one: str | Path, other: str | Path) -> bool:
    """True if both paths lead to one file."""
    with suppress(OSError, ValueError):
        return Path(one).samefile(other)
    return False


def word(text: str) -> str:
    """An argparse type: a non-empty name.  An unset shell variable gives an empty one, which would match everything."""
    if not text:
        raise argparse.ArgumentTypeError("an empty word names nothing; omit it, or give a name")
    return text


def build_of(process: str) -> str:
    """The version of hpn that a process of /proc runs; empty for other programs and for unreadable processes."""
    with suppress(OSError):
        path = os.readlink(f"{process}/exe").removesuffix(" (deleted)").split("/")
        return path[-2] if path[-1] == _LOADER else ""
    return ""


def as_document(body: Json) -> str:
    """The output of ``--json``."""
    return json.dumps(body, indent=1) + "\n"
