"""A bug's traceback in the frozen program: the file in the source tree, the line's number, and the line."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from system.agents import call, conf, ok
from system.machine import ROOT, Machine, Tools

# In place of the program's first file, which it then runs: a bug where ADD announces its addresses.
BUG = """
import marshal, os, sys
def sends(event, words):
    if event == "socket.sendto" and words[0].family.name == "AF_PACKET":
        raise ZeroDivisionError("of the test")
sys.addaudithook(sends)
with open(os.path.dirname(os.path.abspath(__file__)) + "/boot.pyc", "rb") as file:
    exec(marshal.loads(file.read()[16:]))
"""
# The ordinary build names files as in the source tree; a build without the archive, as its own directory.
FRAME = re.compile(r'File "(?:/proc/self/fd/\d+/)?((?:[a-z]+)/[\w/]+\.py)", line (\d+), in \w+\n(.*)')


def frames(text: str) -> list[tuple[str, int, str]]:
    """Our frames, each with the line that follows it."""
    return [(path, int(number), line.strip()) for path, number, line in FRAME.findall(text)]


def line_of(path: str, number: int) -> str:
    return (ROOT / path).read_text().splitlines()[number - 1].strip()


def test_a_bug_in_a_command(machine: Machine, tmp_path: Path) -> None:
    """Code 999, and the log gives the place."""
    pod, network = machine.pod(), conf(machine, dad="off")
    environ = {**os.environ, **machine.command("ADD", pod), "HPN_AGENT": ""}
    place = tmp_path / "unpacked"  # its own: the tests' common one may have other versions' programs too
    subprocess.run([machine.tools.hpn, "version"], env={"HPN_PROGRAM_DIR": f"{place}"}, check=True, capture_output=True)
    (unpacked,) = place.glob("*/boot.pyc")
    program = shutil.copytree(unpacked.parent, tmp_path / "program")
    (program / "bug.py").write_text(BUG)
    words = [
        f"{program}/ld-hpn.so.2",
        "--library-path",
        f"{program}",
        f"{program}/hpn",
        "-IB",
        "-Xutf8",
        f"{program}/bug.py",
    ]
    argv = machine.node.command(*words)
    done = subprocess.run(argv, env=environ, cwd=tmp_path, input=network, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert (answer["code"], answer["msg"]) == (999, "internal error: ZeroDivisionError: of the test")
    found = frames(done.stderr.replace(f"{program}/", ""))
    where = {f"cni/{name}.py" for name in ("commands", "transaction", "features/addressing")}
    where |= {"base/protocol/dispatch.py", "base/kernel/neighbors.py"}
    assert where <= {path for path, _, _ in found}
    assert [line for _, _, line in found] == [line_of(path, number) for path, number, _ in found]
    ok(call(machine, "", "DEL", pod, network))


def test_a_bug_in_a_persons_command(tools: Tools, tmp_path: Path) -> None:
    """A full disk under stdout.  Python's own traceback printer cannot read lines in an archive."""
    env = {"HPN_AGENT": "", "HPN_PROGRAM_DIR": os.environ["HPN_PROGRAM_DIR"]}
    with Path("/dev/full").open("w") as full:
        argv = [tools.hpn, "version", "--licenses"]
        done = subprocess.run(argv, env=env, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    path, number, _ = frames(done.stderr)[-1]
    assert (path, line_of(path, number)) == ("ctl/main.py", "sys.stdout.write(zlib.decompress(packed).decode())")
