"""Guards of the launcher, in C."""

# ruff: noqa: E501  # a text is easier to compare with the code in one piece
from guarded.form import of

GUARDS = [
    *of(
        "packaging/launcher/carried.c",
        "system/test_launcher.py::test_a_damaged_file",
        ("whole", "    if ((uint64_t)st.st_size != carried.size)", "    if (0)"),
        ("sum", "    if (sum != carried.sum)", "    if (0)"),
        (
            "each-file",
            "    return is_noted && look(dir, &found) && found == noted;",
            "    return is_noted && look(dir, &found) + 1;",
            "system/test_launcher.py::test_what_is_not_as_it_was_unpacked_is_unpacked_again",
        ),
        (
            "as-unpacked",
            " && found == noted;",
            ";",
            "system/test_launcher.py::test_what_is_not_as_it_was_unpacked_is_unpacked_again",
        ),
        (
            "version-ours-alone",
            "    if (!fstat(dir, &st) && is_ours_alone(&st)) {",
            "    if (!fstat(dir, &st)) {",
            "attack/test_hostile_launcher.py::test_flock_of_a_version_that_was_open_to_all",
        ),
        (
            "version-in-use",
            "        lock(dir, LOCK_SH, place, carried.version);\n",
            "",
            "system/test_launcher.py::test_another_version_is_removed_unless_it_runs system/test_launcher.py",
        ),
        (
            "in-use-stays",
            " || flock(dir, LOCK_EX | LOCK_NB) ?",
            " ?",
            "system/test_launcher.py::test_another_version_is_removed_unless_it_runs",
        ),
        (
            "nothing-else-is-removed",
            "        if (is_version(e->d_name) && strcmp",
            "        if (*e->d_name != '.' && strcmp",
            "system/test_launcher.py::test_nothing_else_is_removed",
        ),
        (
            "directory-mode",
            '    int dir = mkdirat(base, "new", 0700) ? -1 : openat(base, "new", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);\n    if (dir < 0 || fchmod(dir, 0700))',
            '    int dir = mkdirat(base, "new", 0755) ? -1 : openat(base, "new", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);\n    if (dir < 0 || fchmod(dir, 0755))',
            "system/test_launcher.py::test_unpacked_once attack/test_hostile_launcher.py",
        ),
        (
            "lock-ours-alone",
            "    if (!S_ISREG(st.st_mode) || !is_ours_alone(&st))",
            "    if (0)",
            "attack/test_hostile_launcher.py",
        ),
        (
            "one-unpacks",
            "    lock(fd, LOCK_EX, place, LOCK);\n",
            "",
            "system/test_launcher.py::test_ten_at_once attack/test_hostile_launcher.py::test_no_wait_without_end",
        ),
        (
            "unpacked-meanwhile",
            "        if ((dir = open_version(base)) < 0) {",
            "        {",
            "system/test_launcher.py::test_ten_at_once",
        ),
        (
            "absolute",
            "    if (is_chosen && *chosen != '/')",
            "    if (0)",
            "system/test_launcher.py attack/test_hostile_launcher.py",
        ),
    ),
    *of(
        "packaging/launcher/place.c",
        "attack/test_hostile_launcher.py::test_a_parent_that_others_may_change",
        ("owner", "    if (st->st_uid && st->st_uid != me && st->st_uid != top)", "    if (0)"),
        ("others-write", "    if (!S_ISLNK(st->st_mode) && st->st_mode & 022 &&", "    if (0 &&"),
        ("sticky", " && !(st->st_mode & S_ISVTX) &&", " &&"),
        ("each-step", "        check(&st, path, seen);\n        if (size", "        if (size"),
        (
            "each-link",
            "            check(&st, path, seen);\n            below",
            "            below",
            "attack/test_hostile_launcher.py::test_a_link_on_the_way",
        ),
        (
            "links-end",
            "links++ < LINKS_MOST ?",
            "links++ < INT_MAX ?",
            "attack/test_hostile_launcher.py::test_a_link_to_itself",
        ),
        (
            "last-ours",
            "    if (st.st_uid != me)\n        refuse",
            "    if (0)\n        refuse",
            "system/test_launcher.py::test_a_directory_that_others_prepared",
        ),
        (
            "last-others-write",
            "    if (!is_ours(&st))\n        refuse",
            "    if (0)\n        refuse",
            "system/test_launcher.py::test_a_directory_that_others_prepared",
        ),
        (
            "wait-ends",
            "        if (now() > deadline) {",
            "        if (0) {",
            "attack/test_hostile_launcher.py::test_no_wait_without_end",
        ),
    ),
    *of(
        "packaging/launcher/launcher.c",
        "system/test_agent.py::test_all_commands",
        ("back-from-the-pod", "        if (setns(own, CLONE_NEWNET))\n", "        if (0)\n"),
        (
            "no-fifo",
            "O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1, own",
            "O_RDONLY | O_CLOEXEC) : -1, own",
            "attack/test_hostile_agent.py::test_a_fifo_for_a_namespace",
        ),
        (
            "agents-uid",
            " || (peer.uid && peer.uid != geteuid()) ||",
            " ||",
            "attack/test_hostile_agent.py::test_another_users_agent_is_not_asked",
        ),
        (
            "nudge",
            "    nudge(fd, &address);\n",
            "    (void)nudge;\n",
            "attack/test_hostile_agent.py::test_workers_that_are_stopped",
        ),
        (
            "given-up",
            "        shutdown(fd, SHUT_RDWR);\n        recv",
            "        recv",
            "system/test_agent_ends.py::test_one_that_hangs_is_passed_by system/test_agent.py",
        ),
        (
            "not-doubled",
            "    if (got < offsetof(struct reply, text) || got < offsetof(struct reply, text) + r.out + r.err)\n        FAIL",
            "    if (got < offsetof(struct reply, text) || got < offsetof(struct reply, text) + r.out + r.err)\n        return;\n    if (0)\n        FAIL",
            "system/test_agent_ends.py::test_one_that_hangs_at_work_is_not_doubled",
        ),
        (
            "stdin-most",
            "        if (text_size > variables + STDIN_MOST)",
            "        if (0)",
            "system/test_launcher.py::test_an_endless_stdin",
        ),
        (
            "another-version",
            "    memcpy(q.version, carried.version, sizeof q.version);\n",
            "    memset(q.version, 'f', sizeof q.version);\n",
            "system/test_agent.py::test_through_cnitool system/test_agent.py::test_all_commands",
        ),
    ),
]
