"""List and count the holdings of this node's networks for people."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from base.protocol.errors import IoFailure
from base.protocol.result import Address
from base.protocol.spec import Json
from ipam.ranges import count
from ipam.stores import Gone, access
from ipam.stores.holdings import Contents, Kept, Lease, Listed, Lost

# The states of an address that is not free.
STATES: Final = (
    "held",  # by a pod
    "dead",  # held by a dead pod
    "cooling",  # reserved from all pods after its release
    "sticky",  # reserved for one name after its release
    "conflict",  # another host on the link has it
    "doubtful",  # its last pod may still use it
    "unreadable",  # its lease is unreadable
)


def networks(data_dir: Path, gone: Gone, names: Sequence[str] = ()) -> list[Contents]:
    """The networks with these names, without names all.  Raises IoFailure."""
    try:
        found = access.networks(data_dir)
    except OSError as e:
        raise IoFailure(f"reading {e.filename or data_dir}: {e.strerror}; it is for root") from e
    if missing := set(names) - set(found):
        raise IoFailure(f"no network {', '.join(sorted(missing))} in {data_dir}; see: hpn ipam show")
    return [access.open_in(data_dir, name, [], gone).contents() for name in found if not names or name in names]


def state(one: Listed) -> str:
    """One of STATES, or "free"."""
    match one.holding:
        case Lost():
            return "unreadable"
        case Kept() if one.is_over:
            return "free"
        case Kept(sticky=sticky, mac=mac, boot=boot):
            return "sticky" if sticky else "conflict" if mac else "doubtful" if boot else "cooling"
        case Lease():
            return "dead" if one.is_over else "held"


def pools(network: Contents) -> list[Json]:
    """For each range set the number of addresses by state, and last those outside of all sets; sizes may be huge."""
    rest = {address: state(one) for one in network.listed for address in one.holding.ips}
    found = list[Json]()
    for spans, parent in zip(network.sets, network.parents or ("",) * len(network.sets), strict=True):
        inside = {address: of for address, of in rest.items() if any(address in span for span in spans)}
        rest = {address: of for address, of in rest.items() if address not in inside}
        size, free = count(spans), sum(of == "free" for of in inside.values())
        about: Json = {"ranges": [str(span) for span in spans], "size": size, **_counted(inside)}
        about |= {"parent": parent} if parent else {}
        found.append(about | {"free": size - len(inside) + free})
    rest = {address: of for address, of in rest.items() if of != "free"}
    if rest or not network.sets:
        found.append({"ranges": [], "size": None, **_counted(rest), "free": None})
    return found


def _counted(states: Mapping[Address, str]) -> Json:
    counts = Counter(states.values())
    return {name: counts[name] for name in STATES}
