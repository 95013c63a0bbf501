"""Output on a terminal and elsewhere (ctl/screen.py)."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

ROOT = Path(__file__).parents[3]
SHOW = """
import sys
from ctl.screen import Table, text
rows = [("default/a", "alive", "/run/netns/a"), ("b\\x1b[31m", "dead, incomplete", "\\udcff\\n")]
table = Table(("POD", "STATE", "NETNS"), rows)
sys.stdout.write(text([table, "", "one [bold]sentence[/bold]\\nand another"]))
assert ("rich" in sys.modules) == (sys.argv[1] == "terminal")
"""
WORK = """
import sys, time
from ctl.screen import progress
for number in progress([1, 2, 3, 4, 5, 6], "Checking"):
    time.sleep(float(sys.argv[1]))
    sys.stdout.write(f"{number}\\n")
"""
SGR = re.compile(r"\x1b\[([0-9;]*)m")
PLAIN = """\
POD        STATE             NETNS
default/a  alive             /run/netns/a
b\\x1b[31m  dead, incomplete  \\udcff\\n

one [bold]sentence[/bold]
and another
"""


def run(program: str, *words: str, piped: bool = False, columns: int = 100, **environ: str) -> tuple[str, str]:
    """Return the output on stdout and stderr, which are terminals, or both pipes."""
    environ = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", **environ}
    command = [sys.executable, "-c", program, *words]
    if piped:
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout, done.stderr
    terminals = [pty.openpty() for _ in range(2)]
    for _, inner in terminals:
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=terminals[0][1], stderr=terminals[1][1]) as process:
        for _, inner in terminals:
            os.close(inner)
        said = tuple(read(outer) for outer, _ in terminals)
    assert process.returncode == 0, said
    return said[0], said[1]


def read(terminal: int) -> str:
    """Return all output until no process has the other end open."""
    said = b""
    try:
        while part := os.read(terminal, 4096):
            said += part
    except OSError:  # EIO: the other end is closed (pty(7))
        pass
    os.close(terminal)
    return said.decode().replace("\r\n", "\n")


def test_plain_where_no_terminal_is() -> None:
    assert run(SHOW, "elsewhere", piped=True) == (PLAIN, "")


def test_the_same_words_on_a_terminal() -> None:
    """A terminal shows the same words in colour; control characters in names do not reach it."""
    said, _ = run(SHOW, "terminal")
    assert [line.split() for line in SGR.sub("", said).splitlines()] == [line.split() for line in PLAIN.splitlines()]
    assert re.search(r"\x1b\[32malive", said)
    assert re.search(r"\x1b\[1;31mdead", said)
    assert "\x1b" not in SGR.sub("", said)


def test_no_colour_where_nobody_wants_it() -> None:
    for environ in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        said, _ = run(SHOW, "terminal", **environ)
        assert not any("3" in code.split(";")[0] for code in SGR.findall(said))


def test_a_narrow_terminal() -> None:
    """A narrow terminal loses no text, and no line exceeds its width."""
    said = SGR.sub("", run(SHOW, "terminal", columns=30)[0])
    table = said.partition("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 30
    assert "".join(sorted("".join(table.split()))) == "".join(sorted("".join(PLAIN.partition("\n\n")[0].split())))


def test_a_bar_for_what_takes_long() -> None:
    numbers = "1\n2\n3\n4\n5\n6\n"
    said, bar = run(WORK, "0.4")
    assert said == numbers
    assert "Checking" in bar
    assert run(WORK, "0.4", piped=True) == (numbers, "")
    assert run(WORK, "0.0") == (numbers, "")
