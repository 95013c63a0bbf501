"""What the build compiles (packaging/record.py), so that a start compiles nothing (packaging/precompiled.py)."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
MODULES = ["cni.commands", "cni.config", "cni.models.sriov", "ipam.config", "ipam.stores.files.store"]

# Imports what argv names, from an empty interpreter, where compiling text, parsing an expression or asking for a
# signature is an error; then shows that what was recorded is what would have been made.
START = """
import builtins, sys
from re import _compiler
make, parse = compile, _compiler.compile
def refuse(text, filename, *rest, **options):
    assert filename != "<string>", text
    return make(text, filename, *rest, **options)
def refuse_expression(pattern, flags=0):
    raise AssertionError(pattern)
builtins.compile, _compiler.compile = refuse, refuse_expression
sys.path[:] = sys.argv[1].split(":")
import precompiled
assert "inspect" not in sys.modules
for name in sys.argv[2:]:
    __import__(name)
from cni.protocol.spec import Key
assert Key("c1", "eth0") == Key(container_id="c1", ifname="eth0") != Key("c1", "eth1")
for (text, mode), code in precompiled.CODE.items():
    assert precompiled.loads(code) == make(text, "<string>", mode), text
for (pattern, flags), made in precompiled.EXPRESSIONS.items():
    assert precompiled.expression(pattern, flags) == parse(pattern, flags), pattern
assert len(precompiled.CODE) > 100 and len(precompiled.EXPRESSIONS) > 10
"""


def python(path: list[Path], *argv: str | Path) -> str:
    """Run isolated, without docstrings, with these in front of our path."""
    inside = ":".join(map(str, [*path, ROOT, *sys.path]))
    command = [sys.executable, "-OO", "-I", "-S", *map(str, argv), inside, *MODULES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_start_compiles_nothing(tmp_path: Path) -> None:
    (tmp_path / "recorded.py").write_text(python([], PACKAGING / "record.py"))
    python([tmp_path, PACKAGING], "-c", START)
