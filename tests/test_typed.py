"""Each block of commands of the pages, with the test of tests/cluster that types it as it stands."""

import ast

import pytest
from support.pages import PAGES, ROOT, Block, Section, sections

# Page and heading of the second level -> for each of its blocks in order, a test that types it.
TYPED = {
    "cluster-addresses.md#first-steps": ["test_cluster_addresses.py::test_first_steps_and_the_end_of_a_node"] * 2,
    "cluster-addresses.md#retire-a-network": ["test_cluster_addresses.py::test_first_steps_and_the_end_of_a_node"],
    "kubernetes.md#without-a-daemonset": ["test_first_steps.py::test_from_nothing_to_two_pods_and_back"] * 2,
    "kubernetes.md#as-a-daemonset": [
        "test_daemonset.py::test_from_an_empty_node_to_two_pods_and_away",
        *["test_daemonset.py::test_another_version_and_back"] * 2,
        "test_daemonset.py::a_file_that_is_refused",
        "test_daemonset.py::test_from_an_empty_node_to_two_pods_and_away",
    ],
    "kubernetes.md#with-helm": [
        *["test_chart.py::test_from_an_empty_node_to_two_pods_and_away"] * 3,
        "test_chart.py::a_file_that_is_refused",
        "test_chart.py::test_from_an_empty_node_to_two_pods_and_away",
        "test_chart.py::test_pools_of_nodes",
        "test_chart.py::test_from_kustomize_to_helm_and_another_version_and_back",
    ],
    "kubernetes.md#one-label": [
        "test_label.py::test_a_labelled_pod_as_the_page_has_it",
        "test_label.py::test_the_line_for_older_versions",
    ],
    "kubernetes.md#one-pool-of-addresses-for-all-nodes": [
        *["test_typed.py::test_a_pool_and_a_credential_without_a_daemonset"] * 3,
    ],
    "kubernetes.md#coming-from-another-device-plugin": ["test_typed.py::test_the_file_of_another_device_plugin"] * 2,
    "kubernetes.md#quickstart": ["test_quickstart.py::test_from_an_empty_cluster_to_two_pods"],
}
FOUND = {f"{section}": section for page in PAGES for section in sections(page)}


def commands(section: Section) -> list[Block]:
    return [block for block in section.blocks if block.kind.startswith("sh")]


def test_each_block_has_a_test() -> None:
    found = {name: len(commands(section)) for name, section in FOUND.items() if commands(section)}
    assert found == {name: len(tests) for name, tests in TYPED.items()}


@pytest.mark.parametrize("name", TYPED)
def test_the_test_exists_and_reads_the_section(name: str) -> None:
    for file, function in {tuple(test.split("::")) for test in TYPED[name]}:
        source = (ROOT / "tests" / "cluster" / file).read_text()
        assert function in {one.name for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)}
        assert f'"{FOUND[name].title}"' in source


def test_no_command_is_outside_of_such_a_block() -> None:
    """A block of kubernetes.md that is indented would be typed by no test."""
    text = (ROOT / "docs" / "user" / "kubernetes.md").read_text()
    begins = tuple(f"    {program} " for program in ("kubectl", "helm", "hpn", "dist/hpn"))
    assert [line for line in text.splitlines() if line.startswith(begins)] == []
