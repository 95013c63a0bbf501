"""Stores that already hold a number of addresses of one subnet."""

import shutil
import sys
import tempfile
from functools import partial
from ipaddress import ip_network
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from base.protocol.spec import Key
from ipam import leases
from ipam.config import load
from ipam.stores import Owner, access


def ours(network: Path, subnet: str, held: int) -> None:
    """Fill a store of ours, in memory, where a sync costs nothing."""
    ipam = {"type": "hpn-ipam", "ranges": [[{"subnet": subnet}]]}
    network.mkdir(mode=0o700, parents=True, exist_ok=True)
    choose = partial(leases.choose, load({"ipam": ipam}, {}).sets, ())
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        store = access.open_in(memory, "net", [])
        for i in range(held):
            store.reserve(Owner(Key(f"{i:064x}", "hpn0"), f"default/pod-{i}", "/run/netns/pod"), choose)
        if held:
            shutil.copytree(f"{memory}/net", network, dirs_exist_ok=True)


def theirs(network: Path, subnet: str, held: int) -> None:
    """Write a store as host-local does: a file per address, and the last allocated address."""
    network.mkdir(parents=True, exist_ok=True)
    first = ip_network(subnet).network_address + 2
    for i in range(held):
        (network / str(first + i)).write_text(f"{i:064x}\r\nhpn0")
    if held:
        (network / "last_reserved_ip.0").write_text(str(first + held - 1))
