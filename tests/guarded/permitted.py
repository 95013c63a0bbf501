"""Guards of what the node's file says: which paths and names a configuration may have, and what a pod may choose."""

from guarded.form import of

GUARDS = [
    *of(
        "cni/state/node.py",
        "attack/test_hostile_configuration.py unit/test_log.py",
        ("up", '    if ".." in names:\n        raise', "    if False:\n        raise"),
        ("below", "        if names[: len(above)] == above:", "        if True:"),
        ("one-name", "    if found.st_nlink > 1:", "    if False:", "unit/test_log.py"),
        ("owner", "    if not trust.is_trusted(found.st_uid):", "    if False:", "attack/test_hostile_log.py"),
        (
            "new",
            "os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600",
            "os.O_CREAT | os.O_CLOEXEC, 0o600",
            "attack/test_hostile_configuration.py unit/test_log.py",
            "only of a link that somebody puts there within microseconds",
        ),
        ("new-mode", "os.O_CLOEXEC, 0o600, dir_fd", "os.O_CLOEXEC, 0o666, dir_fd"),
        (
            "known-keys",
            "    if unknown := sorted(found.keys() - {_PATHS, NAMES, CHOICES, _STORES}):",
            "    if unknown := []:",
        ),
        ("known-paths", "    if unknown := sorted(listed.keys() - {*DEFAULTS, *UNBOUNDED}):", "    if unknown := []:"),
        ("absolute-paths", " or not all(map(_is_path, entries)):", ":"),
    ),
    *of(
        "cni/state/permitted.py",
        "attack/test_hostile_author.py",
        ("a-choice", "    if key in listed:\n        return\n", "    return\n"),
        ("own-namespace", ' or value.partition("/")[0] == namespace:', " or value:"),
        ("by-ib-kubernetes", " if conf.get(_IB_KUBERNETES) is True else ()", ""),
        ("a-name", "    if not any(fnmatchcase(", "    if not all(fnmatchcase(", "attack/test_locked_node.py"),
        ("places", "            if key in self.places:", "            if False:", "attack/test_locked_node.py"),
        ("another-purpose", "    if place:\n", "    if False:\n", "attack/test_locked_node.py"),
        ("beside-leases", " or above != leases)", ")", "attack/test_locked_node.py"),
    ),
]
