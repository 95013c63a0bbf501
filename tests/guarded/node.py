"""Guards of the node's own program."""

from guarded.form import of

GUARDS = [
    *of(
        "cni/kernel/uevents.py",
        "netns/test_node_watch.py",
        (
            "a-port-of-its-own",
            "if port == 0 and senders == [0]",
            "if senders == [0]",
            "netns/test_node_watch.py",
            "only a sender in a PID namespace that is not seen from here has process 0",
        ),
        ("the-kernels-process", "if port == 0 and senders == [0]", "if port == 0"),
    ),
    *of(
        "node/watch.py",
        "netns/test_node_watch.py",
        ("from-the-kernel", "            if port == 0:\n", "            if True:\n"),
        ("what-was-lost", "                has_lost = True\n", ""),
    ),
    *of(
        "node/directory.py",
        "unit/test_node_directory.py",
        ("one-process", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH"),
        ("the-lock-that-is-there", " and _is_at(self._lock, self.path / _LOCK)", ""),
        ("not-the-end-of-a-watch", "not mask & inotify.IN_IGNORED and ", ""),
    ),
]
