"""Guards of what makes a node ready: what somebody has stays, and what is right is not touched."""

from guarded.form import of

GUARDS = [
    *of(
        "node/provision/difference.py",
        "unit/test_node_provision.py",
        ("as-asked", "    if count is None or count == now:\n", "    if count is None:\n"),
        ("in-use", "    elif why := _in_use(pf.vfs):\n", '    elif why := "":\n'),
        ("mtu-in-use", "    elif why := _in_use([vf for vf in pf.vfs if vf.user]):\n", '    elif why := "":\n'),
        ("most-vfs", "    elif count > pf.total_vfs:", "    elif False:"),
        ("most-mtu", "    elif pf.most_mtu and rule.mtu > pf.most_mtu:", "    elif False:"),
        ("the-way-out", "    if pf.device.reserved:\n", "    if False:\n"),
        ("a-pods-pf", "    if pf.user:\n        return", "    if False:\n        return"),
        ("one-rule", "    if len(rules) > 1:\n", "    if False:\n"),
        ("mtu-of-free-vfs", " not in (0, rule.mtu) and not vf.user)", " not in (0, rule.mtu))"),
        ("trust-of-free-vfs", "tuple(vf for vf in others if not vf.user)", "tuple(others)"),
        (
            "guids-of-free-vfs",
            "tuple(vf for vf in without if not vf.user and not vf.needed)",
            "tuple(without)",
        ),
        ("guids-that-are-there", " if vf.has_guids is False]", "]"),
    ),
    *of(
        "node/provision/users.py",
        "unit/test_node_provision_users.py",
        ("its-interface", """    if os.path.isdir(f"{path}/net") and""", "    if False and"),
        ("its-rdma-device", "    if set(sysfs.rdma_names(address, root)) -", "    if set() -"),
    ),
    *of(
        "node/provision/matching.py",
        "unit/test_node_provision_matching.py",
        (
            "that-pf-alone",
            "        if (left := frozenset(selected) & frozenset(addresses))",
            "        if (left := frozenset(selected))",
        ),
        ("home-from-a-pod", "            bool(pf.names),", "            bool(pf.netdevs),"),
        ("another-driver", " if drivers.get(one.address) == one.driver)", ")"),
    ),
    *of(
        "node/apart.py",
        "unit/test_node_apart.py",
        ("sockets-of-the-parent", "        _close_sockets()\n", ""),
        ("ends-by-sigterm", "            signal.signal(number, signal.SIG_DFL)\n", "            pass\n"),
    ),
    *of(
        "cni/kernel/pci.py",
        "unit/test_rebind.py",
        ("finishes-a-rebind", "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n", ""),
    ),
]
