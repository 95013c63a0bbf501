"""No test fails because the machine is busy: every wait ends by an event, with a long bound, and no test compares a
measured time with a number of seconds.

Any other wait has a comment `# time: WHY`, in its line or above it: nothing must happen for a while, or a test repeats
an action.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEAST = 60  # seconds that an action may take on a busy machine
CLOCKS = {"monotonic", "perf_counter", "time", "process_time", "thread_time"}
# The position of a wait's bound among its positional arguments.
BOUNDS = {"settimeout": 0, "wait": 0, "join": 0, "result": 0, "until": 1, "create_connection": 1, "select": 3,
          "alarm": 0, "poll": 0, "wait_for": 1}  # fmt: skip
NAMES = {"timeout", "patience", "seconds"}
# Options of programs that bound a wait (ping, curl), in an element of their own before the seconds or with them.
OPTIONS = {"-W", "-w", "--max-time", "--timeout"}
# Seconds that a program must live which a test ends itself.
LIFE = 600
SLEEP = re.compile(r"exec sleep (\d+)")
# The functions that poll: the tests', the cluster nodes', and that of programs without a test.
POLLING = {
    "tests/support/topology.py": "until",
    "netns-fixtures/cluster/space.py": "until",
    "tests/conftest.py": "nothing_left",
}


def files() -> list[Path]:
    found = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "netns-fixtures").rglob("*.py")]
    return sorted(path for path in found if "guarded" not in path.parts)


def name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_short(node: ast.expr | None, least: float = LEAST) -> bool:
    """Whether the node is a number of too few seconds, or such a constant of its module."""
    value = node.value if isinstance(node, ast.Constant) else getattr(node, "constant", None)
    return isinstance(value, int | float) and 0 < value < least


def seconds(text: str) -> ast.Constant:
    """A word of a command as a number; 0 for any other word."""
    try:
        return ast.Constant(float(text.removesuffix("s")))
    except ValueError:
        return ast.Constant(0)


def note_constants(tree: ast.Module) -> None:
    """Note at each use of a module's constant its value."""
    known = {}
    for one in tree.body:
        target = one.targets[0] if isinstance(one, ast.Assign) else getattr(one, "target", None)
        value = getattr(one, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            known[target.id] = value.value
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in known:
            node.constant = known[node.id]  # type: ignore[attr-defined]


def words(node: ast.AST) -> list[str]:
    """The words of a command: a list's, a tuple's or a call's, with an empty one for what is no text; of a shell's
    script only those of `exec sleep`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [word for life in SLEEP.findall(node.value) for word in ("sleep", life)]
    parts = node.elts if isinstance(node, ast.List | ast.Tuple) else node.args if isinstance(node, ast.Call) else []
    return [one.value if isinstance(one, ast.Constant) and isinstance(one.value, str) else "" for one in parts]


def what_ends_too_soon(found: list[str]) -> str:
    """The rule that a command breaks, if any."""
    for option, _, value in (word.partition("=") for word in found):
        if option in OPTIONS and is_short(seconds(value)):
            return f"{option} waits for less than {LEAST} s"
    for word, value in pairwise(found):
        if word in OPTIONS and is_short(seconds(value)):
            return f"{word} waits for less than {LEAST} s"
        if word == "sleep" and is_short(seconds(value), LIFE):
            return f"a program that ends by itself in less than {LIFE} s"
    return ""


def reads_a_clock(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Call) and name(one.func) in CLOCKS for one in ast.walk(node))


def what_is_wrong(node: ast.AST) -> str:
    """The rule that the node breaks, if any."""
    if command := what_ends_too_soon(words(node)):
        return command
    if isinstance(node, ast.Call):
        called = name(node.func)
        at = BOUNDS.get(called, len(node.args))
        bounds = [*node.args[at : at + 1], *(word.value for word in node.keywords if word.arg in NAMES)]
        if any(map(is_short, bounds)):
            return f"{called} waits for less than {LEAST} s"
        if called == "sleep":
            return "it sleeps, and waits for no event"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and reads_a_clock(node) and is_short(node.right):
        return f"a deadline in less than {LEAST} s"
    if isinstance(node, ast.Compare) and any(isinstance(op, ast.Lt | ast.LtE) for op in node.ops):
        elapsed = [one for one in ast.walk(node) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub)]
        if any(map(reads_a_clock, elapsed)):
            return "an elapsed time is compared with one of another machine"
    return ""


def offences(text: str, polls: str = "") -> Iterator[str]:
    """Each place that breaks a rule without an explanation, except in the function that polls."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    explained = {one.start[0] for one in tokens if one.type == tokenize.COMMENT and one.string.startswith("# time: ")}
    tree = ast.parse(text)
    note_constants(tree)
    allowed = {id(inner) for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == polls
               for inner in ast.walk(one)}  # fmt: skip
    # What a wait repeats until it succeeds may be short.
    allowed |= {id(inner) for one in ast.walk(tree) if isinstance(one, ast.Call) and name(one.func) == "until"
                for inner in ast.walk(one) if isinstance(inner, ast.Lambda) for inner in ast.walk(inner)}  # fmt: skip
    for node in ast.walk(tree):
        wrong = what_is_wrong(node) if id(node) not in allowed else ""
        if wrong and isinstance(node, ast.expr) and not explained & {node.lineno - 1, node.lineno}:
            yield f"{node.lineno}: {wrong}: {ast.unparse(node)}"


def test_every_wait_ends_by_an_event() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{one}"
        for path in files()
        for one in offences(path.read_text(), POLLING.get(f"{path.relative_to(ROOT)}", ""))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "time.sleep(0.1)", "process.wait(10)", "subprocess.run(argv, timeout=20)", "until(done, 20)",
        "until(done, seconds=5)", "end = time.monotonic() + 5", "assert time.monotonic() - began < 1",
        "assert 9 < time.time() - began < 12", "sock.settimeout(15)", "socket.create_connection(address, 15)",
        "select.select([fd], [], [], 10)", "assert call(request, timeout=5) == b''", "signal.alarm(20)",
        "poll.poll(20)", "assert pod.ping(address, '-W', '2')", "command = ['ping', '-w', '5', address]",
        # time: it is to be found
        "kubectl('wait', '--timeout=30s')", "Popen(['sleep', '60'])", "script = 'echo; exec sleep 60'",
    ],
)  # fmt: skip
def test_what_is_found(line: str) -> None:
    assert len(list(offences(line))) == 1
    assert list(offences(f"# time: nothing comes\n{line}")) == []


def test_a_constant_is_found() -> None:
    assert len(list(offences("SOON = 5\nuntil(done, SOON)"))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "process.wait(60)", "until(done)", "time.monotonic() - began > 9", "end = time.monotonic() + 60",
        "select.select([fd], [], [], 0)", "program = 'time.sleep(1)'", "'x'.join(words)", "sock.settimeout(LONG)",
        "poll.poll(0)", "SOON = 60\nuntil(done, SOON)",
        "until(lambda: pod.ping(address, '-W', '1'))", "pod.ping(address, '-W', '60')", "Popen(['sleep', '3600'])",
    ],
)  # fmt: skip
def test_what_is_not(line: str) -> None:
    assert list(offences(line)) == []
