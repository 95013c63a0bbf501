"""Guards of the numbers that names have on all nodes: what keeps two living pods from one of them."""

from guarded.form import of

GUARDS = [
    *of(
        "ipam/cluster/named.py",
        "unit/test_cluster_sticky.py",
        (
            "given-up",
            "(b.state, b.node) == (HELD, mine.node)",
            "b.node == mine.node",
            "unit/test_cluster_sticky_killed.py::test_an_answer_that_is_under_way",
        ),
        ("other-numbers", "self.network.refuse_another(network)", "pass"),
    ),
    *of(
        "ipam/cluster/claimed.py",
        "unit/test_cluster_sticky.py",
        ("anothers", "if self._is_ours(block) or not block.node:", "if True:"),
        ("kept", "if block.is_over(now):", "if not block.node:"),
        ("before", "before.refuse_uncovered(network.network, whole)", "pass"),
        (
            "forgotten",
            "taken=block.taken or forgotten",
            "taken=block.taken",
            "unit/test_cluster_sticky_nodes.py::test_answers_that_were_lost",
        ),
    ),
    *of(
        "ipam/cluster/handing.py",
        "unit/test_cluster_sticky.py",
        ("in-use", "            if _is_used(mine, block, book):\n                continue\n", ""),
        ("unproven", "taken=_is_doubtful(mine, block)", "taken=False", "unit/test_cluster_sticky_nodes.py"),
    ),
    *of(
        "ipam/cluster/before.py",
        "unit/test_cluster_sticky.py",
        ("set-aside", "    _refuse_set_aside(network, held)\n", ""),
    ),
    *of(
        "ipam/cluster/looking.py",
        "unit/test_cluster_sticky_nodes.py",
        ("answer-first", "if answer and not self", "if False and not self"),
        ("restored", "elif not known[1].node and held.whose == known[1].whose:", "elif False:"),
    ),
    *of("ipam/cluster/reclaiming.py", "unit/test_cluster_sticky.py", ("nobodys", "if not block.node or (", "if (")),
    *of(
        "ipam/cluster/reclaiming.py",
        "unit/test_cluster_sticky_nodes.py",
        ("a-names", 'if not document.body.get("whose"):', "if True:"),
        ("probed-for", "), taken=True)", "))"),
    ),
    *of(
        "ipam/main.py",
        "unit/test_cluster_sticky_nodes.py",
        ("tells", "    report.send_freed(lambda: _may_free", "    (lambda: _may_free"),
    ),
]
