"""The hook in a CDI file that raises a container's limit of locked memory; the runtime calls the launcher.

docs/develop/node.md has the reasons, and what was rejected.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from base.protocol import memlock
from base.protocol.errors import InvalidConfig
from base.protocol.location import PLUGIN
from base.protocol.memlock import KEEP, UNLIMITED, Limit
from base.protocol.spec import Json
from base.state import policy
from node.model import Resource

_UVERBS: Final = "/dev/infiniband/uverbs"
_TIMEOUT: Final = 5  # seconds; the launcher ends before
# Versions without this hook answer VERSION with success.
_OLDER: Final = ("CNI_COMMAND=VERSION",)


class Launcher:
    """Where the runtime finds this program.  The path is empty, and CDI files have no hook, until ``found``."""

    path = ""

    def found(self, folder: Path | None, own: str) -> None:
        """Note the program in the runtime's directory for plugins, which a container may not see.

        Without ``folder`` that is the usual path, or ``own``, the running program's, if root can run it.
        """
        paths = (PLUGIN, own) if folder is None else ()
        there = next((path for path in paths if path and os.access(path, os.X_OK)), "")
        self.path = f"{folder}/hpn" if folder else there

    def without(self, resources: Iterable[Resource]) -> Iterator[str]:
        """A sentence for each resource whose limit cannot be set, because the runtime finds no program for the hook."""
        for one in () if self.path else resources:
            if one.memlock not in ("", KEEP):
                yield (
                    f"{one.source}.memlock {one.memlock} has no effect, because {PLUGIN} cannot run on this node; "
                    "install hpn there, or name its directory by --cni-bin-dir"
                )


LAUNCHER: Final = Launcher()


def hooks(asked: Limit, nodes: Iterable[str], most: Limit) -> list[Json]:
    """The hooks of a container that gets these device nodes.

    ``asked`` is the limit in the device file or the DeviceClass; empty if neither has one.  Then a uverbs node lifts
    the limit.  ``most`` is the policy file's, which wins over a larger one.
    """
    wanted = asked or (UNLIMITED if any(node.startswith(_UVERBS) for node in nodes) else KEEP)
    limit = memlock.smaller(wanted, most)
    if limit == KEEP or not LAUNCHER.path:
        return []
    # A container starts without a limit that the administrator did not write.
    words = ["hpn", "hook", "memlock", f"{limit}", *(["required"] if asked else [])]
    return [{"hookName": "createRuntime", "path": LAUNCHER.path, "args": words, "env": [*_OLDER], "timeout": _TIMEOUT}]


def conflicts(resources: Iterable[Resource]) -> Sequence[str]:
    """A sentence for each resource whose limit the policy file does not allow, and for an unusable policy file."""
    try:
        limit = policy.memlock_most()
    except InvalidConfig as e:
        return (f"no container's limit of locked memory is raised: {e.msg}",)
    return tuple(
        f"{one.source}.memlock {one.memlock} is more than {policy.MEMLOCK} {limit} in {policy.FILE}, which wins "
        f"for containers of {one.full_name}; change one of the two"
        for one in resources
        if one.memlock and memlock.smaller(one.memlock, limit) != one.memlock
    )


def most() -> Limit:
    """The policy file's limit; ``keep`` if the file is unusable, which ``conflicts`` reports."""
    try:
        return policy.memlock_most()
    except InvalidConfig:
        return KEEP
