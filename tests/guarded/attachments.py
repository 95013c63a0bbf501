"""Guards of what a person is told of attachments, and of what a person has mended."""

from guarded.form import of

GUARDS = [
    *of(
        "cni/standing.py",
        "unit/test_list.py",
        ("dead", "    if undo.is_dead(record):", "    if False:"),
        ("half-undone", "if record.complete and not is_half_undone(state_dir, record):", "if record.complete:"),
        ("at-work", "    if holder := journal.at_work(state_dir, record.network, record.key):", "    if holder := '':"),
        ("looked-again", "    if now != record:\n        return of(state_dir, now)\n", ""),
    ),
]
