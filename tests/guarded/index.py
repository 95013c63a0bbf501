"""Guards of the commit, the index of the leases, and how it is rebuilt."""

# ruff: noqa: E501  # a text is easier to compare with the code in one piece
from guarded.form import of

GUARDS = [
    *of(
        "ipam/stores/files/table.py",
        "unit/test_ipam_damage.py attack/test_damaged_leases.py",
        ("the-keys-own", "        if held.checksum != self.index.checksum(line):", "        if False:"),
        (
            "of-this-lease",
            "            if body is None or at in lines or body.get",
            "            if body is None or False and body.get",
            "unit/test_ipam_times.py::test_continuations_in_a_circle",
        ),
        (
            "drop-marks-dirty",
            "        self.index.mark_dirty()\n        for held in leases:",
            "        for held in leases:",
            "unit/test_ipam_crash.py",
        ),
        (
            "drop-long-at-once",
            "        if late and not any(held.lines[1:] for held in leases):",
            "        if late:",
            "unit/test_ipam_sync.py",
        ),
        (
            "write-marks-dirty",
            "        self.index.mark_dirty()\n        try:\n            if fresh",
            "        try:\n            if fresh",
            "unit/test_ipam_crash.py::test_add_killed_within_one_tick_of_the_files_clock",
        ),
        (
            "continuations-first",
            "                self.lines.sync()\n                parts[0]",
            "                parts[0]",
            "unit/test_ipam_sync.py::test_continuations_are_on_disk_before_the_line_that_names_them",
        ),
        (
            "write-sync",
            "                self._late.append((lines[0], data))\n            else:\n                self.lines.sync()\n",
            "                self._late.append((lines[0], data))\n",
            "unit/test_ipam_sync.py::test_a_lease_changes_alone",
        ),
        (
            "write-failed",
            "                self.lines.write(lines[0], old)\n                self.lines.sync()\n            raise",
            "                pass\n            raise",
            "unit/test_ipam_sync.py::test_the_disk_fails_when_a_lease_changes",
        ),
        (
            "taken-back-is-ours",
            "            if self.lines.read(line) == data:\n                self.lines.write(line, BLANK)",
            "            self.lines.write(line, BLANK)",
            "unit/test_ipam_sync.py::test_the_disk_fails_and_its_line_is_anothers",
        ),
        (
            "lines-given-back",
            "            for line in reversed(taken):\n                self.index.push(line)\n            self.mark_clean()\n            raise",
            "            raise",
            "netns/test_full_disk.py unit/test_ipam_files.py",
            "what was taken is noted in memory only; with it the index need not be rebuilt",
        ),
        (
            "moved-addresses-are-freed",
            "            for version, number in set(before) - set(after):\n                self.index.pages.free(version, number)\n",
            "",
            "unit/test_ipam_store.py::test_add_again_with_another_request_moves unit/test_ipam_store.py",
        ),
        (
            "free-is-free",
            '                if self.lines.read(taken[-1]).strip(b"\\0 \\n"):',
            "                if False:",
        ),
        ("head-in-range", "        return head if 0 < head < self.index.lines and", "        return head if"),
    ),
    *of(
        "ipam/stores/files/repair.py",
        "unit/test_ipam_damage.py unit/test_ipam_crash.py unit/test_ipam_sync.py",
        (
            "sync-first",
            "    table.lines.sync()\n    known",
            "    known",
            "unit/test_ipam_sync.py::test_what_a_killed_one_wrote_is_synced unit/test_ipam_sync.py",
            "the same file is synced once more when all is decided, and before anybody is told",
        ),
        (
            "known",
            "    known = _known(table.index) if table.index.of_this_boot else {}",
            "    known = {}",
            "unit/test_ipam_damage.py",
        ),
        ("foreign", "    if why:\n        _start_again", "    if False:\n        _start_again"),
        (
            "cut-off",
            "                if line in known:\n                    found.damaged.add(line)\n",
            "                pass\n",
            "unit/test_ipam_damage.py attack/test_damaged_leases.py",
        ),
        ("twice", "        if digest in keys or not addresses_.isdisjoint(held):", "        if False:"),
        (
            "the-old-give-way",
            "        return line in found.old, checksum",
            "        return False, checksum",
            "unit/test_ipam_sync.py::test_one_of_this_boot_stands_before_one_of_an_older",
        ),
        (
            "stay-held",
            "            found.held[line] = claim\n    if",
            "            pass\n    if",
            "unit/test_ipam_damage.py",
        ),
        (
            "not-what-others-have",
            "[address for address in claim.addresses if address not in given]",
            "claim.addresses",
            "unit/test_ipam_damage.py attack/test_damaged_leases.py",
        ),
        ("half-a-long-one", "        if at:\n            found.damaged.add(line)\n        else:", "        if True:"),
        ("kept-first", "    kept = file.copy(lines, table.quarantine) if any(lines) else None", "    kept = None"),
        (
            "in-memory-if-need-be",
            "        index.close()\n        table.index = Index()\n",
            "        raise\n",
            "netns/test_full_disk.py",
        ),
        (
            "cut",
            "        os.ftruncate(table.lines.fd, MOST_LINES * LINE)\n        table",
            "        table",
            "unit/test_ipam_intruders.py::test_a_file_that_is_said_to_be_huge",
        ),
        (
            "old-copy",
            "        if digest in keys or not addresses.isdisjoint(has):",
            "        if False:",
            "unit/test_ipam_damage.py::test_a_line_that_is_an_old_one attack/test_damaged_leases.py",
        ),
        (
            "index-knows-better",
            " if complete else {})\n    _hold",
            " if False else {})\n    _hold",
            "unit/test_ipam_damage.py attack/test_damaged_leases.py",
        ),
        (
            "newer-leases",
            "complete=complete and max(found.age.values(), default=0) <= table.index.written)",
            "complete=complete)",
            "unit/test_ipam_damage.py attack/test_damaged_leases.py",
        ),
    ),
    *of(
        "ipam/stores/files/blocks.py",
        "unit/test_ipam_damage.py::test_an_index_of_no_worth attack/test_damaged_leases.py",
        (
            "checksum",
            '        if stored[SIZE:] != crc32(data, self._generation ^ n).to_bytes(4, "little"):',
            "        if False:",
        ),
    ),
    *of(
        "ipam/stores/files/index.py",
        "unit/test_ipam_damage.py attack/test_damaged_leases.py",
        ("making", "self._generation = _DIRTY, int.from_bytes(os.urandom(4))", "self._generation = _DIRTY, 7"),
        (
            "checksum",
            "        self.readable = magic == MAGIC and crc32(body) == said",
            "        self.readable = magic == MAGIC",
        ),
        (
            "boot",
            "        self.of_this_boot = self.readable and boot == _boot()",
            "        self.of_this_boot = self.readable",
            "unit/test_ipam_damage.py unit/test_ipam_crash.py",
        ),
        ("of-these-leases", " and self._of == _identity(leases)", "", "unit/test_ipam_damage.py"),
        ("mark", " and self._mark == _CLEAN and", " and", "unit/test_ipam_crash.py"),
        ("chain-end", "            if left < 0:", "            if False:"),
    ),
    *of(
        "ipam/stores/files/pages.py",
        "unit/test_ipam_damage.py attack/test_damaged_leases.py",
        (
            "about",
            "        if about[_ABOUT.size : _SUMS_AT] != said or len(about) != _SUMS_AT + _SUMS:",
            "        if len(about) != _SUMS_AT + _SUMS:",
        ),
        ("part", " or self._sum(n, at * _PART, data) != self._seen[n][said : said + 4]:", ":"),
        ("page-number", "        if not 0 < n <= self.count:", "        if False:"),
    ),
]
