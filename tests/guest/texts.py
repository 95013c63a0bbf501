"""Compare hpn's texts with those of the tools that they replicate."""

import subprocess
from collections.abc import Callable, Mapping, Sequence

from ctl.devices.command import answer as devices
from ctl.devices.devinfo import answer as devinfo
from ctl.devices.gids import answer as gids

COMMANDS: Mapping[str, Callable[..., tuple[str, int]]] = {"devices": devices, "devinfo": devinfo, "gids": gids}


def ours(command: str, *words: str) -> str:
    """The output of an hpn command, which must succeed."""
    text, status = COMMANDS[command](words)
    assert status == 0
    return text


def theirs(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def devinfo_lacks(device: str, *words: str) -> set[str]:
    """The names of the lines that ibv_devinfo prints for a device and hpn does not.  Every line of hpn's must be one of
    ibv_devinfo's, in the same order."""
    mine = ours("devinfo", *words, "-d", device).splitlines()
    return names(left_out(mine, theirs("ibv_devinfo", *words, "-d", device).splitlines()))


def left_out(some: Sequence[str], all_of_them: Sequence[str]) -> list[str]:
    """The lines that ``some`` lacks; all others must be equal and in the same order."""
    rest, gone = list(some), []
    for line in all_of_them:
        if rest and line == rest[0]:
            rest.pop(0)
        else:
            gone.append(line)
    assert not rest, f"{rest[0]!r} is not in its place in:\n" + "\n".join(all_of_them)
    return gone


def names(lines: Sequence[str]) -> set[str]:
    """The names of the lines: "max_mtu" of "max_mtu: 4096 (5)"."""
    return {line.strip().partition(":")[0] for line in lines}
