"""Checks of the state on disk: attachments, leases, blocks of shared pools, and free space."""

from collections.abc import Iterator

from base.table import abridged
from cni import attachment_state
from ctl.doctor.model import Facts, Finding, Severity

_FEW_LEASES = 8  # in a finding
# Seconds.  No ADD waits this long, so an incomplete one was killed.
_UNDER_WAY = 600.0
_FULL = 0.9
# A disk is nearly full with less than a twentieth of its bytes or inodes free, and less than 64 MiB or 1,000 inodes.
_LITTLE, _SHARE, _FEW = 64 << 20, 20, 1000
# Seconds.  A node sends a heartbeat every 600 s; others may reclaim its blocks after 3600 s.
_LONG = 1800.0


def state_unsafe(facts: Facts) -> Iterator[Finding]:
    """Users other than root could change the state, so hpn does not trust it, and each command fails."""
    for folder, words, remedy in facts.state.unsafe:
        yield Finding(Severity.ERROR, f"{folder}: {words}", f"check its contents, then: {remedy}")


def record_unreadable(facts: Facts) -> Iterator[Finding]:
    """A damaged record: the changes of that attachment are unknown."""
    for path in facts.state.unreadable:
        yield Finding(Severity.ERROR, f"{path} is not an intact record of an attachment", attachment_state.REMEDY)
    for one in facts.state.attachments:
        if one.state == attachment_state.UNREADABLE:
            yield Finding(Severity.ERROR, f"{one.file}: {one.title}: {one.trouble}", attachment_state.REMEDY)


def leases_unreadable(facts: Facts) -> Iterator[Finding]:
    """Damaged leases.  Pods cannot get their addresses until an operator has decided about them."""
    for place, why in facts.state.leases:
        remedy = "see the details: hpn ipam verify; remove files in quarantine (rm) when no pod uses these addresses"
        yield Finding(Severity.ERROR, f"{place}: {why}", remedy)


def lease_unproven(facts: Facts) -> Iterator[Finding]:
    """An imported address stays held after its pod has ended, if the DEL goes to the former plugin."""
    for place, imported in facts.state.unproven:
        yield Finding(
            Severity.WARNING,
            f"{place}: {len(imported)} imported addresses name no namespace, so nothing proves their pods dead: "
            f"{abridged(imported, _FEW_LEASES)}",
            "if no such pod runs (crictl pods): hpn ipam release NETWORK ADDRESS --force; if one runs, import again "
            "from a shell of the host",
        )


def attachment_dead(facts: Facts) -> Iterator[Finding]:
    """A pod is gone, and its interface, device and addresses are still taken."""
    for one in facts.state.attachments:
        if one.state == attachment_state.DEAD:
            # hpn gc ignores unreadable records.
            remedy = "hpn repair" if one.is_lost else "hpn gc"
            yield Finding(Severity.WARNING, f"{one.file}: {one.title}: its pod is gone", remedy)


def attachment_incomplete(facts: Facts) -> Iterator[Finding]:
    """An ADD was killed, and the runtime has not sent the DEL that would undo it; or an undo did not end."""
    for one in facts.state.attachments:
        if one.state == attachment_state.HALF_DETACHED:
            yield Finding(Severity.WARNING, f"{one.file}: {one.title}: {one.why}", "hpn repair")
        if one.state == attachment_state.HALF_ATTACHED and one.age > _UNDER_WAY:
            evidence = f"{one.file}: {one.title}: ADD began {one.age / 60:.0f} minutes ago and is not complete"
            yield Finding(Severity.WARNING, evidence, "hpn repair")


def attachment_stranded(facts: Facts) -> Iterator[Finding]:
    """An interface is detached, and its IPAM plugin refused to release the addresses."""
    for one in facts.state.stranded:
        evidence = f"{one.file}: {one.title}: {one.trouble}"
        yield Finding(
            Severity.WARNING,
            evidence,
            f"hpn repair, which tries again; if that fails, release them by hand, then: rm {one.file}",
        )


def pool_nearly_full(facts: Facts) -> Iterator[Finding]:
    """ADD will soon find no free address."""
    for pool in facts.state.pools:
        if pool.taken >= _FULL * pool.size:
            yield Finding(
                Severity.WARNING,
                f"{pool.place}: {pool.taken} of {pool.size} addresses of {', '.join(pool.ranges)} are taken, "
                f"{pool.dead} by dead pods",
                "hpn gc" if pool.dead else "enlarge the range or add one; hpn ipam show lists the owners",
            )


def blocks_unseen(facts: Facts) -> Iterator[Finding]:
    """Other nodes may suspect this node and reclaim its blocks; until then it gets no new ones."""
    for one in facts.state.blocks:
        if one.silent:
            evidence = f"{one.file}: the backend of these blocks cannot be read: {one.silent}"
            yield Finding(
                Severity.ERROR, evidence, "follow this message; new pods get addresses until the node's blocks are full"
            )
        elif one.seen > _LONG:
            evidence = f"{one.file}: this node last read its blocks from the backend {one.seen / 60:.0f} minutes ago"
            yield Finding(Severity.ERROR, evidence, "systemctl restart hpn-node, which reads them at once")


def block_lost(facts: Facts) -> Iterator[Finding]:
    """Another node owns a block whose addresses pods of this node still use."""
    for one in facts.state.blocks:
        if lost := one.states.get("lost", 0):
            evidence = f"{one.file}: {lost} of its blocks now belong to other nodes, and pods here use their addresses"
            yield Finding(
                Severity.ERROR, evidence, "delete these pods: hpn ipam show lists them, hpn ipam blocks the new owners"
            )


def blocks_full(facts: Facts) -> Iterator[Finding]:
    """The next ADD must claim a block from the backend, and the cluster may have none left."""
    for one in facts.state.blocks:
        if not one.room:
            evidence = f"{one.file}: this node's blocks ({one.states.get('held', 0)}) have no address left"
            yield Finding(
                Severity.WARNING, evidence, "check whether the cluster has free blocks: hpn ipam show --cluster"
            )


def disk_nearly_full(facts: Facts) -> Iterator[Finding]:
    """ADD fails if it cannot write its record."""
    for disk in facts.machine.disks:
        if disk.free < min(_LITTLE, disk.size // _SHARE):
            evidence = f"the file system of {disk.path} has {disk.free >> 10} KiB free of {disk.size >> 10}"
            yield Finding(Severity.WARNING, evidence, f"make room: du -x {disk.path}, journalctl --vacuum-size=1G")
        elif disk.free_inodes < min(_FEW, disk.inodes // _SHARE):
            evidence = f"the file system of {disk.path} has {disk.free_inodes} inodes free of {disk.inodes}"
            yield Finding(Severity.WARNING, evidence, f"remove files: du -x --inodes {disk.path}")
