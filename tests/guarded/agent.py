"""Guards of the agent."""

# ruff: noqa: E501  # a text is easier to compare with the code in one piece
from guarded.form import of

GUARDS = [
    *of(
        "agent/connection.py",
        "unit/test_agent.py::test_another_user_is_not_served",
        ("uid", "if uid not in (0, os.geteuid()):", "if False:"),
        (
            "descriptors-lost",
            "            if flags & socket.MSG_CTRUNC:",
            "            if False:",
            "unit/test_agent.py",
        ),
        (
            "descriptors-closed",
            "        for fd in self.passed:\n            os.close(fd)\n",
            "",
            "unit/test_agent.py::test_descriptors_come_along_and_are_closed",
        ),
        (
            "broke-off",
            '            if not data:\n                raise ValueError("it broke off")\n',
            "",
            "unit/test_agent.py::test_what_is_no_request_ends_the_connection",
        ),
    ),
    *of(
        "agent/server.py",
        "unit/test_agent.py::test_another_version_is_refused",
        (
            "version",
            "            if header.version != self._version:",
            "            if False:",
        ),
        (
            "taken-first",
            "            connection.sock.send(protocol.TAKEN)\n",
            "",
            "unit/test_agent.py::test_it_answers",
        ),
        (
            "silent-are-dropped",
            "                connection.sock.shutdown(socket.SHUT_RDWR)\n",
            "                pass\n",
            "unit/test_agent_threads.py::test_they_are_dropped_in_time",
        ),
        (
            "served-are-not",
            "[c for c in self._connections.values() if not c.whole]",
            "[*self._connections.values()]",
            "unit/test_agent_threads.py::test_one_that_is_served_is_not_dropped",
        ),
        (
            "threads-most",
            " and self._count < THREADS_MOST:",
            ":",
            "unit/test_agent_threads.py::test_threads_are_bounded",
        ),
        (
            "made-up-for",
            "and not self._idle and self._count < THREADS_MOST",
            "and False",
            "unit/test_agent_threads.py::test_more_at_once_than_threads",
        ),
        (
            "answers-the-queue",
            "        while waiting := Connection.accept(self._listener):\n            self._watch(waiting)\n",
            "",
            "unit/test_agent_threads.py::test_stopping_answers_also_what_nobody_had_accepted",
        ),
    ),
    *of(
        "agent/protocol.py",
        "unit/test_agent.py::test_what_is_no_request_ends_the_connection",
        ("magic", "magic != MAGIC or ", ""),
        ("flag", " or ipam > 1 or", " or"),
        (
            "environment",
            " or environment > ENVIRONMENT_MOST or",
            " or",
            "unit/test_agent.py::test_a_request_that_is_too_long",
        ),
        ("stdin", " or stdin > STDIN_MOST:", ":", "unit/test_agent.py::test_a_request_that_is_too_long"),
    ),
    *of(
        "agent/workers.py",
        "unit/test_workers.py::test_killed_it_leaves_none",
        ("die-with-the-keeper", "        _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))\n", ""),
        (
            "pause",
            "                self._due.append((since + PAUSE, place))",
            "                self._due.append((0.0, place))",
            "unit/test_workers.py::test_where_they_die_at_once_the_machine_is_not_kept_busy",
        ),
        (
            "replaced",
            "                self._due.append((since + PAUSE, place))\n",
            "",
            "unit/test_workers.py::test_one_that_is_killed_is_replaced",
        ),
        (
            "overdue",
            " and now - self._wanted < OVERDUE:",
            ":",
            "unit/test_workers_idle.py::test_requests_that_leave_no_idle_time unit/test_workers_idle.py::test_workers_that_are_idle_one_after_the_other",
        ),
        (
            "again",
            "time.monotonic() + AGAIN if how else _NEVER",
            "_NEVER",
            "unit/test_workers_idle.py::test_work_that_is_done_again_though_nobody_asks",
        ),
        (
            "idle-work-ends",
            "        signal.alarm(IDLE_MOST)\n",
            "",
            "unit/test_workers_idle.py::test_work_in_idle_time unit/test_workers_idle.py::test_work_in_idle_time_is_in_nobodys_way",
        ),
        (
            "idle-only",
            "if any(self._active[:]) and",
            "if False and",
            "unit/test_workers_idle.py::test_no_work_in_idle_time_while_a_request_is_served",
        ),
        ("no-second-parent", "        os._exit(status)", "        pass", "unit/test_workers.py::test_ending"),
    ),
    *of(
        "agent/listening.py",
        "unit/test_listening.py",
        ("passed-to-us", 'os.environ.get("LISTEN_PID") != str(os.getpid()) or', ""),
        ("weak-spot", "    if weak := trust.weak_spot(str(path.parent)):", "    if weak := None:"),
        ("a-socket", "    if not stat.S_ISSOCK(found.st_mode):", "    if False:"),
        ("an-agent-is-there", "        if refused == errno.ECONNREFUSED:", "        if True:"),
    ),
]
