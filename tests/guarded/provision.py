"""Guards of what makes a node ready: what somebody has stays, and what is right is not touched."""

from guarded.form import of

GUARDS = [
    *of(
        "node/provision/difference.py",
        "unit/test_node_provision.py",
        ("as-asked", "    if count is None or count == now:\n", "    if count is None:\n"),
        (
            "in-use",
            '    elif why := in_use(pf.vfs):\n        yield Refusal(f"{said} has {now}',
            '    elif why := "":\n        yield Refusal(f"{said} has {now}',
        ),
        (
            "mtu-in-use",
            '    elif why := in_use(pf.vfs):\n        yield Refusal(f"{said} has {pf.mtu}',
            '    elif why := "":\n        yield Refusal(f"{said} has {pf.mtu}',
        ),
        (
            "mtu-under-a-pods-meanwhile",
            "    if isinstance(change, SetMtu) and not change.vfs and over:\n",
            "    if False:\n",
        ),
        ("mtu-under-a-pods", "    elif pf.over:\n", "    elif False:\n", "netns/test_provision.py"),
        ("most-vfs", "    elif count > pf.total_vfs:", "    elif False:"),
        ("most-mtu", "    elif pf.most_mtu and rule.mtu > pf.most_mtu:", "    elif False:"),
        ("the-way-out", "    if pf.device.reserved:\n", "    if False:\n"),
        ("a-lag", "    if pf.lag:\n", "    if False:\n"),
        ("a-pods-pf", "    if pf.user:\n        return", "    if False:\n        return"),
        ("one-rule", "    if len(rules) > 1:\n", "    if False:\n"),
        ("a-pods-vf-is-told", "    if why := in_use(vfs):\n", '    if why := "":\n'),
        ("mtu-of-free-vfs", "_free(others):\n        yield SetMtu", "tuple(others):\n        yield SetMtu"),
        ("trust-of-free-vfs", "_free(others):\n        yield SetTrust", "tuple(others):\n        yield SetTrust"),
        ("guids-of-free-vfs", "_free(without)", "tuple(without)"),
        (
            "no-more-than-the-pfs-mtu",
            "        if not any(isinstance(one, Refusal) for one in of_pf):\n",
            "        if True:\n",
        ),
        ("guids-that-are-there", " if vf.has_guids is False]", "]"),
    ),
    *of(
        "node/provision/model.py",
        "unit/test_node_provision.py",
        ("a-pods-vf", "return not self.user and not self.needed", "return not self.needed"),
        ("the-hosts-vf", "return not self.user and not self.needed", "return not self.user"),
    ),
    *of(
        "node/provision/found.py",
        "netns/test_provision.py",
        ("what-the-host-needs", "tuple(with_users(one, attached, host, above()) for one in pf.vfs)", "pf.vfs"),
        ("its-own-members", " if one.driver == driver]", "]"),
        ("what-comes-home", "_mtu_at_home(attached.get(address))", "0"),
    ),
    *of(
        "node/provision/acting.py",
        "netns/test_provision.py",
        ("a-lock", "    with owned.lock(pf.device.id), rtnl", "    with rtnl"),
        ("other-vfs", "        if sysfs.vfs(pf.device.id) != ", "        if () and () != "),
        ("the-way-out-again", "        if why := found.why_reserved(pf.device.id):\n", '        if why := "":\n'),
        ("a-lag-again", "        if bond := found.lag(pf.device.id):\n", '        if bond := "":\n'),
        ("the-pf-again", "        if user := users.user(pf.device.id, attached):\n", '        if user := "":\n'),
        (
            "its-vfs-again",
            "        if why := why_left(change, found.whose_over(pf.device, host, above), now):\n",
            '        if why := "":\n',
        ),
    ),
    *of(
        "node/provision/held.py",
        "unit/test_node_provision_held.py",
        ("offered-before", " and vfs[d.id] not in self._offered}", "}"),
        ("of-that-pf", " and d.pf in busy and ", " and "),
    ),
    *of(
        "node/provision/provisioning.py",
        "netns/test_node_held.py",
        (
            "are-not-forgotten",
            "        if (done or self._held.some) and not is_awaited:",
            "        if done and not is_awaited:",
        ),
        ("those-that-are-there", "            self._held.pass_all()\n", "            pass\n"),
        ("while-it-works", "(self._turn.alone or all_of_them) if self._turn else ())", "())"),
    ),
    *of(
        "node/daemon.py",
        "netns/test_node_held.py",
        ("held", "        found = self._provisioning.look(found)\n", "        self._provisioning.look(found)\n"),
    ),
    *of(
        "node/provision/users.py",
        "unit/test_node_provision_users.py",
        ("elsewhere", "    for state_dir in (JOURNAL, *places.state_dirs()[1:]):", "    for state_dir in (JOURNAL,):"),
        ("its-interface", """    if os.path.isdir(f"{path}/net") and""", "    if False and"),
        ("its-rdma-device", "    if set(sysfs.rdma_names(address, root)) -", "    if set() -"),
    ),
    *of(
        "node/provision/over.py",
        "netns/test_node_over.py",
        ("of-the-hosts", "        if link.parent_nsid == number:\n", "        if True:\n"),
        ("by-number", "    for number in nsid.numbers(host) - numbers:", "    for number in set():"),
        ("by-path", "    for path in _paths(netns.inode(own)):", "    for path in ():"),
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
        ("ends-with-hpn-node", "        os.kill(self._pid, signal.SIGTERM)\n", "", "netns/test_node_held.py"),
        ("ends-by-sigterm", "            signal.signal(number, signal.SIG_DFL)\n", "            pass\n"),
    ),
    *of(
        "cni/kernel/pci.py",
        "unit/test_rebind.py",
        ("finishes-a-rebind", "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n", ""),
    ),
]
