"""The systemctl commands after an install."""

import pytest

from ctl.installation import layout
from ctl.installation.systemd import Unit, commands

THIS, OTHER = "0123456789abcdef", "fedcba9876543210"


def told(*put: str, enabled: str = "", **running: Unit) -> list[str]:
    units = {f"hpn-{name.replace('_', '.')}": unit for name, unit in running.items()}
    return [" ".join(words) for words in commands(put, {f"hpn-{name}" for name in enabled.split()}, units, THIS)]


@pytest.mark.parametrize(
    ("path", "reload"),
    [
        (f"{layout.UNITS}/{layout.NODE}", True),
        (layout.wants_link(layout.NODE), True),
        (layout.HPN, False),
        (layout.COMMAND, False),
    ],
)
def test_its_files_are_read_again_where_they_are_new(path: str, *, reload: bool) -> None:
    assert told(path) == ["daemon-reload"] * reload


def test_its_files_are_read_again_where_systemd_has_not_read_them() -> None:
    """A stale unit causes daemon-reload: an earlier install wrote its file and was killed."""
    assert told(node_service=Unit(is_stale=True)) == ["daemon-reload"]
    assert told(node_service=Unit()) == []


def test_what_is_enabled_is_started() -> None:
    enabled = "agent.socket node.service"
    assert told(enabled=enabled) == ["start hpn-agent.socket", "start hpn-node.service"]
    here = Unit(is_active=True)
    assert told(enabled=enabled, agent_socket=here, node_service=Unit()) == ["start hpn-node.service"]


def test_what_is_not_enabled_is_left_alone() -> None:
    assert told(agent_socket=Unit(), node_service=Unit()) == []


def test_what_runs_another_version_is_replaced() -> None:
    """A running unit of another version restarts, by whatever means it started, and even if an interrupted install left
    nothing to write."""
    assert told(agent_service=Unit(True, OTHER), node_service=Unit(True, THIS)) == ["restart hpn-agent.service"]
    assert told(agent_service=Unit(True, THIS), node_service=Unit(True, "")) == ["restart hpn-node.service"]
    assert told(agent_service=Unit(False, OTHER)) == []


def test_what_systemd_starts_again_is_not_waited_for() -> None:
    """A start of a unit in auto-restart would end with that unit's delay."""
    assert told(enabled="daemonset.service", daemonset_service=Unit(is_waiting=True)) == []


@pytest.mark.parametrize(
    ("runs", "command"),
    [
        (("--metrics=a",), "reload hpn-node.service"),
        ((), "restart hpn-node.service"),
        # A drop-in may have changed them.
        (None, "reload hpn-node.service"),
    ],
)
def test_the_daemonsets_hpn_node_gets_its_arguments_and_its_file(runs: tuple[str, ...] | None, command: str) -> None:
    """Also if an interrupted install had written the unit or the file."""
    running = {layout.NODE: Unit(is_active=True, version=THIS, arguments=runs)}
    assert [" ".join(words) for words in commands((), (), running, THIS, ("--metrics=a",))] == [command]
    assert list(commands((), (), running, THIS)) == []
    other = {layout.NODE: Unit(is_active=True, version=OTHER, arguments=runs)}
    assert list(commands((), (), other, THIS, ("--metrics=a",))) == [("restart", layout.NODE)]
