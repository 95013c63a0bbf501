"""The demands of the specification (CNI SPEC 1.1.0, CONVENTIONS.md, and where they are silent libcni's skel) on a
plugin, each with its test; a demand without a test has its reason instead.

The sections are the specification's subjects.  One test here checks that every named test exists.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent


class Untested(NamedTuple):
    """The reason why a demand has no test of its own."""

    reason: str


DEMANDS: dict[str, dict[str, str | Untested]] = {
    "process": {
        "every command from the version that brought it; an older cniVersion is code 1": "unit/base/protocol/test_spec.py::"
        "test_commands_of_each_version",
        "an unknown command is code 4 and the message names CNI_COMMAND": "unit/base/protocol/test_environment.py::"
        "test_unknown_command_lists_the_known",
        "all missing variables are named in one error": "unit/base/protocol/test_environment.py::"
        "test_missing_variables_are_all_named",
        "only the variables that the specification requires are required": "unit/base/protocol/test_environment.py::"
        "test_a_complete_environment_serves_every_command",
        "container id: its characters": "unit/base/protocol/test_environment.py::test_bad_container_id",
        "network name: its characters, code 7": "unit/base/protocol/test_spec.py::test_network_of_refuses",
        "interface name: what the kernel and libcni refuse, code 4": "unit/base/protocol/test_environment.py::test_bad_ifname",
        "stdin that cannot be read is code 5": "unit/base/protocol/test_process.py::test_a_stdin_that_cannot_be_read",
        "stdin that is not JSON is code 6": "unit/base/protocol/test_spec.py::test_decode_refuses",
        "an invalid configuration is code 7": "netns/test_bad_input.py::test_refused_without_a_trace",
        "a missing cniVersion is 0.1.0, which we do not speak": "unit/base/protocol/test_spec.py::test_unsupported_version",
        "exit status 0 or not, the error as JSON on stdout": "unit/base/protocol/test_process.py::test_error",
        "one JSON document or nothing on stdout": "unit/base/protocol/test_dispatch.py::"
        "test_a_bug_is_one_document_and_a_traceback_in_the_log",
        "an error has the request's cniVersion": "netns/test_bad_input.py::test_an_error_is_in_the_version_asked_for",
        "no output from DEL, CHECK, STATUS, GC": "unit/base/protocol/test_dispatch.py::test_no_output_without_a_result",
        "no CNI_COMMAND: help for a person, exit 0": "unit/base/protocol/test_process.py::test_help",
        "the plugin's own namespace is refused before anything is touched": "netns/test_bad_input.py::"
        "test_refused_without_a_trace",
        "unless CNI_NETNS_OVERRIDE says so": "netns/test_macvlan.py::test_our_own_namespace_if_the_operator_says_so",
        "concurrent calls for different containers": "system/test_scale.py::test_two_hundred_pods_in_parallel",
        "concurrent calls for one container do not mix": "unit/base/state/test_locks.py::test_a_lock_excludes_another_process",
    },
    "ADD": {
        "the interface exists already: error": "netns/test_bad_input.py::test_refused_without_a_trace",
        "prevResult is passed on, ours after it": "netns/test_kinds.py::test_passes_an_earlier_plugins_result_on",
        "the key is network, container id and interface name": "netns/test_kinds.py::test_two_networks_in_one_pod",
        "a delegate whose ADD fails is sent DEL": "netns/test_bad_input.py::"
        "test_an_ipam_that_failed_to_give_is_asked_to_take_back",
        "a failed ADD is cleaned up by the DEL that follows": "netns/test_bad_input.py::"
        "test_where_not_all_can_be_undone_the_record_stays",
        "an ADD that was killed is cleaned up by DEL, ADD or GC": "netns/test_transaction.py::"
        "test_killed_at_every_step",
    },
    "DEL": {
        "repeated DEL succeeds": "netns/test_delete.py::test_twice",
        "DEL without an ADD succeeds": "netns/test_delete.py::test_without_an_add",
        "CNI_NETNS empty, missing or gone": "netns/test_delete.py::test_the_path_does_not_lead_to_the_pod",
        "no prevResult, no cached result": "system/test_verbs.py::test_del_without_the_cached_result_and_after_the_pod",
        "the IPAM plugin is sent DEL also when the namespace is gone": "netns/test_delete.py::test_the_pod_is_gone",
        "a changed configuration does not matter": "netns/test_delete.py::test_the_configuration_is_another_now",
        "a chain is deleted in reverse with the final result": "system/test_peers.py::"
        "test_go_tuning_after_ours_gets_our_result",
    },
    "CHECK": {
        "prevResult is required, code 7": "netns/test_bad_input.py::test_refused_without_a_trace",
        "what later plugins changed is no error": "netns/test_check.py::test_succeeds",
        "a resource of ours that is missing or altered is": "netns/test_check.py::test_fails",
        "what prevResult does not track, the lease for one, is checked too": "netns/test_check.py::test_fails",
        "the IPAM plugin is asked, its error passed on": "netns/test_check.py::test_a_foreign_ipams_check",
        "right after ADD it succeeds: an address may be tentative": "netns/test_check.py::"
        "test_a_tentative_address_is_fine",
    },
    "STATUS": {
        "0 when ready, with no output": "netns/test_status.py::test_ready",
        "50 when no ADD can be served": "netns/test_status.py::test_not_ready",
        "exhaustion is reported": "netns/test_status.py::test_pool_exhausted",
        "the IPAM plugin is asked": "netns/test_status.py::test_a_foreign_ipam",
        "51 when existing containers are affected too": Untested(
            "never answered: what would cut off existing interfaces (the master going down) is answered 50, "
            "because an ADD is refused then"
        ),
        "nothing relies on being called": Untested("STATUS changes nothing, so nothing can"),
    },
    "GC": {
        "what the list does not name goes, the rest stays": "netns/test_gc.py::test_unlisted_goes_and_listed_stays",
        "both spellings of the list's key": "netns/test_gc.py::test_the_first_spelling_wins",
        "no list: only what is provably dead": "netns/test_gc.py::test_without_a_list_the_living_stay",
        "an empty list is everything": "netns/test_gc.py::test_an_empty_list_is_everything",
        "a malformed list removes nothing": "unit/base/protocol/test_spec.py::test_malformed_attachments",
        "it goes on after errors and reports them at the end": "netns/test_gc.py::"
        "test_one_failure_does_not_stop_the_rest",
        "the IPAM plugin gets configuration and list": "netns/test_gc.py::test_the_ipam_gets_the_list",
        "other networks are not touched": "netns/test_gc.py::test_other_networks_stay",
        "cnitool gc": "system/test_verbs.py::test_gc_of_cnitool_takes_everything",
        "disableGC is the runtime's": Untested("a runtime that honours it does not call us"),
    },
    "VERSION": {
        "cniVersion and supportedVersions": "unit/base/protocol/test_process.py::test_version",
        "stdin may be empty or anything": "unit/base/protocol/test_dispatch.py::test_version_needs_no_stdin",
    },
    "result": {
        "the shape of each version": "unit/base/protocol/test_result.py::test_to_json",
        "cniVersion is the configuration's": "unit/base/protocol/test_dispatch.py::test_result_in_the_version_asked_for",
        "0.3.0 to 1.1.0 end to end": "netns/test_kinds.py::test_result_of_each_version",
        "and through cnitool": "system/test_verbs.py::test_add_answers_in_the_shape_of_the_version",
        "sandbox is CNI_NETNS verbatim": "netns/test_macvlan.py::test_attaches_and_detaches",
        "interface is an index": "unit/base/protocol/test_result.py::test_after_moves_the_interface_index",
        "0.1.0 and 0.2.0": Untested("their shape has one address per family; refused with code 1, not advertised"),
    },
    "IPAM plugin": {
        "found in CNI_PATH, in order": "unit/cni/test_delegate.py::test_first_of_cni_path",
        "same environment, whole configuration": "unit/cni/test_delegate.py::test_environment_and_stdin_are_passed_whole",
        "CNI_COMMAND is DEL only for a rollback": "unit/cni/test_delegate.py::test_command_overridden",
        "stderr is passed through": "unit/cni/test_delegate.py::test_stderr_is_passed_through",
        "its error is passed on under its own code": "unit/cni/test_delegate.py::test_own_error",
        "frozen, its library path is the runtime's": "system/test_binary.py::"
        "test_a_delegate_gets_the_environment_the_runtime_gave",
        "as an IPAM plugin: a result without interfaces": "unit/ipam/test_program.py::test_process",
        "alone, under another main plugin": "system/test_peers.py::test_go_macvlan_with_our_ipam",
        "another, under ours": "system/test_peers.py::test_ours_with_an_ipam_of_the_peers",
        "the gateway is not given": "unit/ipam/test_leases.py::test_no_range_gives_another_ranges_gateway",
        "a request that cannot be met is an error that says why": "unit/ipam/test_leases.py::"
        "test_refused_request_says_why",
        "exhaustion is an error of ours, 100 or above": "unit/ipam/test_leases.py::"
        "test_exhausted_set_is_named_with_its_size",
        "DEL is idempotent": "unit/ipam/stores/test_store.py::test_delete_is_idempotent",
        "DEL needs neither ranges nor namespace": "unit/ipam/stores/test_store.py::test_delete_does_not_need_the_ranges",
        "dns: the configuration's, else the IPAM plugin's": "netns/test_kinds.py::test_dns_of_the_configuration_wins",
        "two addresses of a family are refused before 0.3.0": Untested("0.2.0 and older are not spoken at all"),
    },
    "arguments": {
        "CNI_ARGS: pairs, unknown keys, IgnoreUnknown, repeated keys": "unit/base/protocol/test_arguments.py::test_cni_args",
        "runtimeConfig, args.cni, CNI_ARGS, configuration, in this order": "netns/test_macvlan.py::"
        "test_mac_comes_from_the_most_specific_place",
        "capabilities and other keys of the runtime are passed over": "unit/cni/test_config.py::"
        "test_all_runtime_keys_at_once",
        "an unknown key is code 2 with key and value": "unit/cni/test_config.py::test_unknown_key",
        "the examples declare the capabilities that are served": "system/test_examples.py::"
        "test_declared_capabilities_are_served",
    },
    "errors": {
        "codes 1 to 99 as specified, ours above": "unit/base/protocol/test_dispatch.py::test_every_error_has_a_code_of_its_own",
        "3, container unknown: no DEL needed": Untested("never answered: a DEL after a failed ADD is always right"),
        "11, try again": "unit/base/state/test_locks.py::test_a_lock_excludes_another_process",
        "details": "unit/base/protocol/test_dispatch.py::test_notes_become_details",
    },
    "cnitool": {
        "the same container id and path for another namespace": "netns/test_transaction.py::test_killed_at_every_step",
        "all commands, all versions": "system/test_verbs.py::test_add_answers_in_the_shape_of_the_version",
    },
}


def _tests_of_check() -> set[str]:
    """The tests in the tables of docs/user/commands.md; a name without a file belongs to the file before it."""
    section = (TESTS.parent / "docs" / "user" / "commands.md").read_text()
    found, file = set[str](), ""
    for path, name in re.findall(r"`(?:([a-z_/]+\.py)::)?(test_\w+)`", section):
        file = path or file
        found.add(f"{'' if '/' in file else 'netns/'}{file}::{name}")
    assert len(found) > 30
    return found


_NAMED = sorted(
    {where for section in DEMANDS.values() for where in section.values() if isinstance(where, str)} | _tests_of_check()
)


@pytest.mark.parametrize("where", _NAMED)
def test_the_test_named_exists(where: str) -> None:
    file, _, name = where.partition("::")
    tree = ast.parse((TESTS / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_what_has_no_test_says_why() -> None:
    reasons = [
        where.reason for section in DEMANDS.values() for where in section.values() if isinstance(where, Untested)
    ]
    assert all(len(reason) > 20 for reason in reasons)
    assert len(reasons) < 10
