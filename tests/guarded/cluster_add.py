"""Guards of ADD where the nodes of a cluster share the addresses: ipam/cluster, but for who runs rounds."""

from guarded.form import of

GUARDS = [
    *of(
        "ipam/cluster/giving.py",
        "unit/test_cluster_refused.py",
        ("another-network", "        if mine is None or mine.network != self.name:", "        if mine is None:"),
        ("another-store", "        if mine.store != self.cluster.store:", "        if False:"),
        ("another-size", "    if cluster.size != size:", "    if False:"),
        ("other-numbers", "    if cluster.sticky != sticky:", "    if False:", "unit/test_cluster_sticky.py"),
        (
            "off-for-long",
            "        if must_look(mine):",
            "        if False:",
            "unit/test_cluster_seen.py::test_off_for_long",
        ),
        (
            "look-first",
            "        if not self.has_looked and may_look(mine):",
            "        if False:",
            "unit/test_cluster_quiet.py",
        ),
        ("late", "SILENT if is_late(mine) else LOOK", "LOOK", "unit/test_cluster_quiet.py"),
        ("a-copy", "    return not mine.is_ours or (", "    return (", "unit/test_cluster_seen.py"),
        ("kept-right", "not clock.is_synchronized() or ", "", "unit/test_cluster_seen.py"),
        ("new-subnets", "        if new:\n            raise AskFirst", "        if False:\n            raise AskFirst"),
        (
            "requested-elsewhere",
            "            if index is not None and index not in blocks:",
            "            if False:",
            "unit/test_cluster_add.py::test_requested_address",
        ),
        (
            "unproven",
            "                if not probed and self.mine and",
            "                if False and self.mine and",
            "netns/test_cluster.py::test_another_pod_has_the_address_still",
        ),
        (
            "clock-set-back",
            "    return not 0 <= time.time() - when < seconds",
            "    return time.time() - when >= seconds",
            "unit/test_cluster_seen.py::test_a_clock_that_was_set_back",
        ),
    ),
    *of(
        "ipam/cluster/settling.py",
        "unit/test_cluster_quiet.py",
        ("refused-late", "        if late and not isinstance(e, Unreachable):\n            raise\n", ""),
        ("and-again", "        if is_late(mine) and not isinstance(e, Unreachable):", "        if False:"),
        ("waits-for-the-look", "    except TryAgain:\n        if late:", "    except TryAgain:\n        if False:"),
    ),
    *of(
        "ipam/cluster/claiming.py",
        "unit/test_cluster_killed.py",
        (
            "nonce-first",
            "        self._note(replace(self.mine, claim=claim))\n        block = Block(",
            "        block = Block(",
        ),
        (
            "its-own-nonce",
            "if not made or (block := Block.of(made)).claim != claim.nonce:",
            "if not made or not (block := Block.of(made)):",
            "unit/test_cluster_killed.py::test_another_takes_the_block_meanwhile",
        ),
        (
            "answer-first",
            "made, answer.as_json()) if answer else made",
            "made, made.body)",
            "unit/test_cluster_killed.py::test_others_took_the_node_for_dead_meanwhile",
        ),
        (
            "answer-where-it-is-held-again",
            ", machine=self.mine.machine, suspect=0).as_json()",
            ").as_json()",
            "unit/test_cluster_returning.py",
        ),
        ("the-answer-was-lost", "        if not (made or (made := self._found(claim))):", "        if not made:"),
        (
            "what-a-lost-answer-made",
            "                    if claiming.found_some:\n                        continue\n",
            "",
            "unit/test_cluster_add.py::test_a_lost_answer_is_found_again",
        ),
        (
            "alone",
            "    with held.lock(network.directory, LOCK_TIMEOUT):\n        claiming = None",
            "    if True:\n        claiming = None",
            "unit/test_cluster_add.py::test_two_without_room_make_one_claim",
        ),
        (
            "tried-before-a-list",
            "            if not self.mine.block(index) and self._ask_for(self._new(index)):",
            "            if False:",
            "unit/test_cluster_add.py::test_in_a_large_network_some_are_tried_before_all_are_listed",
        ),
        (
            "time-for-a-list",
            "        if budget.left() < budget.REQUEST / 2:\n            return\n",
            "",
            "unit/test_cluster_add.py::test_time_is_left_for_a_list",
        ),
        (
            "only-what-is-needed",
            "if limits.has(wanted, block.index) and self._take(document, block):",
            "if self._take(document, block):",
            "unit/test_cluster_dead.py::test_only_a_block_that_has_what_is_needed",
        ),
    ),
    *of(
        "ipam/cluster/settling.py",
        "unit/test_cluster_refused.py",
        ("another-cluster", "    elif mine.identity != identity:", "    elif False:"),
        (
            "before-the-next",
            '        held.write(network.directory, replace(mine, looked=0, boot=""))\n',
            "",
            "unit/test_cluster_refused.py::test_another_clusters_store",
        ),
        (
            "renamed",
            "    if mine is None or mine.node != shared.node or",
            "    if mine is None or",
            "unit/test_cluster_seen.py",
        ),
    ),
    *of(
        "ipam/cluster/grids.py",
        "unit/test_cluster_refused.py",
        (
            "another-size",
            "    refuse_another(grid.network, cluster, grid.size",
            "    (grid.network, cluster, grid.size",
        ),
        ("begins-elsewhere", "k.overlaps(subnet) and k.network", "False and k.network"),
        ("wider", "        elif subnet.prefixlen < same.prefixlen:", "        elif False:"),
    ),
    *of(
        "ipam/cluster/limits.py",
        "unit/test_cluster_limits.py",
        ("less-than-a-block", " and (has := count(s.spans)) < size:", " and (has := count(s.spans)) < 0:"),
        ("two-numbers", "        if low.subnet.overlaps(high.subnet) and", "        if False and"),
    ),
    *of(
        "ipam/cluster/held.py",
        "unit/test_cluster_held.py",
        ("states", '        if body["state"] not in _STATES:', "        if False:"),
        (
            "gives-what-it-holds",
            "        return tuple(b.index for b in self.blocks if b.state == HELD and b.node == self.node)",
            "        return tuple(b.index for b in self.blocks)",
        ),
    ),
]
