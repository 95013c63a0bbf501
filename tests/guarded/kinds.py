"""Guards of the kinds of interfaces."""

# ruff: noqa: E501  # a text is easier to compare with the code in one piece
from guarded.form import of

GUARDS = [
    *of(
        "cni/kinds/child.py",
        "netns/test_check.py::test_fails",
        (
            "is_ours",
            "        if link.kind != self.kind:\n            return False\n",
            "        return True\n",
            "netns/test_delete.py::test_a_stranger_under_our_name netns/test_macvlan.py",
        ),
        (
            "is_ours-kind",
            "        if link.kind != self.kind:\n            return False\n",
            "",
            "netns/test_delete.py::test_a_stranger_under_our_name",
        ),
        (
            "is_ours-mac",
            "else not self.mac or link.mac == self.mac",
            "else True",
            "netns/test_macvlan.py::test_a_macvlan_that_took_the_name_meanwhile",
        ),
        (
            "gone-already",
            "            if e.errno != errno.ENODEV:\n                raise",
            "            raise",
            "netns/test_delete.py",
        ),
        (
            "name-on-the-host",
            "            make(_other_name(wanted))\n",
            "            raise\n",
            "netns/test_macvlan.py::test_the_host_has_an_interface_of_that_name",
        ),
        (
            "found-by-the-other-name",
            "    for name in (ifname, _other_name(wanted)):",
            "    for name in (ifname,):",
            "netns/test_macvlan.py",
        ),
        (
            "check-ours",
            "    if link is None or link.name != ifname:\n        raise CheckFailed(",
            "    if link is None:\n        raise CheckFailed(",
        ),
        ("check-master", "    if over is None or over.name != wanted.master:", "    if over is None:"),
        ("check-master-up", "    if not over.up:", "    if False:", "netns/test_check_link.py::test_master_down"),
        ("check-mode", "    if asked.items() - attributes(link.data).items():", "    if False:"),
        (
            "check-arp",
            "    if link.up and link.arp != has_arp(wanted.kind, asked):",
            "    if False:",
            "netns/test_check_link.py",
        ),
    ),
    *of(
        "cni/kinds/macvlan.py",
        "netns/test_older_kernel.py",
        (
            "queue-length",
            "    if asked and asked != attributes(link.data).get(IFLA_MACVLAN_BC_QUEUE_LEN):",
            "    if False:",
        ),
    ),
    *of(
        "cni/kinds/master.py",
        "netns/test_status.py",
        (
            "up",
            "    if not link.up:\n        raise LinkUnavailable",
            "    if False:\n        raise LinkUnavailable",
            "netns/test_status.py::test_master_down",
        ),
        ("mtu", "    if attach.mtu > link.mtu:", "    if False:", "netns/test_status.py::test_not_ready"),
    ),
    *of(
        "cni/kinds/lost.py",
        "attack/test_damaged_records.py::test_a_stranger_under_the_name_stays "
        "attack/test_damaged_records.py::test_an_altname_is_a_strangers "
        "attack/test_damaged_records.py::test_the_hosts_own_namespace_is_no_pods",
        ("own-namespace", "not netns.is_own(pod.fd) and _remove_from", "_remove_from"),
        ("altname", "    if link is None or link.name != ifname:", "    if link is None:"),
        (
            "the-hosts",
            '        if record.link.get("is_the_hosts") and link.kind:',
            "        if False:",
            "netns/test_host_device_attacked.py::test_its_record_is_damaged",
        ),
        ("could-be-ours", "        elif link.kind in kinds.KINDS and link.parent:", "        elif True:"),
    ),
    *of(
        "cni/kinds/ipoib.py",
        "unit/test_ipoib.py::test_a_master_that_has_no_children",
        ("bond", "    if link.kind != _KIND:", "    if False:"),
        ("grandchild", "    if link.parent:", "    if False:"),
    ),
    *of(
        "cni/models/ipoib.py",
        "unit/test_ipoib.py::test_refused",
        ("no-partition", "    if value in (0, _FULL_MEMBER):", "    if False:"),
        ("too-large", " or not 0 <= value <= 0xFFFF:", ":"),
        ("connected", '    if value == "connected":', "    if False:"),
        ("no-master", "        if not self.master:", "        if False:"),
        ("rxe", "        if self.soft_roce:", "        if False:"),
    ),
    *of(
        "cni/kinds/escaped.py",
        "attack/escaped/test_hidden.py::test_stacked_on_it",
        (
            "found-only-if-removed",
            "                self.found = nsid.remove_links(inside, its) or self.found",
            "                self.found = bool(its) or self.found\n                nsid.remove_links(inside, its)",
            "attack/escaped/test_exhaustion.py::test_never_where_it_is_looked_for",
        ),
        (
            "suspected-over",
            "    return any(link.index not in search.others for link in links if search.is_of_kinds(link))",
            "    return False",
        ),
        (
            "same-host",
            "        return link.parent_nsid == host_number and self",
            "        return self",
            "attack/escaped/test_others_stay.py::test_a_link_over_another_master_stays attack/escaped/test_hidden.py attack/escaped/test_exhaustion.py attack/escaped/test_others_stay.py",
        ),
        (
            "strangers",
            " or Identity(inode, netns.cookie(inside.sock)) in self.strangers",
            "",
            "attack/escaped/test_others_stay.py::test_another_pod_that_is_reached_from_this_one_stays",
        ),
        (
            "mates",
            "        return theirs or link.index",
            "        return link.index",
            "attack/escaped/test_others_stay.py::test_another_attachment_over_the_same_master_stays",
        ),
        (
            "others",
            "        return theirs or link.index in self.search.others",
            "        return theirs",
            "attack/escaped/test_others_stay.py::test_anothers_macvlan_that_was_there_before_stays",
        ),
        (
            "ends",
            " or self.visited >= _NAMESPACES:",
            ":",
            "attack/escaped/test_exhaustion.py::test_more_namespaces_than_there_is_time_for",
        ),
        (
            "not-found",
            "        if not self.found:\n            return f",
            "        if False:\n            return f",
            "attack/escaped/test_hidden.py::test_hidden_behind_a_namespace_that_is_gone",
        ),
        (
            "again",
            "            while looks < (1 if self.found else _LOOKS):",
            "            while looks < 1:",
            "attack/escaped/test_exhaustion.py::test_moved_to_and_fro_meanwhile",
        ),
        (
            "of-the-dead",
            "        if pod is None:\n            return _remove_of_dead(search, host)\n",
            '        if pod is None:\n            return ""\n',
            "attack/escaped/test_hidden.py::test_the_pod_is_gone_and_its_child_is_not",
        ),
    ),
]
