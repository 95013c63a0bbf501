"""Guards of the pool that a cluster's nodes share: what keeps two nodes from giving one address."""

# ruff: noqa: E501  # a text is easier to compare with the code in one piece
from guarded.form import of

GUARDS = [
    *of(
        "ipam/cluster/rules.py",
        "unit/test_cluster_rules.py",
        ("machine-gone", "return is_gone and (owner.heard", "return (owner.heard"),
        ("heard", "return is_gone and (owner.heard is None or now - owner.heard > GRACE)", "return is_gone"),
        ("said-first", "return replace(block, suspect=SAID)", "return replace(block, suspect=int(now) + 1)"),
        ("time-known", "return block.suspect > SAID and", "return block.suspect > 0 and"),
        ("grace", " and now - block.suspect > GRACE", ""),
        ("heard-since", " and (owner.heard is None or owner.heard < block.suspect)", ""),
        ("used", "    if used:\n        return replace(block, idle=0)\n", ""),
        ("last-stays", "if is_idle and rest and all(", "if is_idle and all("),
        ("what-is-served", "reversed(blocks if free else ())", "reversed(blocks)"),
    ),
    *of(
        "ipam/cluster/looking.py",
        "unit/test_cluster_looking.py",
        ("old-name", "mine.machine if held.node == mine.node else block.machine", "mine.machine"),
        ("old-names-document", "if held.node != mine.node or (is_same", "if (is_same"),
        ("taken-by-our-name", " or (block.taken and not held.taken)", ""),
        ("machine-of-our-name", "return block.machine in (was, mine.machine) and", "return"),
        ("directory-of-our-own", "mine.machine) and mine.is_of_this_place(block.claim)", "mine.machine)"),
        ("probe-what-was-forgotten", "mine.node, taken=True, whose", "mine.node, whose"),
        ("which-machine", "if self._machine.uid and not mine", "if not mine", "unit/test_cluster_rounds.py"),
        ("of-when-it-began", "looked=began,", "looked=int(time.time()),", "unit/test_cluster_quiet.py"),
        ("another-machine", "not (block.machine == self._machine.uid and ", "not ("),
        ("gone-with-a-restore", " if self._made_again else mine", " if False else mine", "unit/test_cluster_restored.py"),
        ("another-directory", " and mine.is_of_this_place(block.claim)):", "):"),
    ),
    *of(
        "ipam/cluster/reclaiming.py",
        "unit/test_cluster_search.py",
        ("few", "if len(nodes) > FEW:", "if False:"),
        ("together", "block.node not in suspected, ", ""),
        ("silent-first", ", block.node not in silent", ""),
        ("all-at-once", "{us.name, *documents.silent(owners)} if len(owners) > FEW else owners", "owners"),
        ("left-is-waited-for", "if not rules.may_take(block, rules.of_our_name(us), documents.now()):", "if False:", "unit/test_cluster_rounds.py"),
        ("our-name", "rules.of_our_name(owner) if node == us.name else owner", "owner"),
    ),
    *of(
        "ipam/cluster/keeping.py",
        "unit/test_cluster_keeping.py",
        (
            "given-up-twice",
            " and not is_anothers(block, known[1])",
            "",
            "unit/test_cluster_sticky_killed.py::test_it_is_given_up",
        ),
        ("another-cluster", "if mine.identity != identity:", "if False:"),
        ("in-use", "rules.seen_idle(block, have.used[block.index], now)", "rules.seen_idle(block, 0, now)"),
        ("lost-in-use", "block.state != RETURNING and not have.used[block.index]", "block.state != RETURNING"),
        ("anothers-document", "(document and known and document.uid == block.uid and not is_anothers(block, known[1]))", "document and known"),
        ("changed-document", "continue  # it has changed just now: the next round is soon enough", "pass"),
    ),
    *of(
        "ipam/cluster/rounds.py",
        "unit/test_cluster_rounds.py",
        ("due", "(due_only and not is_due(mine, store))", "False"),
        ("silent", "if kind not in silent:", "if True:"),
    ),
    *of(
        "node/blocks.py",
        "unit/test_node_boot.py",
        ("another-boot", "    if why := stored.of_another_boot(records):", '    if why := "":'),
    ),
    *of(
        "node/stored.py",
        "unit/test_node_boot.py",
        ("this-boot", "    if not known or any(record.of_this_boot for _, record in known):", "    if not known:"),
    ),
    *of(
        "node/blocks.py",
        "unit/test_node_blocks.py",
        ("ours-only", "trust.refuse_unless_ours(str(self._path.parent))", "pass"),
        ("no-network-no-alarm", "        if reports:\n            self._after", "        if True:\n            self._after"),
    ),
]  # fmt: skip
