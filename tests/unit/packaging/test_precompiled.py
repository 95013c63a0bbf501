"""Code that the build compiles (packaging/record.py), so that a start compiles nothing (packaging/startup)."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGING = ROOT / "packaging"
MODULES = ["cni.commands", "cni.config", "cni.models.sriov", "ipam.config", "ipam.stores.files.store"]

# Imports the modules in argv into an empty interpreter, where compiling text, parsing an expression or querying a
# signature is an error.  Then compares the recorded code with code compiled now.
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
import precompiled_re, no_inspect, precompiled_dataclasses, precompiled_typing
assert "inspect" not in sys.modules
for name in sys.argv[2:]:
    __import__(name)
from base.protocol.spec import Key
assert Key("c1", "eth0") == Key(container_id="c1", ifname="eth0") != Key("c1", "eth1")
from marshal import loads
methods, annotations = precompiled_dataclasses.TABLE, precompiled_typing.TABLE
for table, mode in ((methods, "exec"), (annotations, "eval")):
    for text, code in table.items():
        assert loads(code) == make(text, "<string>", mode), text
for (pattern, flags), made in precompiled_re.TABLE.items():
    assert precompiled_re.expression(pattern, flags) == parse(pattern, flags), pattern
assert min(map(len, (methods, annotations))) > 50 and len(precompiled_re.TABLE) > 10
"""


def run(*argv: str | Path) -> None:
    """Run Python isolated, without docstrings."""
    command = [sys.executable, "-OO", "-I", "-S", *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_start_compiles_nothing(tmp_path: Path) -> None:
    path = [str(ROOT), *sys.path]
    run(PACKAGING / "record.py", tmp_path, ":".join(path), *MODULES)
    run("-c", START, ":".join([str(tmp_path), str(PACKAGING / "startup"), *path]), *MODULES)
