"""From the state of PFs and the rules of a file to changes and refusals, with their messages."""

import errno
import os
from dataclasses import replace
from typing import Any

import pytest

from hardware.model import Device, Kind
from node.model import PfRule, Selector
from node.provision.apply import why_not
from node.provision.model import Change, Pf, SetGuids, SetMode, SetMtu, SetTrust, SetVfs, State, Vf, WriteOption, ranges
from node.provision.plan import Plan, guid, option, plan, why_left

ADDRESS = "0000:3b:00.0"
DEVICE = Device(ADDRESS, Kind.PF, driver="igb", netdevs=("rail0",), names=("rail0",), link_type="ether")
POD = "pod default/a"
HOST = "'rail0v1' has 10.0.0.1/24 on the host, which a move would lose; remove them first"
PF_GUID = "00:11:22:33:44:55:66:77"


def vfs(count: int, **fields: Any) -> tuple[Vf, ...]:
    return tuple(replace(Vf(f"0000:3b:00.{n + 1}", n, mtu=1500, trust=False), **fields) for n in range(count))


def pf(count: int = 0, **fields: Any) -> Pf:
    return replace(Pf(DEVICE, total_vfs=7, vfs=vfs(count), mtu=1500, most_mtu=9216), **fields)


def infiniband(count: int = 2, **fields: Any) -> Pf:
    device = replace(DEVICE, link_type="infiniband")
    return pf(device=device, vfs=vfs(count, trust=None, has_guids=False), guid=PF_GUID, **fields)


def rule(**fields: Any) -> PfRule:
    return PfRule(Selector(kinds=frozenset({Kind.PF}), netdevs=frozenset({"rail0"})), "pfs[0]", **fields)


def differs(found: Pf, *rules: PfRule) -> Plan:
    return plan(rules, None, State((found,)))


def refused(found: Pf, *rules: PfRule) -> str:
    """The only refusal of a plan without changes."""
    left = differs(found, *rules)
    (sentence,) = left.refused
    assert left.changes == ()
    return sentence


def test_from_no_vf() -> None:
    left = differs(pf(), rule(num_vfs=4, mtu=9000, trust=True))
    assert [type(one) for one in left.changes] == [SetMtu, SetVfs]
    assert [f"{one}" for one in left.changes] == [
        f"rail0 ({ADDRESS}): mtu 1500 -> 9000",
        f"rail0 ({ADDRESS}): numVfs 0 -> 4, each with MTU 9000, trust",
    ]
    assert (left.refused, left.unused) == ((), ())


def test_what_is_as_it_should_be() -> None:
    found = pf(mtu=9000, vfs=vfs(4, mtu=9000, trust=True, user=POD))
    assert differs(found, rule(num_vfs=4, mtu=9000, trust=True)) == Plan()
    assert differs(pf(vfs=vfs(3, user=POD)), rule(trust=False)) == Plan()


def test_its_vfs() -> None:
    left = differs(pf(4), rule(num_vfs=4, trust=True))
    (trust,) = left.changes
    assert isinstance(trust, SetTrust)
    assert (trust.on, trust.vfs, f"{trust}") == (True, vfs(4), f"rail0 ({ADDRESS}): trust of VF 0-3 -> true")
    (mtu,) = differs(pf(4, mtu=9000), rule(mtu=9000)).changes
    assert (isinstance(mtu, SetMtu) and mtu.vfs) == vfs(4)
    assert differs(pf(mtu=9000, vfs=vfs(4, mtu=0)), rule(mtu=9000)) == Plan()


@pytest.mark.parametrize("count", [0, 2, 7])
def test_another_number_while_a_pod_has_one(count: int) -> None:
    mixed = (*vfs(1), *vfs(4, user=POD)[1:2], *vfs(4)[2:])
    said = refused(pf(vfs=mixed), rule(num_vfs=count))
    assert said == (
        f"pfs[0].numVfs {count}: rail0 ({ADDRESS}) has 4, and all of them would be removed first, but "
        f"VF 1 (0000:3b:00.2) belongs to {POD}; run: kubectl drain NODE --ignore-daemonsets --delete-emptydir-data, "
        "then run: systemctl reload hpn-node (in a DaemonSet: delete its pod), then: kubectl uncordon NODE"
    )


