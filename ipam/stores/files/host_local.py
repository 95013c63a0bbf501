"""What host-local has given from the directory that is ours now: its dataDir is ours too."""

from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from cni.protocol.errors import InvalidConfig

_SHOWN = 3


def refuse(directory: Path, names: Sequence[str]) -> None:
    """Raise InvalidConfig if one of the files is named by an address: a pod of host-local's may have it.

    host-local's other files, its lock and ``last_reserved_ip.0``, say of no pod that it lives.
    """
    addresses = sorted(filter(is_address, names))
    if not addresses:
        return
    shown = ", ".join([*addresses[:_SHOWN], "..."] if len(addresses) > _SHOWN else addresses)
    raise InvalidConfig(
        f"{directory} has files of {len(addresses)} addresses that host-local has given ({shown}), so nothing is given "
        "from there; take them over: "
        f"hpn ipam import --from host-local {directory} --data-dir {directory.parent}"
    )


def is_address(name: str) -> bool:
    """Whether host-local names a file so that stands for an address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
