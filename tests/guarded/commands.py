"""Guards of what ADD, DEL, CHECK and STATUS do, and in which order."""

# ruff: noqa: E501  # a text is easier to compare with the code in one piece
from guarded.form import of

GUARDS = [
    *of(
        "cni/asked.py",
        "attack/test_hostile_author.py",
        ("choices-of-a-pod", "    permits.refuse_choices(request, conf)\n", ""),
        ("stripped", " or not is_stripped(conf):", " or True:", "attack/test_locked_node.py"),
        ("stripped-add", 'if request.command == "ADD" or not', "if not", "attack/test_locked_node.py"),
    ),
    *of(
        "cni/commands.py",
        "netns/test_abandoned.py",
        ("add-abandoned", "        request.refuse_if_abandoned()\n        undo.settle", "        undo.settle"),
        (
            "settle",
            "        undo.settle(entry, pod, request, log, programs)\n",
            "",
            "netns/test_transaction.py::test_no_add_over_what_cannot_be_undone",
        ),
        (
            "claiming",
            "        with kind.claiming(wanted):",
            "        if True:",
            "netns/test_pci.py::test_one_at_a_time_decides_over_a_pf",
        ),
        (
            "old-kernel",
            "    _refuse_old_kernel(host)\n    plan",
            "    plan",
            "netns/test_older_kernel.py::test_below_the_minimum",
        ),
        (
            "old-kernel-status",
            "            _refuse_old_kernel(host)\n            if",
            "            if",
            "netns/test_older_kernel.py::test_below_the_minimum",
        ),
        (
            "name-is-free",
            "    _refuse_taken_name(pod, ifname)\n    return plan",
            "    return plan",
            "netns/test_kinds.py::test_a_name_that_is_taken_costs_no_address",
        ),
        (
            "name-taken-meanwhile",
            "    except FileExistsError:\n        _refuse_taken_name(pod, ifname)\n",
            "    except FileExistsError:\n",
            "netns/test_kinds.py::test_a_name_taken_meanwhile",
        ),
        (
            "free_one",
            "if not undo.free_one(e.devices, wanted.where, request, programs, log):",
            "if True:",
            "netns/test_pci.py",
        ),
        (
            "rolls-back",
            "                undo.attachment(entry, record, request, programs, log, ask_ipam=ipam.may_hold(failure))\n",
            "                pass\n",
            "netns/test_kinds.py::test_a_name_taken_meanwhile",
        ),
        (
            "asks-only-who-gave",
            "ask_ipam=ipam.may_hold(failure))",
            "ask_ipam=True)",
            "netns/test_refusals.py netns/test_bad_input.py::test_refused_without_a_trace[circumstances: IPAM plugin not a program]",
        ),
        (
            "given",
            "            record = replace(record, given=not isinstance(failure, DelegateError))\n",
            "",
            "netns/test_refusals.py",
        ),
        (
            "index-in-the-record",
            '            record = replace(record, link={**plan, "index": link.index if link else 0})\n',
            "",
            "attack/escaped/test_hidden.py::test_moved_to_a_child",
        ),
        (
            "record-first",
            "    entry.save(record)\n    return record\n\n\ndef _make_link",
            "    return record\n\n\ndef _make_link",
            "netns/test_macvlan.py::test_a_macvlan_that_took_the_name_meanwhile netns/test_transaction.py",
        ),
        (
            "record-complete",
            "complete=True, result",
            "complete=False, result",
            "netns/test_kinds.py::test_attach_check_detach",
        ),
        (
            "own-namespace",
            "if netns.is_own(pod.fd) and",
            "if False and",
            "netns/test_bad_input.py::test_refused_without_a_trace[environment: our own namespace]",
        ),
        (
            "delete-abandoned",
            "        request.refuse_if_abandoned()\n        if _detach(entry",
            "        if _detach(entry",
        ),
        ("delete-elsewhere", "if noted and noted != where.state_dir:", "if False:", "netns/test_stripped.py"),
        ("note-first", "    places.note(entry.state_dir, entry.network, entry.key)\n", "", "netns/test_stripped.py"),
        (
            "delete-without-record",
            "        undo.release(where.ipam, request, programs)\n\n\ndef _detach",
            "        return\n\n\ndef _detach",
            "netns/test_delete.py::test_without_a_record_the_addresses_are_released",
        ),
        (
            "status-writes",
            '        durable.probe(wanted.where.state_dir / "locks")\n',
            "",
            "netns/test_status.py::test_state_directory_read_only",
        ),
        (
            "status-of-kind",
            "                _status_of_kind(wanted, host)\n",
            "                pass\n",
            "netns/test_status.py",
        ),
        (
            "status-of-ipam",
            '        raise NotAvailable(f"no ADD can be served: {told(e).msg}") from e\n    delegate.ask_if_it_can(wanted.where.ipam, request, programs)\n',
            '        raise NotAvailable(f"no ADD can be served: {told(e).msg}") from e\n',
            "netns/test_status.py",
        ),
        (
            "check-complete",
            "    if record is None or not record.complete:",
            "    if record is None:",
            "netns/test_check.py::test_half_an_attachment",
        ),
        (
            "check-boot",
            "    if not record.of_this_boot or record.identity != pod.identity:",
            "    if record.identity != pod.identity:",
            "netns/test_check.py::test_a_record_of_an_older_boot",
        ),
        (
            "check-identity",
            "    if not record.of_this_boot or record.identity != pod.identity:",
            "    if not record.of_this_boot:",
            "netns/test_check.py::test_fails",
        ),
        (
            "check-kind",
            "    link = kinds.named(record.kind).check(record.link, host, pod, record.key.ifname)",
            "    link = pod.rtnl.link(record.key.ifname)",
            "netns/test_check_link.py",
        ),
        (
            "check-parts",
            "        parts.check(record, pod, link, still)\n",
            "",
            "netns/test_tuning.py::test_check_compares",
        ),
        (
            "parts-can-be",
            "    plan = kind.plan(wanted, host, pod)\n    parts.status(wanted.attach)\n",
            "    plan = kind.plan(wanted, host, pod)\n",
            "netns/test_tuning.py",
        ),
        (
            "status-of-parts",
            "            parts.status(wanted.attach)\n    except",
            "    except",
            "netns/test_tuning.py",
        ),
        ("check-promises", "        parts.promises.check(pod, link, still)\n", "", "netns/test_check_addresses.py"),
        (
            "check-ipam",
            "        if where.ipam:\n            delegate.call(where.ipam, request, programs)\n\n\ndef compare",
            "        return\n\n\ndef compare",
            "netns/test_check.py::test_a_foreign_ipams_check",
        ),
    ),
    *of(
        "cni/main.py",
        "netns/test_bad_input.py::test_hpn_never_asks_itself_for_addresses",
        ("budget", "    budget.begin()\n", "", "netns/test_netlink.py::test_each_request_has_its_own_budget"),
        ("not-as-ipam", "    if request.var(DELEGATED):", "    if False:"),
    ),
]
