"""The linters as tests, so that one command checks a change."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import prose
import pytest
from conftest import require

ROOT = Path(__file__).parents[1]


def run(tool: str, *words: str | Path) -> None:
    """Run it in the tree: the one beside our Python, else on PATH."""
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    program = shutil.which(tool, path=beside)
    if program is None:
        require("unit", f"{tool} is not installed")
    done = subprocess.run([str(program), *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{tool}:\n{done.stdout}{done.stderr}", pytrace=False)


def shell_scripts() -> Iterator[Path]:
    """Every file with a shell in its first line."""
    for top in (".ci", "packaging", "netns-fixtures", "bench", "docs"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.is_file() and path.read_bytes().partition(b"\n")[0].endswith((b"/sh", b"/bash", b" bash", b" sh")):
                yield path


def test_ruff() -> None:
    run("ruff", "check", "--no-cache", ".")


def test_ruff_format() -> None:
    run("ruff", "format", "--no-cache", "--check", ".")


def test_mypy() -> None:
    run("mypy")


def test_prose() -> None:
    """The texts follow those rules of docs/develop/guide.md that Vale can check."""
    built = subprocess.run([ROOT / "netns-fixtures" / "vale"], capture_output=True, text=True, check=False)
    if built.returncode:
        require("unit", built.stderr)
    assert prose.findings(built.stdout.strip()) == []


def test_shellcheck() -> None:
    scripts = list(shell_scripts())
    assert {"run", "venv", "setup"} <= {p.name for p in scripts}
    run("shellcheck", *scripts)


def test_packaging_is_no_package() -> None:
    """An __init__.py there would hide PyPI's packaging, which pytest imports."""
    assert not (ROOT / "packaging" / "__init__.py").exists()
