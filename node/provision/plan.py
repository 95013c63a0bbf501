"""What is, and what the file asks for -> what is to be changed, and what is refused, with the reason; pure.

A PF, or a VF of it, that is in use is left as it is.  What is refused of one PF does not stop what is asked for others.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from node.model import PfRule
from node.offer.offers import agrees
from node.provision.model import (
    Change,
    Pf,
    SetGuids,
    SetMode,
    SetMtu,
    SetTrust,
    SetVfs,
    State,
    Vf,
    WriteOption,
    ranges,
)

AFTER: Final = "then run: systemctl reload hpn-node"
_NAMED: Final = 8  # VFs in a sentence


@dataclass(frozen=True)
class Refusal:
    """Why something is left as it is, with key, value and remedy."""

    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class Plan:
    """``changes`` in their order; ``refused``: why the rest is left as it is; ``unused``: the places of rules for
    which there is no PF, which is no fault."""

    changes: tuple[Change, ...] = ()
    refused: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def plan(rules: Sequence[PfRule], exclusive: bool | None, state: State) -> Plan:  # noqa: FBT001
    """``exclusive`` is ``Settings.rdma_exclusive``."""
    found: list[Change | Refusal] = [*_of_rdma(exclusive, state)]
    used = set[str]()
    for pf in state.pfs:
        asked = [rule for rule in rules if agrees(rule.selector, pf.device)]
        used |= {rule.source for rule in asked}
        found += _of_pf(pf, asked)
    return Plan(
        tuple(one for one in found if not isinstance(one, Refusal)),
        tuple(f"{one}" for one in found if isinstance(one, Refusal)),
        tuple(rule.source for rule in rules if rule.source not in used),
    )


def option(exclusive: bool) -> str:  # noqa: FBT001
    """The text of OPTION_FILE."""
    said = "# Written by hpn node, from rdmaNamespaces in its file."
    return f"{said}\noptions ib_core netns_mode={'N' if exclusive else 'Y'}\n"


def guid(pf: str, number: int) -> str:
    """The GUID of a PF's VF: one of those that nobody has assigned (IEEE's bit for that is set), and the same each
    time."""
    first, *rest = hashlib.sha256(f"hpn {pf} {number}".encode()).digest()[:8]
    return bytes([first & ~1 | 2, *rest]).hex(":")


def _of_rdma(exclusive: bool | None, state: State) -> Iterator[Change]:  # noqa: FBT001
    if exclusive is None:
        return
    if state.option != option(exclusive):
        yield WriteOption(option(exclusive))
    if state.exclusive not in (None, exclusive):
        yield SetMode(exclusive)


def _of_pf(pf: Pf, rules: Sequence[PfRule]) -> list[Change | Refusal]:
    if len(rules) > 1:  # guard: one-rule
        sources = " and ".join(rule.source for rule in rules)
        return [Refusal(f"{sources} are both for {pf.title}, which is left as it is; let one of them select it")]
    found = [one for rule in rules for one in _of_rule(pf, rule)]
    (source,) = [rule.source for rule in rules]
    changes = [one for one in found if not isinstance(one, Refusal)]
    if changes and (why := _why_untouched(pf)):
        asked = "; ".join(f"{one}" for one in changes)
        return [*(one for one in found if isinstance(one, Refusal)), Refusal(f"{source}: {asked}: {why}")]
    return found


def _why_untouched(pf: Pf) -> str:
    """Why nothing of the PF may be changed, and what to do; empty if it may."""
    if pf.device.reserved:  # guard: the-way-out
        return f"refused, {pf.device.reserved}; choose another PF, or make it by hand before the network is up"
    if pf.user:  # guard: a-pods-pf
        return f"refused while {pf.user} has the PF; delete that, {AFTER}"
    if pf.lag:  # guard: a-lag
        return f"refused, {shares(pf.lag)}"
    if not pf.device.driver:
        return f"it has no driver; bind one: echo {pf.device.id} > /sys/bus/pci/drivers_probe"
    return ""


def shares(bond: str) -> str:
    """Why a member of a bond is left as it is, and what to do."""
    return (
        f"it shares an RDMA device with the other members of {bond} (RoCE LAG), which a change may take from all who "
        f"use it; take the bond down (ip link delete {bond}), {AFTER}, or make what is asked for before the bond is up"
    )


def _of_rule(pf: Pf, rule: PfRule) -> Iterator[Change | Refusal]:
    of_pf, of_count = [*_mtu(pf, rule)], [*_count(pf, rule)]
    yield from (*of_pf, *of_count)
    # Those that are made anew are looked at when they are there.
    if not any(isinstance(one, SetVfs) for one in of_count):
        # With many NICs a VF's MTU can be no more than its PF's.
        if not any(isinstance(one, Refusal) for one in of_pf):  # guard: no-more-than-the-pfs-mtu = True
            yield from _vf_mtus(pf, rule)
        yield from _trust(pf, rule)
        yield from _guids(pf, rule)


def _count(pf: Pf, rule: PfRule) -> Iterator[Change | Refusal]:
    count, now = rule.num_vfs, len(pf.vfs)
    if count is None or count == now:  # guard: as-asked (now)
        return
    said = f"{rule.source}.numVfs {count}: {pf.title}"
    if pf.total_vfs is None or not pf.total_vfs:
        why = "has no SR-IOV" if pf.total_vfs is None else "can have no VF (sriov_totalvfs is 0)"
        yield Refusal(f"{said} {why}; enable SR-IOV in the machine's and the NIC's firmware, or remove numVfs")
    elif count > pf.total_vfs:  # guard: most-vfs
        remedy = f"write {pf.total_vfs} or less, or raise the NIC's limit in its firmware"
        yield Refusal(f"{said} can have {pf.total_vfs} VFs (sriov_totalvfs); {remedy}")
    elif why := in_use(pf.vfs):  # guard: in-use
        yield Refusal(f"{said} has {now}, and all of them would be removed first, but {why}")
    else:
        yield SetVfs(pf, count, _then(rule))


def _then(rule: PfRule) -> str:
    """What new VFs get."""
    wanted = [f"MTU {rule.mtu}" if rule.mtu else "", "trust" if rule.trust else "", "GUIDs" if rule.guids else ""]
    return ", ".join(filter(None, wanted))


def in_use(vfs: Sequence[Vf]) -> str:
    """Who has which of the VFs, and what to do; empty if nobody has one."""
    said = list[str]()
    if users := [f"VF {vf.number} ({vf.address}) belongs to {vf.user}" for vf in vfs if vf.user]:
        more = f" and {len(users) - _NAMED} more" if len(users) > _NAMED else ""
        said.append(f"{', '.join(users[:_NAMED])}{more}; delete that")
    if needed := [vf.needed for vf in vfs if vf.needed]:
        said.append(f"the host needs VFs: {'; '.join(needed[:_NAMED])}")
    return f"{'; '.join(said)}, {AFTER}" if said else ""


def why_left(change: SetVfs | SetMtu | SetTrust | SetGuids, over: str, vfs: Sequence[Vf]) -> str:
    """Why a change is not made after all, and what to do; empty if it may be made.

    ``over`` is whose an interface is over the PF's at this moment, and ``vfs`` are those that the change concerns.
    """
    if isinstance(change, SetMtu) and not change.vfs and over:  # guard: mtu-under-a-pods-meanwhile
        return _is_master(over)
    return in_use(vfs)


def _is_master(over: str) -> str:
    why = "a smaller MTU becomes that one's too, and any other may interrupt it"
    return f"is the master of {over}: {why}; delete that, {AFTER}"


def _left(said: str, vfs: Sequence[Vf]) -> Iterator[Refusal]:
    """Which of the VFs, all of which were to be changed, are left as they are."""
    if why := in_use(vfs):  # guard: a-pods-vf-is-told
        yield Refusal(f"{said}: VFs in use are left as they are: {why}")


def _free(vfs: Sequence[Vf]) -> tuple[Vf, ...]:
    return tuple(vf for vf in vfs if vf.is_free)


def _mtu(pf: Pf, rule: PfRule) -> Iterator[Change | Refusal]:
    if rule.mtu is None or rule.mtu == pf.mtu:
        return
    said = f"{rule.source}.mtu {rule.mtu}: {pf.title}"
    if not pf.mtu:
        if not pf.user:
            yield Refusal(f"{said} has no interface on the host; bind its driver, or bring its interface back")
    elif pf.most_mtu and rule.mtu > pf.most_mtu:  # guard: most-mtu
        yield Refusal(f"{said} takes {pf.most_mtu} at most; write that or less")
    elif why := in_use(pf.vfs):  # guard: mtu-in-use
        yield Refusal(f"{said} has {pf.mtu}, and another MTU may interrupt its VFs, but {why}")
    elif pf.over:  # guard: mtu-under-a-pods
        yield Refusal(f"{said} has {pf.mtu}, and {_is_master(pf.over)}")
    else:
        yield SetMtu(pf, rule.mtu)


def _vf_mtus(pf: Pf, rule: PfRule) -> Iterator[Change | Refusal]:
    if rule.mtu is None:
        return
    others = [vf for vf in pf.vfs if vf.mtu not in (0, rule.mtu)]
    yield from _left(f"{rule.source}.mtu {rule.mtu}: {pf.title}", others)
    if free := _free(others):  # guard: mtu-of-free-vfs (_free -> tuple)
        yield SetMtu(pf, rule.mtu, free)


def _trust(pf: Pf, rule: PfRule) -> Iterator[Change | Refusal]:
    if rule.trust is None:
        return
    said = f"{rule.source}.trust {'true' if rule.trust else 'false'}: {pf.title}"
    if pf.device.link_type == "infiniband":
        yield Refusal(f"{said} is InfiniBand, whose VFs have no MAC to be trusted with; remove trust")
        return
    others = [vf for vf in pf.vfs if vf.trust is not None and vf.trust is not rule.trust]
    yield from _left(said, others)
    if free := _free(others):  # guard: trust-of-free-vfs (_free -> tuple)
        yield SetTrust(pf, rule.trust, free)
    if silent := [vf.number for vf in pf.vfs if vf.trust is None]:
        yield Refusal(f"{said}: its driver does not say whether it trusts VF {ranges(silent)}; remove trust")


def _guids(pf: Pf, rule: PfRule) -> Iterator[Change | Refusal]:
    if not rule.guids:
        return
    said = f"{rule.source}.guids true: {pf.title}"
    if pf.device.link_type != "infiniband":
        yield Refusal(f"{said} is Ethernet, which has no GUIDs; remove guids")
        return
    without = [vf for vf in pf.vfs if vf.has_guids is False]  # guard: guids-that-are-there (has_guids)
    if without and not pf.guid:
        yield Refusal(f"{said} has no GUID of its own to make others of; load its RDMA driver")
        return
    yield from _left(said, without)
    if free := _free(without):  # guard: guids-of-free-vfs (_free -> tuple)
        yield SetGuids(pf, free, tuple(guid(pf.guid, vf.number) for vf in free))
