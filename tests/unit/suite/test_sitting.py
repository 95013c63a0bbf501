"""The sittings of a long run: results that stay valid, what is missing, an interrupt, and a part's counts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import drawn
import pytest
import sitting
from covered import Tree
from sitting import FOLDER, REPORT, Book, Part, Sitting
from support.topology import until

DAY = "2026-11-24"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    (tmp_path / "tree").mkdir()
    for name in ("a", "b"):
        (tmp_path / "tree" / name).write_text("")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "tree", check=True)
    monkeypatch.setenv(drawn.VARIABLE, DAY)
    return Tree(tmp_path / "tree")


def python(name: str, code: str = "", *covers: str, **options: int) -> Part:
    return Part("it", name, (sys.executable, "-c", code), frozenset(covers), **options)


def of(tree: Tree, *parts: Part) -> Book:
    return Book(tree.root.parent / "cache" / "notes", tree, parts)


def test_results_add_up(tree: Tree) -> None:
    """A result is valid until a file that its part covers changes; a work tree laid anew changes nothing."""
    parts = [python("a", "", "a"), python("both", "", "a", "b"), python("b", "", "b")]
    book = of(tree, *parts)
    Sitting(book).lane(parts[:2])
    assert [part.name for part in book.missing()] == ["b"]
    Sitting(of(tree, *parts)).lane(of(tree, *parts).missing())
    assert of(tree, *parts).missing() == []
    (tree.root / "c").write_text("new")
    assert of(tree, *parts).missing() == []
    (tree.root / "b").write_text("changed")
    assert [part.name for part in of(tree, *parts).missing()] == ["both", "b"]
    (tree.root / "b").write_text("")
    assert of(tree, *parts).missing() == []
    other = [python("a", "pass", "a"), python("both", "", "a", "b", "c"), parts[2]]
    assert [part.name for part in of(tree, *other).missing()] == ["a", "both"], "another command, and one more file"


def test_a_failure_is_missing_and_draws_again(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, pathlib; pathlib.Path({!r}).open('a').write(os.environ['HPN_DRAW'] + ' '); raise SystemExit({})"
    out = tree.root.parent / "out"
    part = python("it", code.format(f"{out}", 3), "a", later=2)
    Sitting(of(tree, part)).lane([part])
    monkeypatch.setenv(drawn.VARIABLE, "2027-01-01")
    book = of(tree, part)
    assert book.missing() == [part]
    Sitting(book).lane(book.missing())
    (tree.root / "a").write_text("mended")
    mended = python("it", code.format(f"{out}", 0), "a", later=2, every=False)
    Sitting(of(tree, mended)).lane([mended])
    assert of(tree, mended).missing() == []
    assert out.read_text() == "2026-11-26,all 2026-11-26,all 2027-01-03 "
    assert [note.status for note in of(tree, mended).all_notes()] == [3, 3, 0]


def test_files_that_change_meanwhile(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    """The result belongs to no state of the files."""
    part = python("it", f"open({str(tree.root / 'a')!r}, 'w').write('x')", "a")
    Sitting(of(tree, part)).lane([part])
    assert "not noted, because its files changed meanwhile" in capsys.readouterr().out
    assert of(tree, part).all_notes() == []


def test_an_interrupt_and_what_is_missing_then(tree: Tree, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    todo = [
        python("passes", "import os; print('  1 s  x'); assert os.environ['HPN_DRAW'] == '2026-11-24,all'"),
        python("fails", "raise SystemExit(3)"),
        python("lasts", f"open({str(begun)!r}, 'w').close(); {child}"),
        python("is not begun", "raise SystemExit('it was')"),
    ]
    book = of(tree, *todo)
    one = Sitting(book)
    lane = Thread(target=one.lane, args=(todo,))
    lane.start()
    until(begun.exists, seconds=60)
    one.end()
    lane.join(60)
    assert not lane.is_alive()
    with (tmp_path / "cache" / "notes").open("a") as half:
        half.write('{"title": "it: la')
    assert [(it.title, it.status, it.counts) for it in book.notes()] == [
        ("it: passes", 0, {"guards": 1}), ("it: fails", 3, {"guards": 0})
    ]  # fmt: skip
    assert [part.name for part in book.missing()] == ["fails", "lasts", "is not begun"]


RUN = """
import sys
sys.path[:0] = {path}
from pathlib import Path
from covered import Tree
from sitting import Book, Part, sit
parts = [
    Part(tier, name, (sys.executable, "-c", code), frozenset(), later=later, apart=apart)
    for tier, name, code, later, apart in {parts}
]
times = dict.fromkeys(("it", "unit", "lab", "cluster"), 7200.0)
raise SystemExit(sit(Book(Path({file!r}), Tree(Path({root!r})), parts), times))
"""


@pytest.mark.parametrize(("last", "status"), [("pass", 0), ("raise SystemExit(1)", 1), ("wait", 130)])
def test_what_is_missing_is_told_at_both_ends(tree: Tree, tmp_path: Path, last: str, status: int) -> None:
    """Also after an interrupt, which a shell's background job would ignore."""
    wait = f"open({str(tmp_path / 'begun')!r}, 'w').close(); import time; time.sleep(600)"
    parts = [
        ("it", name, code, 0, False) for name, code in (("passes", ""), ("last", wait if last == "wait" else last))
    ]
    code = RUN.format(path=sys.path, parts=parts, file=f"{tmp_path}/notes", root=f"{tree.root}")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        if last == "wait":
            until((tmp_path / "begun").exists, seconds=60)
            run.terminate()
        output, _ = run.communicate()
    assert run.returncode == status
    before, after = output.split("\n\n")
    assert before.splitlines()[0] == "2 of 2 parts are missing: about 4 h 0 min"
    failed = " (failed)" if status == 1 else ""
    left = ["1 of 2 parts are missing: about 1 min", f"  1 it, 1 min: last{failed}"]
    assert after.splitlines() == (left if status else ["0 of 2 parts are missing"])


