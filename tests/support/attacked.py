"""The attack tier's promises through an agent with all that its unit or container forbids (attack/by_agent.py)."""

import sys
from pathlib import Path

import drawn

ROOT = Path(__file__).parents[2]
SEARCHES = ("escaped",)
# Others that the rights of a process decide: namespaces, links, other processes, files, programs, the log.
OTHERS = (
    "test_hostile_pod.py", "test_probe_exhaustion.py", "test_damaged_records.py::test_damaged_records",
    "test_hostile_configuration.py", "test_hostile_author.py", "test_hostile_files.py", "test_hostile_log.py",
    "test_hostile_plugin.py", "test_hostile_user.py", "test_mutilated_configuration.py",
)  # fmt: skip


def chosen() -> list[str]:
    """The day's share of these tests, with all searches."""
    return [*SEARCHES, *drawn.share(OTHERS, "attacked by the agent")]


def words(folder: str | Path, *tests: str) -> list[str]:
    """The command that runs them with their files in this folder, which the caller removes."""
    named = [f"--basetemp={folder}", *(f"tests/attack/{name}" for name in tests)]
    return ["env", "-C", str(ROOT), sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *named]


def environment(launcher: str) -> dict[str, str]:
    """Its variables, with the day of this run's draws."""
    named = {"HPN_BY_AGENT": "/run/hpn/agent.sock", "HPN_BINARY": launcher, "PYTHONDONTWRITEBYTECODE": "1"}
    return {**named, drawn.VARIABLE: f"{drawn.draw()}"}
