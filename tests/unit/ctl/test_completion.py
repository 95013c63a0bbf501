"""bash's completion of a command line (packaging/completion)."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Calls the completion function as bash does: with the words, and the index of the word at the cursor.
SCRIPT = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hpn; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture(scope="module")
def hpn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("bin") / "hpn"
    program.write_text(f'#!/bin/sh\ncd {shlex.quote(str(ROOT))} && exec {shlex.quote(sys.executable)} -m ctl "$@"\n')
    program.chmod(0o755)
    return program


def offered(hpn: Path, *words: str, **env: str) -> list[str]:
    """Return the completions of the last word."""
    argv = ["bash", "-euc", SCRIPT, "bash", ROOT / "packaging" / "completion" / "hpn.bash", hpn, *words]
    done = subprocess.run(
        argv, env={"PATH": "/usr/bin:/bin", **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (["insp"], {"inspect"}),
        (["ip"], {"ipam"}),
        ([""], {"agent", "gc", "help", "inspect", "ipam", "node", "version"}),
        (["help", ""], {"agent", "doctor", "ipam", "node", "top"}),
        (["help", "do"], {"doctor"}),
        (
            ["ipam", ""],
            {"show", "lease", "release", "gc", "verify", "blocks", "pods", "release-node", "import", "export"},
        ),
        (["ipam", "rel"], {"release", "release-node"}),
        (["fabric", ""], {"serve", "test"}),
        (["fabric", "test", "--q"], {"--quick", "--queue-pairs", "--qp-timeout"}),
        (["ipam", "release-node", "--f"], {"--force"}),
        (["ipam", "show", "--"], {"--cluster", "--data-dir", "--json", "--backend"}),
        (["ipam", "release", "--"], {"--help", "--data-dir", "--force"}),
        (["ipam", "import", "--n"], {"--network"}),
        (["inspect", "--"], {"--help", "--json", "--state-dir", "--kubelet-dir"}),
        (["devices", "--"], {"--help", "--json", "--state-dir", "--verbose"}),
        (["plan", "--"], {"--help", "--as", "--each", "--vfs", "--output", "--helm", "--check", "--config"}),
        (["doctor", "--"], {"--help", "--json", "--root"}),
        (["gids", "--"], {"--help", "--json"}),
        (["devinfo", "--"], {"--help", "--json", "--ib-dev", "--verbose"}),
        (["gc", "--d"], {"--data-dir", "--dry-run"}),
        (["li"], {"list"}),
        (["list", "--"], {"--help", "--json", "--state-dir"}),
        (["check", "--"], {"--help", "--json", "--state-dir"}),
        (["repair", "--d"], {"--data-dir", "--dry-run"}),
        (["hints", "--fo"], {"--for", "--form"}),
        (["agent", "--"], {"--socket"}),
        (["node", "--conf"], {"--config", "--config-file"}),
        (["version", "--"], {"--licenses"}),
    ],
)
def test_words(hpn: Path, words: list[str], some: set[str]) -> None:
    found = offered(hpn, *words)
    assert set(found) >= some
    assert all(word.startswith(words[-1]) for word in found)
    assert len(found) == len(set(found))


@pytest.mark.parametrize("words", [["verison", "--"], ["inspect", "x"], ["node", "--config", "/e"]])
def test_nothing_of_its_own(hpn: Path, words: list[str]) -> None:
    """No completion is offered here, so bash completes file names."""
    assert offered(hpn, *words) == []


def test_in_a_shell_with_the_variables_of_a_runtime(hpn: Path) -> None:
    assert offered(hpn, "insp", CNI_COMMAND="ADD") == ["inspect"]


def test_bash_knows_it() -> None:
    script = 'source "$1"; complete -p hpn'
    argv = ["bash", "-euc", script, "bash", ROOT / "packaging" / "completion" / "hpn.bash"]
    assert (
        subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "complete -o default -F _hpn hpn\n"
    )
