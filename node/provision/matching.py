"""Which PFs the rules select, and which of them are new."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from base.kernel import sysfs
from hardware.model import Device, Kind
from node.model import PfRule
from node.offer.offers import agrees


@dataclass(frozen=True)
class Seen:
    """A PF as the rules saw it.

    The value differs for another device at the address, another driver, the first interface, and other rules.  It stays
    the same while a pod has the PF, because the inventory remembers the interface's name.

    - ``incarnation``: distinguishes devices plugged in at one address.
    - ``named``: whether the PF has an interface, or had one before a pod got it.
    - ``rules``: the places of the rules that select it.
    """

    address: str
    incarnation: int
    driver: str
    named: bool
    rules: tuple[str, ...]


def matching(rules: Sequence[PfRule], devices: Sequence[Device]) -> tuple[Device, ...]:
    """The PFs that the rules select."""
    pfs = [device for device in devices if device.kind is Kind.PF]
    return tuple(pf for pf in pfs if any(agrees(rule.selector, pf) for rule in rules))


def seen(rules: Sequence[PfRule], devices: Sequence[Device]) -> frozenset[Seen]:
    """The PFs that the rules select, as values that show whether one is new."""
    return frozenset(
        Seen(
            pf.id,
            sysfs.incarnation(pf.id),
            pf.driver,
            bool(pf.names),
            tuple(rule.source for rule in rules if agrees(rule.selector, pf)),
        )
        for pf in matching(rules, devices)
    )


def lasting(before: Iterable[Seen], devices: Sequence[Device]) -> frozenset[Seen]:
    """The earlier values that still count.  A PF that lost its driver, or is gone, is new when it returns."""
    drivers = {device.id: device.driver for device in devices}
    return frozenset(one for one in before if drivers.get(one.address) == one.driver)


def only(rules: Sequence[PfRule], addresses: Collection[str]) -> tuple[PfRule, ...]:
    """The rules, narrowed to the PFs at these addresses."""
    narrowed = [(rule, rule.selector.addresses or frozenset(addresses)) for rule in rules]
    # A rule with no address left is dropped, because a selector without addresses selects all.
    return tuple(
        replace(rule, selector=replace(rule.selector, addresses=left))
        for rule, selected in narrowed
        if (left := frozenset(selected) & frozenset(addresses))
    )


def without(sentences: Sequence[str], addresses: Collection[str]) -> tuple[str, ...]:
    """The sentences about other PFs than these; each sentence on a PF contains its address."""
    return tuple(sentence for sentence in sentences if not any(address in sentence for address in addresses))
