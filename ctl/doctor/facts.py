"""All that is read of a node."""

from dataclasses import replace
from pathlib import Path

from ctl.doctor import definitions, hardware, kept, machine, networks, programs
from ctl.doctor.model import Facts
from ctl.doctor.reading import Reader


def facts(root: Path, file: str, build: str, kubeconfig: Path | None = None) -> Facts:
    """The facts of the node whose files are below the root; ``file`` is the program that runs now, ``build`` its
    version.  With a ``kubeconfig`` the API server is asked too."""
    read = Reader(root)
    state = kept.kept(read)
    found = Facts(
        machine.machine(read, state.folders),
        hardware.hardware(read),
        networks.networks(read),
        networks.node_file(read),
        state,
        programs.programs(read, file, build),
        definitions.cluster(read, kubeconfig) if kubeconfig else None,
        networks.without_names(read),
    )
    return replace(found, unread=tuple(sorted(read.unread.items())))
