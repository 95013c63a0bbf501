"""Guards of what a CNI plugin owes its caller."""

from guarded.form import of

GUARDS = [
    *of(
        "cni/protocol/spec.py",
        "unit/test_spec.py",
        (
            "container-id",
            "if not _NAME.fullmatch(container_id) or len(container_id) > _ID_MAX:",
            "if not container_id:",
            "unit/test_environment.py",
        ),
        ("container-id-length", " or len(container_id) > _ID_MAX:", ":", "unit/test_environment.py"),
        ("network-name", "not isinstance(name, str) or not _NAME.fullmatch(name) or", "not isinstance(name, str) or"),
        (
            "ifname-characters",
            'if any(c in "/:%" or c.isspace() or not c.isprintable() for c in name):',
            "if False:",
            "unit/test_environment.py",
        ),
        ("ifname-dots", '    if name in (".", ".."):\n', "    if False:\n", "unit/test_environment.py"),
        ("gc-list", "    if None in members:", "    if False:"),
        ("abandoned", "        if self.abandoned():", "        if False:", "netns/test_abandoned.py"),
        ("result-not-remembered", " and b'\"prevResult\"' not in stdin", ""),
    ),
]
