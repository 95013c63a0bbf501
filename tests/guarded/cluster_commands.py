"""Guards of what gives back other nodes' blocks, and of what brings a node's own pool into that of a cluster."""

from guarded.form import of

GUARDS = [
    *of(
        "ctl/cluster/release.py",
        "unit/test_ipam_cluster_command.py",
        ("it-lives", "if not block.node or not rules.is_dead(block, owner, now):", "if not block.node:"),
        ("not-yet", "if rules.may_take(block, owner, now):", "if True:"),
        (
            "only-say",
            "return done if dry_run or reclaiming",
            "return done if reclaiming",
        ),
        ("present-machine", 'not in ("", present.uid)', '!= ""'),
        ("which-machine", '("", present.uid)', "(present.uid,)"),
        ("only-say-suspect", "        if dry_run:\n            return SUSPECT\n", ""),
        ("heard-of", "if machine.heard is None or now - machine.heard > rules.GRACE:", "if True:"),
    ),
    *of(
        "ipam/cluster/moving.py",
        "unit/test_cluster_moving.py",
        ("anothers", "        if wrong or dry_run:\n", "        if dry_run:\n"),
        ("half-way", "            _give_back(network, claiming, before)\n", ""),
        ("of-two-nodes", "        if index in blocks:\n", "        if False:\n"),
        ("no-subnet", "if not any(address in subnet for subnet in subnets):", "if False:"),
    ),
    *of(
        "ctl/cluster/moving.py",
        "unit/test_cluster_moving.py",
        (
            "leases-back",
            "    except BaseException:\n        _release(store, leases, before)\n",
            "    except BaseException:\n",
        ),
    ),
    *of(
        "ipam/cluster/claiming.py",
        "unit/test_cluster_moving.py",
        ("given-before", "if is_first:\n                    before", "if False:\n                    before"),
        (
            "not-while-it-is-removed",
            "                if made := self.shared.documents.replace(document, body):\n",
            "                if made := document:\n",
            "unit/test_cluster_returning.py",
        ),
        (
            "still-ours",
            "document.uid == block.uid and not is_anothers(block, known[1]):\n                # Changed",
            "True:\n                # Changed",
            "unit/test_cluster_returning.py",
        ),
    ),
    *of(
        "ctl/installation/install.py",
        "unit/test_install_shared.py",
        ("another-nodes-files", "    if not is_this_node:\n", "    if False:\n"),
    ),
    *of(
        "ipam/cluster/lists.py",
        "unit/test_ipam_migration_live.py",
        ("without-end", "        if follow == before:", "        if False:"),
        ("no-list", "if not isinstance(items, list | None) or", "if"),
    ),
]
