"""zsh's completion of a command line (packaging/completion/_hpn), typed at a terminal."""

import os
import pty
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import require
from support.topology import until
from unit.ctl.test_completion import ROOT, hpn

__all__ = ["hpn"]
# The first key inserts all completions into the line, and the second writes the line into a file.
SETUP = r"""
PROMPT= PS2= fpath=(%(folder)s $fpath) path=(%(bin)s $path)
autoload -Uz compinit && compinit -u -D
insert-all() { _main_complete; compstate[insert]=all }
zle -C insert-all complete-word insert-all
show() { print -r -- "$BUFFER" >%(out)s.new; mv %(out)s.new %(out)s; BUFFER= }
zle -N show
bindkey '\ea' insert-all
bindkey '\eb' show
"""


@contextmanager
def terminal(*argv: str | Path, cwd: Path) -> Iterator[int]:
    """Run the program at its own terminal; the test types by writing to the descriptor."""
    ours, its = pty.openpty()
    env = {"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(cwd), "CNI_COMMAND": "ADD"}
    with subprocess.Popen(argv, stdin=its, stdout=its, stderr=its, cwd=cwd, env=env, start_new_session=True) as process:
        os.close(its)
        try:
            yield ours
        finally:
            process.kill()
            os.close(ours)


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ("insp", {"inspect"}),
        ("", {"agent", "gc", "help", "inspect", "ipam", "node", "version"}),
        ("help ", {"agent", "doctor", "ipam", "node", "top"}),
        ("help do", {"doctor"}),
        ("ipam ", {"show", "lease", "release", "gc", "verify", "import", "export"}),
        ("ipam rel", {"release", "release-node"}),
        ("ipam release-node --", {"--help", "--force", "--json"}),
        ("ipam release --", {"--help", "--data-dir", "--force"}),
        ("uninstall --", {"--check", "--force", "--root"}),
        ("node --conf", {"--config", "--config-file"}),
        ("version --", {"--licenses"}),
        ("node --config no", {"node.yaml"}),
    ],
)
def test_words(hpn: Path, tmp_path: Path, words: str, some: set[str]) -> None:
    if not (zsh := shutil.which("zsh")):
        require("unit", "zsh")
    (tmp_path / "node.yaml").touch()
    out = tmp_path / "out"
    setup = tmp_path / "setup"
    setup.write_text(SETUP % {"folder": ROOT / "packaging" / "completion", "bin": hpn.parent, "out": out})
    with terminal(zsh, "-f", "-i", cwd=tmp_path) as keys:
        os.write(keys, f". {setup}; : >{out}\n".encode())
        until(out.exists, 60)
        out.unlink()
        os.write(keys, f"hpn {words}\x1ba\x1bb".encode())
        until(out.exists, 60)
    offered = set(out.read_text().split()) - {"hpn", *words.split()[:-1]}
    assert offered >= some
    last = words.rpartition(" ")[2]
    assert all(word.startswith(last) for word in offered)
