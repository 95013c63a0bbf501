"""Plans provisioning: from the present state and the rules to changes, and refusals with reasons; pure.

A PF or VF in use stays as it is.  A refusal for one PF does not affect others.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from base.table import abridged
from node.model import DRAIN, THEN, PfRule
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

# A DaemonSet's container; the value of the chart gives it the host's directories (packaging/helm/hpn).
MOUNT: Final = "mount the host's there, as the chart does with provision: true"
AFTER: Final = "then run: systemctl reload hpn-node"
_NAMED: Final = 8  # VFs in a sentence

# A change; or a refusal: why something stays as it is, with key, value and remedy.
_Step = Change | str


@dataclass(frozen=True)
class Plan:
    """Changes in their order, refusals with their reasons, and the sources of rules without a PF (not a fault)."""

    changes: tuple[Change, ...] = ()
    refused: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def plan(rules: Sequence[PfRule], exclusive: bool | None, state: State) -> Plan:  # noqa: FBT001
    """The plan for the rules; ``exclusive`` is ``Settings.rdma_exclusive``."""
    found: list[_Step] = [*_of_rdma(exclusive, state)]
    used = set[str]()
    for pf in state.pfs:
        asked = [rule for rule in rules if agrees(rule.selector, pf.device)]
        used |= {rule.source for rule in asked}
        found += _of_pf(pf, asked)
    unused = tuple(rule.source for rule in rules if rule.source not in used)
    return Plan(_changes(found), _refusals(found), unused)


def option(exclusive: bool) -> str:  # noqa: FBT001
    """The text of OPTION_FILE."""
    comment = "# Written by hpn node, from rdmaNamespaces in its file."
    return f"{comment}\noptions ib_core netns_mode={'N' if exclusive else 'Y'}\n"


def guid(pf: str, number: int) -> str:
    """The GUID of a PF's VF: locally administered (IEEE's bit for it is set), and the same each time."""
    first, *rest = hashlib.sha256(f"hpn {pf} {number}".encode()).digest()[:8]
    return bytes([first & ~1 | 2, *rest]).hex(":")


def _changes(found: Iterable[_Step]) -> tuple[Change, ...]:
    return tuple(one for one in found if not isinstance(one, str))


def _refusals(found: Iterable[_Step]) -> tuple[str, ...]:
    return tuple(one for one in found if isinstance(one, str))


def _of_rdma(exclusive: bool | None, state: State) -> Iterator[Change]:  # noqa: FBT001
    if exclusive is None:
        return
    if state.option != option(exclusive):
        yield WriteOption(option(exclusive))
    if state.exclusive not in (None, exclusive):
        yield SetMode(exclusive)


def _of_pf(pf: Pf, rules: Sequence[PfRule]) -> list[_Step]:
    if len(rules) > 1:
        sources = " and ".join(rule.source for rule in rules)
        return [f"{sources} both select {pf.title}, which stays as it is; change the selectors of one"]
    found = [one for rule in rules for one in _of_rule(pf, rule)]
    (source,) = [rule.source for rule in rules]
    changes = _changes(found)
    if changes and (why := _why_untouched(pf)):
        asked = "; ".join(f"{one}" for one in changes)
        return [*_refusals(found), f"{source}: {asked}: {why}"]
    return found


def _why_untouched(pf: Pf) -> str:
    """Why the PF must stay as it is, with the remedy; empty if it may change."""
    if pf.device.reserved:
        return f"refused, {pf.device.reserved}; choose another PF, or change it by hand before the network is up"
    if pf.user:
        return f"refused while {pf.user} has the PF; delete that, {AFTER}"
    if pf.lag:
        return f"refused, {shares(pf.lag)}"
    if not pf.device.driver:
        return f"it has no driver; bind one: echo {pf.device.id} > /sys/bus/pci/drivers_probe"
    return ""


def shares(bond: str) -> str:
    """Why a member of a bond must stay as it is, with the remedy."""
    return (
        f"it shares an RDMA device with the other members of {bond} (RoCE LAG), which a change may remove from all "
        f"users; run: ip link delete {bond}, {AFTER}, or make the change before bonding"
    )


def _of_rule(pf: Pf, rule: PfRule) -> Iterator[_Step]:
    of_pf, of_count = [*_mtu(pf, rule)], [*_count(pf, rule)]
    yield from (*of_pf, *of_count)
    # New VFs are planned in the next round, when they exist.
    if not any(isinstance(one, SetVfs) for one in of_count):
        # With many NICs a VF's MTU can be no more than its PF's.
        if not any(isinstance(one, str) for one in of_pf):
            yield from _vf_mtus(pf, rule)
        yield from _trust(pf, rule)
        yield from _guids(pf, rule)


def _count(pf: Pf, rule: PfRule) -> Iterator[_Step]:
    count, now = rule.num_vfs, len(pf.vfs)
    if count is None or count == now:
        return
    key = f"{rule.source}.numVfs {count}: {pf.title}"
    if pf.total_vfs is None or not pf.total_vfs:
        why = "has no SR-IOV" if pf.total_vfs is None else "can have no VF (sriov_totalvfs is 0)"
        yield f"{key} {why}; enable SR-IOV in the machine's and the NIC's firmware, or remove numVfs"
    elif count > pf.total_vfs:
        remedy = f"write {pf.total_vfs} or less, or raise the NIC's limit in its firmware"
        yield f"{key} can have {pf.total_vfs} VFs (sriov_totalvfs); {remedy}"
    elif pf.is_read_only:
        yield f"{key} has {now}, and /sys is read-only in this container; {MOUNT}"
    elif why := in_use(pf.vfs, is_number=True):
        yield f"{key} has {now}, and all of them would be removed first, but {why}"
    else:
        yield SetVfs(pf, count, _then(rule))


def _then(rule: PfRule) -> str:
    """What new VFs get, as text."""
    wanted = [f"MTU {rule.mtu}" if rule.mtu else "", "trust" if rule.trust else "", "GUIDs" if rule.guids else ""]
    return ", ".join(filter(None, wanted))


def in_use(vfs: Sequence[Vf], *, is_number: bool = False) -> str:
    """The users of the VFs, with the remedy; empty if none is in use.

    ``is_number``: for another number of VFs.  A pod may have any VF that is free until its ADD, so the node is drained.
    """
    parts = list[str]()
    if users := [f"VF {vf.number} ({vf.address}) belongs to {vf.user}" for vf in vfs if vf.user]:
        parts.append(f"{abridged(users, _NAMED)}; {f'run: {DRAIN}' if is_number else 'delete that'}")
    if needed := [vf.needed for vf in vfs if vf.needed]:
        parts.append(f"the host needs VFs: {'; '.join(needed[:_NAMED])}")
    return f"{'; '.join(parts)}, {THEN if is_number and users else AFTER}" if parts else ""


def why_left(change: SetVfs | SetMtu | SetTrust | SetGuids, over: str, vfs: Sequence[Vf]) -> str:
    """Why a change must not be made after all, with the remedy; empty if it may.

    ``over`` is the present owner of an interface over the PF's, and ``vfs`` are the VFs that the change concerns.
    """
    if isinstance(change, SetMtu) and not change.vfs and over:
        return _is_master(over)
    return in_use(vfs, is_number=isinstance(change, SetVfs))


def _is_master(over: str) -> str:
    why = "a smaller MTU becomes that one's too, and any other may interrupt it"
    return f"is the master of {over}: {why}; delete that, {AFTER}"


def _left(key: str, vfs: Sequence[Vf]) -> Iterator[str]:
    """A refusal for those of the VFs that are in use."""
    if why := in_use(vfs):
        yield f"{key}: VFs in use stay as they are: {why}"


def _free(vfs: Sequence[Vf]) -> tuple[Vf, ...]:
    return tuple(vf for vf in vfs if vf.is_free)


def _mtu(pf: Pf, rule: PfRule) -> Iterator[_Step]:
    if rule.mtu is None or rule.mtu == pf.mtu:
        return
    key = f"{rule.source}.mtu {rule.mtu}: {pf.title}"
    if not pf.mtu:
        if not pf.user:
            yield f"{key} has no interface on the host; bind its driver, or bring its interface back"
    elif pf.most_mtu and rule.mtu > pf.most_mtu:
        yield f"{key} takes {pf.most_mtu} at most; write that or less"
    elif why := in_use(pf.vfs):
        yield f"{key} has {pf.mtu}, and another MTU may interrupt its VFs, but {why}"
    elif pf.over:
        yield f"{key} has {pf.mtu}, and {_is_master(pf.over)}"
    else:
        yield SetMtu(pf, rule.mtu)


def _vf_mtus(pf: Pf, rule: PfRule) -> Iterator[_Step]:
    if rule.mtu is None:
        return
    others = [vf for vf in pf.vfs if vf.mtu not in (0, rule.mtu)]
    yield from _left(f"{rule.source}.mtu {rule.mtu}: {pf.title}", others)
    if free := _free(others):
        yield SetMtu(pf, rule.mtu, free)


def _trust(pf: Pf, rule: PfRule) -> Iterator[_Step]:
    if rule.trust is None:
        return
    key = f"{rule.source}.trust {'true' if rule.trust else 'false'}: {pf.title}"
    if pf.device.link_type == "infiniband":
        yield f"{key} is InfiniBand, and its VFs have no MAC to trust; remove trust"
        return
    others = [vf for vf in pf.vfs if vf.trust is not None and vf.trust is not rule.trust]
    yield from _left(key, others)
    if free := _free(others):
        yield SetTrust(pf, rule.trust, free)
    if silent := [vf.number for vf in pf.vfs if vf.trust is None]:
        yield f"{key}: its driver does not report whether it trusts VF {ranges(silent)}; remove trust"


def _guids(pf: Pf, rule: PfRule) -> Iterator[_Step]:
    if not rule.guids:
        return
    key = f"{rule.source}.guids true: {pf.title}"
    if pf.device.link_type != "infiniband":
        yield f"{key} is Ethernet, whose GUIDs derive from the MAC that the PF sets; remove guids"
        return
    without = [vf for vf in pf.vfs if vf.has_guids is False]
    if without and not pf.guid:
        yield f"{key} has no GUID to derive others from; load its RDMA driver"
        return
    yield from _left(key, without)
    if free := _free(without):
        yield SetGuids(pf, free, tuple(guid(pf.guid, vf.number) for vf in free))