def test_a_container_without_the_hosts_sys() -> None:
    """The number stays; what needs no file is changed."""
    left = differs(pf(4, is_read_only=True), rule(num_vfs=2, mtu=9000))
    remedy = "mount the host's there, as the chart does with provision: true"
    assert left.refused == (
        f"pfs[0].numVfs 2: rail0 ({ADDRESS}) has 4, and /sys is read-only in this container; {remedy}",
    )
    assert [f"{one}" for one in left.changes][:1] == [f"rail0 ({ADDRESS}): mtu 1500 -> 9000"]


@pytest.mark.parametrize(
    ("change", "number", "why"),
    [
        (SetVfs(pf(), 4), errno.EACCES, "/sys is closed to it by AppArmor or SELinux; run it unconfined, as the chart"),
        (SetGuids(infiniband(), (), ()), errno.EROFS, "/sys is read-only here; mount the host's there, as the chart"),
        (WriteOption(""), errno.EROFS, "/etc/modprobe.d is read-only here; mount the host's there, as the chart"),
        (WriteOption(""), errno.ENOENT, "/etc/modprobe.d does not exist; make it, or mount the host's there, as the"),
        (SetVfs(pf(), 4), errno.ENOENT, "No such file or directory; see: dmesg"),
        (SetTrust(pf(), on=True, vfs=()), errno.EACCES, "Permission denied"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int | str) else f"{value}"[:20],
)
def test_errors_of_a_container(change: Change, number: int, why: str) -> None:
    assert why_not(change, OSError(number, os.strerror(number))).startswith(why)


def test_many_users() -> None:
    assert "VF 7 " in (said := refused(pf(vfs=vfs(12, user=POD), total_vfs=64), rule(num_vfs=1)))
    assert "VF 8 " not in said
    assert " and 4 more; " in said


def test_another_number_while_the_host_needs_one() -> None:
    said = refused(pf(vfs=(*vfs(1), *vfs(2, needed="'rail0v1' has 10.0.0.1/24 on the host")[1:])), rule(num_vfs=0))
    assert "the host needs VFs: 'rail0v1' has 10.0.0.1/24" in said
    assert [f"{one}" for one in differs(pf(2), rule(num_vfs=0)).changes] == [f"rail0 ({ADDRESS}): numVfs 2 -> 0"]


def test_other_settings_while_pods_have_vfs() -> None:
    """Free VFs are changed."""
    found = pf(vfs=(*vfs(2), *vfs(3, user=POD)[2:]))
    left = differs(found, rule(trust=True))
    assert [f"{one}" for one in left.changes] == [f"rail0 ({ADDRESS}): trust of VF 0-1 -> true"]
    assert [f"VF 2 (0000:3b:00.3) belongs to {POD}" in one for one in left.refused] == [True]
    assert refused(found, rule(mtu=9000)).startswith(
        f"pfs[0].mtu 9000: rail0 ({ADDRESS}) has 1500, and another MTU may interrupt its VFs, but VF 2"
    )


@pytest.mark.parametrize(
    ("found", "asked", "why"),
    [
        (pf(), rule(num_vfs=8), "pfs[0].numVfs 8: rail0 (0000:3b:00.0) can have 7 VFs (sriov_totalvfs); write 7"),
        (pf(total_vfs=None), rule(num_vfs=8), "has no SR-IOV; enable SR-IOV in the machine's and the NIC's firmware"),
        (pf(total_vfs=0), rule(num_vfs=8), "can have no VF (sriov_totalvfs is 0); enable"),
        (pf(), rule(mtu=9217), "pfs[0].mtu 9217: rail0 (0000:3b:00.0) takes 9216 at most; write that or less"),
        (pf(mtu=0), rule(mtu=9000), "has no interface on the host"),
        (pf(user=POD), rule(num_vfs=4), f"numVfs 0 -> 4: refused while {POD} has the PF; delete that"),
        (pf(device=replace(DEVICE, driver="")), rule(num_vfs=4), f"no driver; bind one: echo {ADDRESS} >"),
        (
            pf(device=replace(DEVICE, reserved="the host's default route leaves by bond0")),
            rule(num_vfs=4),
            "rail0 (0000:3b:00.0): numVfs 0 -> 4: refused, the host's default route leaves by bond0; choose another",
        ),
        (
            pf(lag="bond0"),
            rule(num_vfs=4),
            "numVfs 0 -> 4: refused, it shares an RDMA device with the other members of bond0 (RoCE LAG)",
        ),
        (pf(vfs=vfs(2, trust=None)), rule(trust=True), "does not report whether it trusts VF 0-1; remove trust"),
        (infiniband(), rule(trust=True), "is InfiniBand, and its VFs have no MAC to trust; remove trust"),
        (pf(2), rule(guids=True), "is Ethernet, whose GUIDs derive from the MAC that the PF sets; remove guids"),
        (replace(infiniband(), guid=""), rule(guids=True), "has no GUID to derive others from"),
        (replace(infiniband(), vfs=vfs(1, has_guids=False, user=POD)), rule(guids=True), "belongs to"),
    ],
)  # fmt: skip
def test_refused(found: Pf, asked: PfRule, why: str) -> None:
    assert why in refused(found, asked)


def test_two_rules_for_one_pf() -> None:
    other = PfRule(Selector(kinds=frozenset({Kind.PF}), addresses=frozenset({ADDRESS})), "pfs[3]", num_vfs=2)
    said = refused(pf(), rule(num_vfs=4), other)
    assert said == f"pfs[0] and pfs[3] both select rail0 ({ADDRESS}), which stays as it is; change the selectors of one"


def test_one_that_is_refused_does_not_stop_another() -> None:
    second = pf(device=replace(DEVICE, id="0000:3c:00.0", netdevs=("rail1",), names=("rail1",)))
    by_driver = PfRule(Selector(kinds=frozenset({Kind.PF}), drivers=frozenset({"igb"})), "pfs[0]", num_vfs=4)
    left = plan([by_driver], None, State((pf(total_vfs=2), second)))
    assert (len(left.refused), [f"{one}" for one in left.changes]) == (1, ["rail1 (0000:3c:00.0): numVfs 0 -> 4"])


def test_what_is_right_already_is_not_refused() -> None:
    """A PF that the host needs may already be as the file asks."""
    kept = pf(4, device=replace(DEVICE, reserved="the host's default route leaves by rail0"))
    assert differs(kept, rule(num_vfs=4)) == Plan()


@pytest.mark.parametrize("used", [{"user": POD}, {"needed": HOST}, {"user": POD, "needed": HOST}])
def test_the_mtu_of_vfs_in_use(used: dict[str, Any]) -> None:
    """Free VFs are changed, and the refusal names the users of the others."""
    left = differs(pf(mtu=9000, vfs=(*vfs(1), *vfs(2, **used)[1:])), rule(mtu=9000))
    (mtu,), (said,) = left.changes, left.refused
    assert (isinstance(mtu, SetMtu) and mtu.vfs) == vfs(1)
    assert said.startswith(f"pfs[0].mtu 9000: rail0 ({ADDRESS}): VFs in use stay as they are: ")
    assert said.endswith(", then run: systemctl reload hpn-node")
    assert (f"VF 1 (0000:3b:00.2) belongs to {POD}; delete that" if "user" in used else HOST) in said


def test_the_mtu_that_a_pods_vf_comes_home_with() -> None:
    assert differs(pf(mtu=9000, vfs=vfs(1, user=POD, mtu=9000)), rule(mtu=9000)) == Plan()
    # Its interface is in another namespace, where the host cannot read the MTU; or it has none.
    assert differs(pf(mtu=9000, vfs=vfs(1, user=POD, mtu=0)), rule(mtu=9000)) == Plan()


def test_vfs_keep_their_mtu_where_the_pf_does() -> None:
    used = (*vfs(2), *vfs(3, user=POD)[2:])
    assert "another MTU may interrupt its VFs" in refused(pf(vfs=used), rule(mtu=9000))
    assert "takes 9216 at most" in refused(pf(2), rule(mtu=9217))
    assert "has no interface on the host" in refused(pf(2, mtu=0), rule(mtu=9000))


@pytest.mark.parametrize("asked", [{"mtu": 9000}, {"num_vfs": 2}, {"trust": True}])
def test_what_the_host_needs_is_left_as_it_is(asked: dict[str, Any]) -> None:
    said = refused(pf(vfs=vfs(1, needed=HOST)), rule(**asked))
    assert f"the host needs VFs: {HOST}, then run: systemctl reload hpn-node" in said


def test_pods_and_the_host_have_vfs() -> None:
    used = (*vfs(1, user=POD), *vfs(2, needed=HOST)[1:])
    said = refused(pf(vfs=used), rule(num_vfs=0))
    assert said.endswith(
        f"VF 0 (0000:3b:00.1) belongs to {POD}; run: kubectl drain NODE --ignore-daemonsets --delete-emptydir-data; "
        f"the host needs VFs: {HOST}, then run: systemctl reload hpn-node (in a DaemonSet: delete its pod), then: "
        "kubectl uncordon NODE"
    )


def test_guids_that_are_there_stay() -> None:
    there = (*vfs(1, trust=None, has_guids=True), *vfs(2, trust=None, has_guids=False)[1:])
    (change,) = differs(replace(infiniband(), vfs=there), rule(guids=True)).changes
    assert (isinstance(change, SetGuids) and change.guids) == (guid(PF_GUID, 1),)


def test_a_pods_macvlan_over_the_pf_meanwhile() -> None:
    """Only a change of the PF's own MTU affects that interface."""
    over, found = "a macvlan in the namespace /run/netns/a", pf(2)
    of_the_pf = SetMtu(found, 1300)
    assert why_left(of_the_pf, over, found.vfs) == (
        f"is the master of {over}: a smaller MTU becomes that one's too, and any other may interrupt it; delete that, "
        "then run: systemctl reload hpn-node"
    )
    others = (SetMtu(found, 1300, found.vfs), SetTrust(found, True, found.vfs), SetVfs(found, 0))
    assert [why_left(one, over, found.vfs) for one in others] == ["", "", ""]
    assert why_left(of_the_pf, "", found.vfs) == ""
    for one in (of_the_pf, *others):
        remedy = "run: kubectl drain NODE" if isinstance(one, SetVfs) else "delete that"
        assert f"VF 0 (0000:3b:00.1) belongs to {POD}; {remedy}" in why_left(one, "", vfs(1, user=POD))


def test_a_rule_without_a_pf() -> None:
    assert plan([rule(num_vfs=4)], None, State()) == Plan(unused=("pfs[0]",))


def test_guids() -> None:
    left = differs(infiniband(), rule(guids=True))
    (change,) = left.changes
    assert isinstance(change, SetGuids)
    assert change.guids == (guid(PF_GUID, 0), guid(PF_GUID, 1))
    assert differs(infiniband(0), rule(num_vfs=2, guids=True)).changes[0] == SetVfs(infiniband(0), 2, "GUIDs")


def test_a_guid_is_its_own_and_the_same_each_time() -> None:
    made = [guid(f"00:11:22:33:44:55:66:{n:02x}", vf) for n in range(8) for vf in range(128)]
    assert len(set(made)) == len(made)
    assert {int(one[:2], 16) & 3 for one in made} == {2}
    assert guid(PF_GUID, 0) == "d6:14:6d:0e:b0:be:21:a1"


def test_rdma_namespaces() -> None:
    shared, exclusive = option(exclusive=False), option(exclusive=True)
    assert exclusive.splitlines()[-1] == "options ib_core netns_mode=N"
    assert plan((), None, State(exclusive=False)) == Plan()
    assert plan((), True, State((), True, exclusive)) == Plan()
    assert plan((), True, State((), False, exclusive)).changes == (SetMode(True),)
    assert plan((), True, State((), None, shared)).changes == (WriteOption(exclusive),)
    both = plan((), False, State((), True, "")).changes
    assert [f"{one}" for one in both] == [
        "/etc/modprobe.d/hpn-node.conf: options ib_core netns_mode=Y",
        "rdmaNamespaces exclusive -> shared",
    ]


def test_ranges() -> None:
    assert ranges([5, 0, 1, 2, 7, 8]) == "0-2, 5, 7-8"
