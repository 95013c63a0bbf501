"""Guards of the kernel's interfaces."""

from guarded.form import of

GUARDS = [
    *of(
        "cni/kernel/netns.py",
        "netns/test_reclaim.py netns/test_gc.py netns/test_gc_views.py",
        (
            "a-namespace-of-network",
            "    if kind != CLONE_NEWNET:",
            "    if False:",
            "netns/test_bad_input.py::test_refused_without_a_trace[environment: namespace of another type]",
        ),
        (
            "seen-from-here",
            "    ours = {one for one in seen if (one.mounts, one.processes) == here}",
            "    ours = set(seen)",
        ),
        (
            "all-processes",
            '            if process != "1":  # init may be beyond us, and is in no pod\n                return None',
            "            continue",
        ),
        ("hidden-processes", '    if "1" not in processes:', "    if False:"),
        (
            "a-process-is-enough",
            "                found.setdefault(int(link[5:-1]), path)",
            "                pass",
        ),
        ("a-mount-is-enough", '        if root.startswith("net:["):', "        if False:"),
        (
            "cookie",
            "    return frozenset(absent | {one for one in ours if cookies.get(one.inode, one.cookie) != one.cookie})",
            "    return frozenset(absent)",
        ),
        ("view", " if (there.st_dev, there.st_ino) == (this.st_dev, this.st_ino) else (0, 0)", ""),
    ),
    *of(
        "cni/kernel/sysctl.py",
        "netns/test_hidden.py",
        ("hidden", "        if e.errno in _HIDDEN:", "        if False:"),
    ),
    *of(
        "cni/kernel/sysfs.py",
        "netns/test_pci.py::test_a_sys_that_is_hidden",
        ("hidden", '    if not os.path.exists(f"{root}/bus"):', "    if False:"),
        ("not-a-representor", "        elif not _REPRESENTOR.fullmatch(port):", "        else:", "unit/test_sysfs.py"),
    ),
    *of(
        "cni/kernel/files.py",
        "attack/test_hostile_configuration.py unit/test_log.py",
        ("no-link", "_HANDLE | (0 if at is None else os.O_NOFOLLOW)", "_HANDLE"),
        (
            "no-link-between",
            "    flags = _HANDLE | os.O_DIRECTORY | os.O_NOFOLLOW",
            "    flags = _HANDLE | os.O_DIRECTORY",
        ),
        (
            "regular",
            "        if not_regular := why_not_regular(os.fstat(handle).st_mode):",
            '        if not_regular := "":',
        ),
        ("limit", "        if len(data) > limit:", "        if False:"),
        (
            "new-temporary",
            "os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC",
            "os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC",
            "unit/test_device_info.py attack/test_hostile_configuration.py",
            "only of a link that somebody puts there within microseconds, in the place of one that was just removed",
        ),
    ),
    *of(
        "cni/kernel/unix_sockets.py",
        "unit/test_listening.py unit/test_metrics_commands.py",
        ("root-alone", "os.umask(_OTHERS)", "os.umask(0)"),
    ),
    *of(
        "cni/kernel/netlink.py",
        "netns/test_netlink.py::test_others_are_refused",
        ("kernel-alone", "        sock.connect((0, 0))\n", ""),
        (
            "sender",
            "            if not sender:\n                yield data",
            "            if True:\n                yield data",
            "netns/test_netlink.py::test_what_others_announce_is_not_believed",
        ),
        (
            "flood-ends",
            "            if _rest(began) <= 0:\n                raise _late()\n    finally",
            "            if False:\n                raise _late()\n    finally",
            "netns/test_netlink.py::test_a_flood_without_a_pause_ends",
        ),
        (
            "lost",
            '                raise AnswerLost(e.errno, f"{e.strerror}: the kernel\'s answer was lost") from e',
            "                continue",
            "netns/test_netlink.py::test_a_socket_that_overflowed_is_given_up",
        ),
        (
            "wait-ends",
            "    if rest <= 0 or not looking.poll(max(min(rest, own), 0) * 1000):",
            "    if not looking.poll():",
            "netns/test_netlink.py",
        ),
        (
            "spent",
            "        budget.spend(time.monotonic() - began)\n",
            "        pass\n",
            "netns/test_netlink.py::test_waits_for_the_kernel_come_out_of_one_budget",
        ),
    ),
    *of(
        "cni/kernel/detection.py",
        "netns/test_dad.py",
        (
            "shortened",
            '        exchanged = sysctl.exchange(ns_fd, {begin: "0", listening: str(milliseconds)})',
            "        exchanged = {}",
            "netns/test_dad.py::test_listens_for_the_time_that_is_asked_for",
        ),
        (
            "put-back",
            "        sysctl.put_back(ns_fd, exchanged)",
            "        pass",
            "netns/test_dad.py::test_as_before_afterwards",
        ),
        (
            "asked-when-lost",
            "                self.ask()\n",
            "",
            "netns/test_dad.py::test_announcements_that_do_not_fit",
        ),
        (
            "our-link",
            "if (family, index) == (socket.AF_UNSPEC, self._index):",
            "if family == socket.AF_UNSPEC:",
            "netns/test_dad.py::test_another_interface_is_not_taken_for_ours",
        ),
        (
            "our-addresses",
            "                if index == self._index and kind == RTM_NEWADDR:",
            "                if kind == RTM_NEWADDR:",
            "netns/test_dad.py::test_another_interface_is_not_taken_for_ours",
        ),
    ),
    *of(
        "cni/kernel/sysctl.py",
        "netns/test_dad.py::test_what_somebody_sets_meanwhile_stands",
        ("changed-meanwhile", "            if _read(key) == new:", "            if True:"),
    ),
    *of(
        "cni/kernel/budget.py",
        "netns/test_netlink.py::test_all_waits_of_a_request_are_one",
        ("spent", "    _budget.left = max(_budget.left - seconds, 0.0)", "    pass"),
        (
            "attempts-spend",
            "        spend(pause)\n",
            "",
            "netns/test_netlink.py::test_attempts_come_out_of_one_budget",
        ),
        (
            "undoing",
            "    _budget.left = max(_budget.left, UNDOING)",
            "    pass",
            "netns/test_netlink.py attack/test_hostile_pod.py",
        ),
    ),
    *of(
        "cni/kernel/rtnl.py",
        "netns/test_netlink.py",
        (
            "renewed",
            "        except netlink.AnswerLost:\n            self.reopen()\n            if",
            "        except netlink.AnswerLost:\n            if",
            "netns/test_netlink.py::test_a_socket_that_overflowed_is_given_up netns/test_netlink.py",
        ),
        ("changes-once", "            if flags & NLM_F_ACK:\n                raise\n", ""),
        (
            "sequence",
            "            if sequence != self.sequence:\n                continue  # what",
            "            if False:\n                continue  # what",
            "netns/test_unlink.py netns/test_netlink.py",
        ),
        (
            "dump-changed",
            "            if (yield from self._dump_once(self.pack(kind, NLM_F_DUMP, body))):",
            "            if (yield from self._dump_once(self.pack(kind, NLM_F_DUMP, body))) or True:",
            "netns/test_netlink.py::test_a_dump_is_repeated_where_links_changed_and_no_more_than_twice",
        ),
        (
            "dumps-most",
            "        for _ in range(_DUMPS):",
            "        while True:",
            "netns/test_netlink.py::test_a_dump_is_repeated_where_links_changed_and_no_more_than_twice",
        ),
    ),
    *of(
        "cni/kernel/unlink.py",
        "netns/test_unlink.py",
        (
            "looked-for",
            "        _look_until_gone(inside, index)\n",
            "        pass\n",
            "netns/test_netlink.py::test_a_link_that_stays_is_not_called_gone",
        ),
        ("answer", "                raise_error(body, flags)\n", "", "netns/test_unlink.py netns/test_delete.py"),
        (
            "of-this-link",
            "LINK.unpack_from(body)[::2][:2] == (socket.AF_UNSPEC, index)",
            "LINK.unpack_from(body)[0] == socket.AF_UNSPEC",
            "netns/test_netlink.py::test_another_end_is_not_taken_for_the_links",
        ),
        (
            "not-a-bridges",
            "LINK.unpack_from(body)[::2][:2] == (socket.AF_UNSPEC, index)",
            "LINK.unpack_from(body)[2] == index",
            "netns/test_netlink.py::test_another_end_is_not_taken_for_the_links",
        ),
        (
            "not-moved",
            "                and IFLA_NEW_NETNSID not in attributes(body[LINK.size :])\n",
            "",
            "netns/test_unlink.py attack/escaped/test_exhaustion.py::test_moved_to_and_fro_meanwhile",
        ),
    ),
]
