"""Guards of what a person is told of attachments, and of what a person has mended."""

from guarded.form import of

GUARDS = [
    *of(
        "cni/standing.py",
        "unit/test_list.py",
        ("dead", "    if is_dead:", "    if False:"),
        ("half-undone", "if record.complete and not is_half_undone(state_dir, record):", "if record.complete:"),
        ("at-work", "    if holder := journal.at_work(state_dir, record.network, record.key):", "    if holder := '':"),
        ("looked-again", "    if now != record:\n        return of(state_dir, now, is_dead=undo.is_dead(now))\n", ""),
    ),
    *of(
        "cni/checking.py",
        "unit/test_hpn_check.py netns/test_operating.py",
        ("ipam", "                if ipam := location(now.config).ipam:", "                if ipam := '':"),
        ("cached", "    if cached is not None:\n        return cached\n", ""),
        ("compares", "                commands.compare(now, Result.from_json(promised), now.netns, pod, host)\n", ""),
    ),
    *of(
        "cni/repair.py",
        "unit/test_repair.py netns/test_repair.py",
        ("only-these", "        if word in _ACTIONS:", "        if True:"),
        ("as-it-was-seen", "if journal.peek(entry.state_dir, entry.network, entry.key) != seen or not", "if not"),
        (
            "attached-again",
            "    if entry.version() is not None:\n        raise TryAgain(",
            "    if False:\n        raise TryAgain(",
        ),
        (
            "running-add",
            "            if not journal.at_work(state_dir, entry.network, entry.key) and",
            "            if",
        ),
        ("lives-on", "if seen.of_this_boot and undo.is_dead(seen) else", "if False else", "netns/test_repair.py"),
        ("not-counted", "counts=not seen.given)", "counts=True)"),
    ),
    *of(
        "cni/kernel/held.py",
        "netns/test_repair.py",
        ("own-mounts", "            if mounts not in seen:", "            if False:"),
        (
            "no-device",
            '    return (found.st_dev, found.st_ino) == (os.stat("/proc/self/ns/net").st_dev, inode)',
            "    return found.st_ino == inode",
            "unit/test_held.py",
        ),
        (
            "nobody-waits",
            "not any(_is_within(point, one) for one in avoided)",
            "True",
            "unit/test_held.py",
        ),
        ("its-own-overlay", " or (kind in _STACKED and not ours)]", "]", "unit/test_held.py"),
        ("its-own-root", '        avoided.append("/")  #', "        pass  #", "unit/test_held.py"),
    ),
]
