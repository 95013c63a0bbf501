"""Which PFs rules are for, and what tells whether one has come."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from base.kernel import sysfs
from hardware.model import Device, Kind
from node.model import PfRule
from node.offer.offers import agrees


@dataclass(frozen=True)
class Seen:
    """A PF as rules saw it.

    It is another value for another device at the address, with another driver, with its first interface, or when other
    rules are for it.  It is the same while a pod has the PF, because what the interface was called is remembered.

    - ``incarnation``: tells it from others that are plugged in at its address.
    - ``named``: whether it has an interface, or had one before a pod got that.
    - ``rules``: the places of the rules that are for it.
    """

    address: str
    incarnation: int
    driver: str
    named: bool
    rules: tuple[str, ...]


def matching(rules: Sequence[PfRule], devices: Sequence[Device]) -> tuple[Device, ...]:
    """The PFs that rules are for."""
    pfs = [device for device in devices if device.kind is Kind.PF]
    return tuple(pf for pf in pfs if any(agrees(rule.selector, pf) for rule in rules))


def seen(rules: Sequence[PfRule], devices: Sequence[Device]) -> frozenset[Seen]:
    """The same, as what tells whether a PF has come."""
    return frozenset(
        Seen(
            pf.id,
            sysfs.incarnation(pf.id),
            pf.driver,
            bool(pf.names),
            tuple(rule.source for rule in rules if agrees(rule.selector, pf)),
        )
        for pf in matching(rules, devices)
    )  # guard: home-from-a-pod (pf.names -> pf.netdevs)


def lasting(before: Iterable[Seen], devices: Sequence[Device]) -> frozenset[Seen]:
    """What counts still of what was seen before: a PF that has lost its driver, or is gone, comes anew afterwards."""
    drivers = {device.id: device.driver for device in devices}
    return frozenset(one for one in before if drivers.get(one.address) == one.driver)  # guard: another-driver (address)


def only(rules: Sequence[PfRule], addresses: Collection[str]) -> tuple[PfRule, ...]:
    """The rules for the PFs at these addresses alone."""
    narrowed = [(rule, rule.selector.addresses or frozenset(addresses)) for rule in rules]
    # A selector without addresses selects all.
    return tuple(
        replace(rule, selector=replace(rule.selector, addresses=left))
        for rule, selected in narrowed
        if (left := frozenset(selected) & frozenset(addresses))  # guard: that-pf-alone ((addresses))
    )


def without(sentences: Sequence[str], addresses: Collection[str]) -> tuple[str, ...]:
    """The sentences that name none of these PFs; each sentence on a PF has its address."""
    return tuple(sentence for sentence in sentences if not any(address in sentence for address in addresses))