def test_lanes_run_beside_each_other(tree: Tree, tmp_path: Path) -> None:
    """Those of this machine, each tier that is apart, and two runs of each: every part here waits for all others."""
    code = (
        f"import sys, time; from pathlib import Path; here, until = Path({str(tmp_path / 'met')!r}), time.time() + 60\n"
        "(here / {!r}).touch()\n"
        "while len([*here.iterdir()]) < 6: time.sleep(0.01) if time.time() < until else sys.exit(1)"
    )
    (tmp_path / "met").mkdir()
    parts = [
        (tier, f"{later}", code.format(f"{tier}{later}"), later, tier != "unit")
        for tier in ("unit", "lab", "cluster")
        for later in (0, 1)
    ]
    run = RUN.format(path=sys.path, parts=parts, file=f"{tmp_path}/notes", root=f"{tree.root}")
    told = subprocess.run([sys.executable, "-c", run], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "0 of 6 parts are missing" in told


def test_expected_durations(tree: Tree) -> None:
    """The last duration of a part, of a success if possible; else its tier's by size; else a given one."""
    known, failed = python("known", size=4), python("failed")
    parts = [known, failed, python("unknown", size=3), Part("other", "it", (), frozenset(), size=2)]
    book = of(tree, *parts)
    for part, seconds, status in ((known, 10, 0), (known, 36, 0), (known, 5, 1), (failed, 4, 1)):
        book.add(part, DAY, "", seconds, status, {})
    assert book.seconds({"it": 1.0, "other": 7.0}) == {
        "it: known": 36, "it: failed": 4, "it: unknown": 3 * (36 + 4) / (4 + 1), "other: it": 14
    }  # fmt: skip


def test_a_note_of_another_version_is_no_note(tree: Tree) -> None:
    part = python("it")
    of(tree, part).add(part, DAY, "", 1, 0, {})
    file = tree.root.parent / "cache" / "notes"
    file.write_text(json.dumps({"commit": "c" * 40, "title": "it: it", "status": 0}) + "\n" + file.read_text())
    assert [note.title for note in of(tree, part).notes()] == ["it: it"]


def test_what_a_part_took(tree: Tree, tmp_path: Path) -> None:
    """The counts of a part come from the tests' own report, and its folder is its own."""
    test = tmp_path / "test_it.py"
    test.write_text(
        "import drawn\n\ndef test_it(tmp_path):\n    for step in drawn.steps():\n        if step == 30: break\n"
        "\ndef test_fails():\n    drawn.count(7, 'damages')\n    raise SystemExit(1)\n"
    )
    root = sitting.ROOT
    options = ("-c", f"{root}/pyproject.toml", f"--rootdir={root}", "-p", "conftest", f"{test}")
    part = Part("unit", "it", (*sitting.TESTS, *options), frozenset())
    book = of(tree, part)
    Sitting(book).lane([part])
    (found,) = book.notes()
    assert (found.status, found.counts) == (1, {"tests": 2, "failed": 1, "kills": 30, "damages": 7})


def test_alone(tree: Tree, tmp_path: Path) -> None:
    """A part that is apart needs no common places of its own; FOLDER and REPORT are replaced."""
    code = "import sys, os; open(sys.argv[1], 'w').write(repr((os.environ.get('ALONE'), *sys.argv[2:])))"
    for name, apart in (("beside", False), ("apart", True)):
        words = (sys.executable, "-c", code, f"{tmp_path}/{name}", FOLDER, REPORT)
        part = Part("it", name, words, frozenset(), apart=apart)
        Sitting(of(tree, part), ("env", "ALONE=yes")).lane([part])
    beside, apart = (eval((tmp_path / name).read_text()) for name in ("beside", "apart"))
    assert (beside[0], apart[0]) == ("yes", None)
    assert apart[2] == f"{apart[1]}/report.xml"
    assert beside[1] != apart[1]
    assert not os.path.exists(apart[1])


def test_notes_are_outside_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import sys; sys.path[:0] = {sys.path}; import sitting; print(sitting.CACHE)"

    def printed(**variables: str) -> str:
        env = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"} | variables
        return subprocess.check_output([sys.executable, "-c", code], env=env, text=True).strip()

    assert printed(HOME="/somewhere") == "/somewhere/.cache/hpn-cni"
    assert printed(HOME="/somewhere", XDG_CACHE_HOME="/cache") == "/cache/hpn-cni"
