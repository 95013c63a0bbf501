"""Guards of who gets which address."""

# ruff: noqa: E501  # a text is easier to compare with the code in one piece
from guarded.form import of

GUARDS = [
    *of(
        "ipam/main.py",
        "unit/test_ipam_store.py unit/test_ipam_policy.py unit/test_ipam_sticky.py",
        ("budget", "    budget.begin()\n", "", "netns/test_netlink.py::test_each_request_has_its_own_budget"),
        ("abandoned", "            request.refuse_if_abandoned()\n", "", "netns/test_abandoned.py"),
        (
            "in-use-is-kept-back",
            ", in_use=request.in_use)",
            ")",
            "netns/test_refusals.py netns/test_delete.py unit/test_ipam_policy.py unit/test_ipam_sticky.py",
        ),
        (
            "attached-is-spared",
            "        return request.attached()\n",
            "        return ()\n",
            "netns/test_gc_beside_add.py",
        ),
        (
            "the-deads",
            "        if not freed:\n            raise\n",
            "        if True:\n            raise\n",
            "netns/test_reclaim.py",
        ),
        (
            "sticky-needs-a-name",
            "    if not name:\n        raise BadEnvironment(\n",
            "    if False:\n        raise BadEnvironment(\n",
        ),
        ("sticky-fits-a-line", "    if len(json.dumps(name)) > STICKY_MAX:", "    if False:"),
        (
            "check-the-result",
            "    if missing := set(held) - {ip.address.ip for ip in previous.ips}:",
            "    if missing := set():",
        ),
        (
            "release_conflicts",
            "    store.release_conflicts()\n",
            "",
            "attack/test_probe_exhaustion.py::test_gc_frees_them",
        ),
    ),
    *of(
        "ipam/leases.py",
        "unit/test_ipam_leases.py unit/test_ipam_store.py",
        (
            "held",
            "        if address not in book.mine and (owner := book.holder(address)):",
            "        if owner := None:",
        ),
        ("own-may-be-asked-for", "        if address not in book.mine and (owner", "        if (owner"),
        ("one-of-a-set", "        if range_set.key in asked:", "        if False:"),
        ("of-a-set", "        if range_set is None:", "        if range_set is None and not (range_set := sets[0]):"),
        ("the-same-again", "or kept(s, book) or", "or"),
        ("exhausted", "    if address is None:\n        subnets", "    if False:\n        subnets"),
    ),
    *of(
        "ipam/pool.py",
        "unit/test_ipam_config.py unit/test_ipam_ranges.py",
        (
            "gateways",
            "[*gateways, *r.exclude]",
            "[*r.exclude]",
            "unit/test_ipam_config.py unit/test_ipam_leases.py unit/test_ipam_store.py",
        ),
        (
            "excluded",
            "[*gateways, *r.exclude]",
            "[*gateways]",
            "unit/test_ipam_config.py unit/test_ipam_leases.py unit/test_ipam_store.py",
        ),
        (
            "reserved",
            "for part in subtract(span, r.reserved))",
            "for part in [span])",
            "unit/test_ipam_config.py unit/test_ipam_leases.py unit/test_ipam_policy.py unit/test_ipam_sticky.py",
        ),
        ("overlap", "        if low.span.overlaps(high.span):", "        if False:"),
        ("inside", " if not whole(r.subnet).covers(span)}", " if False}"),
        ("one-family", "        if len({r.subnet.version for r in members}) > 1:", "        if False:"),
        ("nothing-left", "        if not usable\n", "        if False\n"),
        (
            "rails-once",
            "        if other := rails.get((by, value)):",
            "        if other := None:",
            "unit/test_ipam_rails.py unit/test_ipam_align.py",
        ),
    ),
    *of(
        "ipam/rails.py",
        "unit/test_ipam_rails.py unit/test_ipam_align.py",
        ("one-rail", "    if len(found) == 1:", "    if found:"),
        ("same-number", "    if asked not in (None, address):", "    if False:"),
        ("in-range", "    if address not in own:", "    if False:"),
        ("held", "    if address not in book.mine and (owner", "    if False and (owner"),
        ("anothers-number", "            _refuse_anothers(own, column, asked, book)\n", "            pass\n"),
        (
            "free-on-all",
            "        if first == min(numbers):",
            "        if True:",
            "unit/test_ipam_align.py::test_a_number_that_is_free_on_all_rails",
        ),
    ),
    *of(
        "ipam/conflicts.py",
        "unit/test_ipam_link.py",
        (
            "not-before-it-is-asked",
            "            if not taken:\n                return ips",
            "            if True:\n                return ips",
        ),
        ("conceded", "                kept |= store.decline(key, others, APART, link.to_keep_back)\n", ""),
        (
            "requested",
            "    if wrong := {address: mac for address, mac in taken.items() if address in requested}:",
            "    if wrong := {}:",
            "unit/test_ipam_link.py netns/test_probe.py::test_a_requested_address_that_another_has",
        ),
        (
            "not-for-ever",
            "            if again or len(found) >= MOST or monotonic() - began > LONGEST:",
            "            if again:",
            "unit/test_ipam_link.py::test_many_that_have_one_each unit/test_ipam_link.py netns/test_probe.py::test_everything_is_taken",
        ),
        (
            "holds-nothing-then",
            "        if ips and not had:",
            "        if False:",
            "unit/test_ipam_link.py netns/test_probe.py::test_a_requested_address_that_another_has",
        ),
        (
            "keeps-what-it-had",
            "        if ips and not had:",
            "        if ips:",
            "unit/test_ipam_link.py netns/test_probe.py",
        ),
        (
            "part",
            "            if inside < count(spans) // PART and Counter",
            "            if Counter",
            "unit/test_ipam_link.py::test_many_that_have_one_each unit/test_ipam_link.py attack/test_probe_exhaustion.py",
        ),
        (
            "few",
            " and Counter(now.values())[mac] < FEW:",
            ":",
            "unit/test_ipam_link.py::test_one_that_answers_for_everything unit/test_ipam_link.py attack/test_probe_exhaustion.py",
        ),
        (
            "slow",
            " or monotonic() - began > LONGEST:",
            ":",
            "unit/test_ipam_link.py::test_a_slow_one_is_not_waited_for_again_and_again",
        ),
    ),
    *of(
        "ipam/link.py",
        "netns/test_probe.py::test_without_an_interface",
        (
            "the-link-is-there",
            "        if link is None:\n            if proving",
            "        if False:\n            if proving",
        ),
        (
            "somebody-answers",
            "    if why := _not_probeable(link):\n        raise",
            '    if why := "":\n        raise',
            "unit/test_ipam_link.py netns/test_probe.py::test_ipvlan_is_refused",
        ),
        (
            "carrier",
            "        if not wait_for_carrier(pod.rtnl, link.index, CARRIER_TIMEOUT):",
            "        if False:",
            "netns/test_probe.py::test_without_carrier_nobody_can_be_asked",
        ),
        (
            "down-again",
            "        if not link.up:\n            pod.rtnl.set_link",
            "        if False:\n            pod.rtnl.set_link",
            "netns/test_probe.py::test_the_interface_is_left_as_it_was",
        ),
    ),
    *of(
        "ipam/sandboxes.py",
        "netns/test_reclaim.py::test_a_kernel_without_cookies",
        ("cookie", " if cookie and mounts else None", " if mounts else None"),
        ("seen-from-here", " if cookie and mounts else None", " if cookie else None", "netns/test_reclaim.py"),
    ),
]
