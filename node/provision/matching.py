"""Which PFs rules are for, and what tells whether one has come."""

from collections.abc import Sequence

from cni.kernel import sysfs
from node.model import Device, Kind, PfRule
from node.offers import agrees

# A PF's address, which incarnation it is, its driver and its interfaces: another one, or one that can be made ready now
# and could not before, is another value.
Seen = tuple[str, int, str, tuple[str, ...]]


def matching(rules: Sequence[PfRule], devices: Sequence[Device]) -> tuple[Device, ...]:
    """The PFs that rules are for."""
    pfs = [device for device in devices if device.kind is Kind.PF]
    return tuple(pf for pf in pfs if any(agrees(rule.selector, pf) for rule in rules))


def seen(rules: Sequence[PfRule], devices: Sequence[Device]) -> frozenset[Seen]:
    """The same, as what tells whether a PF has come."""
    pfs = matching(rules, devices)
    return frozenset((pf.id, sysfs.incarnation(pf.id), pf.driver, pf.netdevs) for pf in pfs)
