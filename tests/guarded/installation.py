"""Guards of hpn install and hpn uninstall."""

from guarded.form import of

GUARDS = [
    *of(
        "ctl/installation/folders.py",
        "unit/test_install.py::test_a_way_that_others_can_change",
        ("link-owner", "        if found.st_uid not in trusted:", "        if False:"),
        ("owner", "    if found.st_uid not in trusted or is_open:", "    if is_open:"),
        ("mode", "    if found.st_uid not in trusted or is_open:", "    if found.st_uid not in trusted:"),
        (
            "below-the-root",
            '        _back(way, len(way) - 1 if target.startswith("/") else 0)\n',
            "",
            "unit/test_install.py::test_a_link_on_the_way_stays_below_the_root",
        ),
        (
            "endless",
            "        if links > _LINKS:",
            "        if False:",
            "unit/test_install.py::test_links_without_an_end",
        ),
    ),
    *of(
        "ctl/installation/put.py",
        "unit/test_install.py::test_what_does_not_run_is_not_installed",
        ("run", "            _run(at, temporary)\n", ""),
        (
            "cleared",
            "            with suppress(OSError):\n                _clear(at, temporary)\n            raise\n",
            "            raise\n",
            "unit/test_install_interrupted.py::test_a_disk_that_fails",
        ),
        (
            "lock",
            '            locks.take(fd, f"/{places.LOCK}", _LOCK_TIMEOUT)\n',
            "",
            "unit/test_install.py::test_two_at_once",
        ),
    ),
    *of(
        "ctl/installation/plan.py",
        "unit/test_install.py::test_a_unit_of_somebody_elses",
        (
            "unit",
            "            if places.is_marked(name, found.text) or found.text == places.unmarked(content.text):",
            "            if True:",
        ),
        (
            "masked",
            "Text(text) for name, text in units.items() if not is_masked(there, name)}",
            "Text(text) for name, text in units.items()}",
            "unit/test_install.py::test_a_unit_that_must_not_start",
        ),
        (
            "enabled-once",
            '        and there.get(f"{places.UNITS}/{unit}", NOTHING).kind == "nothing"\n',
            "",
            "unit/test_install.py::test_another_version",
        ),
        (
            "left-over",
            '        if there.get(path, NOTHING).kind != "nothing"\n    ]\n',
            "        if False\n    ]\n",
            "unit/test_install.py::test_what_an_interrupted_install_left",
        ),
        (
            "another-program",
            "        return found.is_hpn or _leads_to_hpn(path, found)",
            '        return found.kind != "nothing"',
            "unit/test_uninstall.py::test_what_others_wrote_stays_and_is_named",
        ),
        (
            "replaced-program",
            "            if found.is_hpn:\n",
            "            if True:\n",
            "unit/test_install_foreign.py::test_a_file_that_is_not_hpn",
        ),
        (
            "replaced-link",
            "            if path in _NAMES and not _leads_to_hpn(path, found):",
            "            if False:",
            "unit/test_install_foreign.py::test_a_link_to_something_else",
        ),
    ),
    *of(
        "ctl/installation/install.py",
        "unit/test_install_state.py",
        ("state", "        refuse_unreadable(root)\n        steps", "        steps"),
        ("state-checked", "        refuse_unreadable(root)\n        if", "        if"),
        (
            "configuration",
            "            refuse_configuration(root)\n        if not dry_run",
            "            pass\n        if not dry_run",
            "unit/test_install_state.py::test_a_file_that_hpn_node_of_this_version_refuses",
        ),
        (
            "package",
            '        refuse_package(root, "install")\n',
            "",
            "unit/test_uninstall.py::test_the_debian_package_is_left_to_apt",
        ),
    ),
    *of(
        "ctl/installation/state.py",
        "unit/test_install_state.py",
        ("schema", 'return "" if schema == durable.SCHEMA else', 'return "" if True else'),
        ("kind", 'return "" if kind in (*KINDS, LOST) else', 'return "" if True else'),
        ("elsewhere", "    return [default, *sorted(noted)]", "    return [default]"),
        (
            "notes-unread",
            '        raise IoFailure(f"reading {e.filename}: {e.strerror}; run hpn as root") from e\n    return',
            "        pass\n    return",
            "unit/test_uninstall.py",
        ),
        ("state-ipam", ', *(one / "ipam" for one in state_dirs(root))]', "]"),
    ),
    *of(
        "ipam/stores/files/listing.py",
        "unit/test_install_state.py",
        ("schema", "        if schema != SCHEMA:", "        if False:"),
    ),
    *of(
        "ctl/installation/uninstall.py",
        "unit/test_uninstall.py",
        ("held", "        _refuse_while_held(root, force=force)\n", ""),
        ("kept", "            gone = [] if kept else [", "            gone = ["),
    ),
    *of(
        "ctl/installation/held.py",
        "unit/test_uninstall.py",
        ("unreadable", '    lines += [f"{path}, which cannot be read" for path in unreadable]\n', ""),
        ("leases", 'state_of(one) in ("held", "doubtful")', "False"),
        ("set-aside", " or (isinstance(one.holding, Lost) and not one.is_over)", ""),
        ("leases-unread", "            lines += _unread(network)\n", ""),
    ),
]
