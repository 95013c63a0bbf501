"""All that is read of a node."""

from pathlib import Path

from ctl.doctor import hardware, kept, machine, networks, programs
from ctl.doctor.model import Facts
from ctl.doctor.reading import Reader


def facts(root: Path, file: str, build: str) -> Facts:
    """The facts of the node whose files are below the root; ``file`` is the program that runs now, ``build`` its
    version."""
    read = Reader(root)
    state_dirs = kept.state_dirs(read)
    data_dirs = kept.data_dirs(read, state_dirs)
    found = Facts(
        machine.machine(read),
        hardware.hardware(read),
        networks.networks(read),
        networks.node_file(read),
        kept.kept(read, state_dirs, data_dirs),
        programs.programs(read, file, build),
        (),
    )
    return Facts(**{**vars(found), "unread": tuple(sorted(read.unread.items()))})
