"""The selection of `make check`: it includes every test that a change reaches, nearest first."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import check
import pytest
import reach
import touched
from guarded import Guard, Place, read
from touched import Work

TREE = {
    "cni/__init__.py": "",
    "cni/__main__.py": "from cni.main import run",
    "cni/main.py": "from cni import features\n\ndef run(): features.gids.wait()",
    "cni/features/__init__.py": "ROWS = ('gids',)",
    "cni/features/gids.py": "",
    "cni/late.py": "",
    "cni/alone.py": '"""Beside cni.main."""\nNAME = "cni.late"',
    "Makefile": "",
    "packaging/deb/build.py": "",
    "packaging/launcher/launcher.c": "",
    "tests/conftest.py": "import pytest\nfrom host import Host\n\n@pytest.fixture\ndef host(): yield Host()",
    "tests/host.py": "from cni.main import run\n\nclass Host: pass",
    "tests/unit/test_features.py": "from cni.features.gids import wait",
    "tests/unit/test_late.py": "import cni.alone",
    "tests/unit/base/protocol/test_spec.py": "host = 'gids'",
    "tests/unit/base/protocol/test_process.py": "import sys\nCNI = [sys.executable, '-m', 'cni']",
    "tests/unit/packaging/test_deb.py": "BUILD = ROOT / 'packaging/deb/build.py'",
    "tests/unit/packaging/test_root.py": "BUILD = ROOT / 'packaging' / 'deb' / 'build.py'",
    "tests/netns/test_add.py": "def test_add(host): pass",
    "tests/system/test_launcher.py": "",
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path, text in TREE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(touched, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        pytest.param(
            "cni/features/gids.py",
            {"unit/test_features.py": 1, "netns/test_add.py": 4, "unit/base/protocol/test_process.py": 4},
            id="by import, by a row, by a fixture, by a program",
        ),
        pytest.param("cni/late.py", {"unit/test_late.py": 2}, id="by a name in a text, not in a docstring"),
        pytest.param(
            "packaging/deb/build.py",
            {"unit/packaging/test_deb.py": 1, "unit/packaging/test_root.py": 1},
            id="by a path, whole and in pieces",
        ),
        pytest.param("tests/host.py", {"netns/test_add.py": 1}, id="what a fixture uses"),
        pytest.param(
            "tests/conftest.py",
            {f"{path.removeprefix('tests/')}": 1 for path in TREE if reach.is_test(path)},
            id="conftest.py",
        ),
        pytest.param("Makefile", {}, id="nothing"),
    ],
)
def test_reached(tree: Path, changed: str, tests: dict[str, int]) -> None:
    far = reach.distances(reach.graph(tree, TREE), [changed])
    assert {path: far[path] for path in far if reach.is_test(path)} == {f"tests/{t}": n for t, n in tests.items()}


def test_removed_is_reached(tree: Path) -> None:
    (tree / "cni/features/gids.py").unlink()
    assert reach.distances(reach.graph(tree, TREE), ["cni/features/gids.py"])["tests/unit/test_features.py"] == 1


def test_a_file_that_is_no_python(tree: Path) -> None:
    """The linters report the file, and the tests of others run regardless."""
    (tree / "cni/main.py").write_text("def run(:")
    assert reach.distances(reach.graph(tree, TREE), ["cni/main.py"])["tests/netns/test_add.py"] == 2


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("cni/features/gids.py", "tests/unit/ctl/devices/test_gids.py"),
        ("cni/features/__init__.py", "tests/unit/test_features.py"),
        ("packaging/launcher/place.c", "tests/system/test_launcher.py"),
        ("docs/user/commands.md", "tests/netns/test_pages.py"),
    ],
)
def test_called_after(changed: str, test: str) -> None:
    other = "tests/unit/test_netlink.py"
    assert touched.called_after(changed, [test, other]) == {test}


def test_what_a_guard_names_is_nearest() -> None:
    far = {"tests/unit/test_short.py": 3, "tests/unit/test_long.py": 4, "tests/unit/test_far.py": 5, "cni/a.py": 0}
    named = [
        Guard("cni/a.py", "a-name", ("tests/unit/test_short.py::test_it", "tests/unit/test_long.py::test_it")),
        Guard("cni/a.py", "a-name", ("tests/system/test_it.py", "tests/netns/test_unreached.py")),
        Guard("cni/b.py", "a-name", ("tests/unit/test_far.py",)),
    ]
    found = sorted(
        touched.works(["cni/a.py"], far, named, {"tests/unit/test_long.py": 60, "tests/unit/test_far.py": 2})
    )
    assert [(work.near, work.tests) for work in found] == [
        (0, ("tests/netns/test_unreached.py",)),
        (0, ("tests/unit/test_long.py::test_it",)),
        (0, ("tests/unit/test_short.py",)),
        (4, ("tests/unit/test_long.py",)),
        (5, ("tests/unit/test_far.py",)),
    ]


def work(near: int, seconds: float, name: str) -> Work:
    return Work(near, seconds, name, (name,))


def test_the_nearest_first_and_what_has_no_time_is_left() -> None:
    works = [
        work(3, 1, "far"),
        work(2, 4, "nearer, longer"),
        work(1, 2, "near"),
        work(2, 50, "too long"),
        work(4, 8, "late"),
        work(0, 9, "its own"),
    ]
    taken, left = touched.chosen(works, 20)
    assert [w.file for w in taken] == ["its own", "near", "far", "nearer, longer"]
    assert [w.file for w in left] == ["too long", "late"]


def test_batches() -> None:
    """The batches lose no test, and the first is short."""
    works = [work(1, 5, f"tests/unit/test_{n}.py") for n in range(40)]
    batches = [*check.batches(works)]
    assert [test for batch in batches for test in batch] == [w.file for w in works]
    assert len(batches[0]) == 1
    assert max(map(len, batches)) == 6


HOOK = """
import importlib.util, sys
sys.path[:0] = {folders}
spec = importlib.util.spec_from_file_location("theirs", {file})
theirs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(theirs)
pytest_runtest_teardown = theirs.pytest_runtest_teardown
"""
WAITS = """
import os, time
def test_it(): time.sleep(max(0, float(os.environ["HPN_UNTIL"]) - time.monotonic()) + {longer})
def test_next(): assert False
"""


@pytest.mark.parametrize(("longer", "patience"), [(0.01, 600.0), (600, 0.1)], ids=["by itself", "interrupted"])
def test_what_has_no_time_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longer: float, patience: float
) -> None:
    """No test begins after the deadline, and a running one is interrupted."""
    monkeypatch.setattr(check, "PATIENCE", patience)
    tests = Path(check.__file__).parents[1]
    hook = HOOK.format(folders=[f"{tests.parent}", f"{tests}", f"{tests}/harness"], file=repr(f"{tests}/conftest.py"))
    (tmp_path / "conftest.py").write_text(hook)
    (tmp_path / "test_it.py").write_text(WAITS.format(longer=longer))
    run = check.Run("it", "unit", (f"{tmp_path}/test_it.py",), tmp_path / "t")
    (done,) = check.tests([run], time.monotonic() + 1)  # time: it is to be over
    assert done.status in check.CUT
    named = check.Run("it", "unit", ("tests/unit/test_a.py", "-q", "tests/unit/test_b.py"), tmp_path)
    assert check.unfinished(named, done) == ["tests/unit/test_a.py", "tests/unit/test_b.py"]
    assert "HPN_UNTIL" not in os.environ


def test_other_tiers_are_named() -> None:
    boots = {"VFs": ((), ("tests/lab/test_sriov.py",)), "RDMA": ((), ("tests/lab/test_rdma.py",))}
    far = {"tests/lab/test_sriov.py": 1, "tests/lab/test_rdma.py": 2, "tests/system/test_peers.py": 0, "cni/a.py": 0}
    assert touched.elsewhere(far, boots) == ["tests/system/test_peers.py", "tests/test_lab.py::test_in_the_lab[VFs]"]


@pytest.fixture
def git(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Make a clone of one commit; return a function that runs git in it."""
    monkeypatch.delenv("BASE", raising=False)
    for name, value in (("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_SYSTEM", "/dev/null")):
        monkeypatch.setenv(name, value)
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "somebody@example.com")

    def run(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=tree, capture_output=True, text=True, check=True).stdout.strip()

    run("init", "-b", "main")
    run("add", ".")
    run("commit", "-m", "all")
    return run


def test_compared_with(tree: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert touched.changed(touched.base()) == sorted(TREE)  # the first commit, with nothing before it
    first = git("rev-parse", "HEAD")
    (tree / "cni/main.py").write_text("")
    assert touched.changed(touched.base()) == ["cni/main.py"]
    git("commit", "-am", "main")
    assert touched.base() == first  # the commit before, because the tree is clean
    second = git("rev-parse", "HEAD")
    git("switch", "-c", "other")
    (tree / "cni/late.py").unlink()
    git("commit", "-am", "one")
    (tree / "cni/new.py").write_text("")
    assert touched.base() == second
    assert touched.changed(second) == ["cni/late.py", "cni/new.py"]
    monkeypatch.setenv("BASE", first)
    assert touched.changed(touched.base()) == ["cni/late.py", "cni/main.py", "cni/new.py"]
    monkeypatch.setenv("BASE", "nothing")
    with pytest.raises(SystemExit, match="BASE=nothing"):
        touched.base()


def guard(file: str, name: str, line: str, function: str = "") -> Guard:
    return Guard(file, name, ("tests/unit/base/protocol/test_spec.py",), "", function, (Place(line),))


def test_guards_of_changed_functions(tree: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    function = "def {0}() -> None:\n    if {0}:\n        return\n    print()\n"
    text = "one = 1\n" + function.format("two") + function.format("three")
    source = "static int {0}(void)\n{{\n    return {0};\n}}\n"
    (tree / "cni/main.py").write_text(text)
    (tree / "cni/main.c").write_text(source.format("four") + source.format("five"))
    git("add", ".")
    git("commit", "-m", "functions")
    (tree / "cni/main.py").write_text(text.replace("print()", "print(2)", 1))
    (tree / "cni/main.c").write_text(source.format("four") + source.format("five").replace("return", "return 1 +"))
    (tree / "cni/new.py").write_text("one = 1\n")
    table = [guard(f, n, f"if {n}:", n) for f in ("cni/main.py", "cni/late.py") for n in ("two", "three")]
    table += [guard(f, "one", "one = 1") for f in ("cni/main.py", "cni/late.py", "cni/new.py")]
    table += [guard("cni/main.c", n, f"return {n};", n) for n in ("four", "five")]
    monkeypatch.setattr(touched, "GUARDS", table)
    assert [g.title for g in touched.in_changed_functions("HEAD")] == [
        "cni/main.py:two",
        "cni/new.py:one",
        "cni/main.c:five",
    ]
    files = ["cni/main.py", "cni/main.c", "Makefile"]
    assert [g.title for g in touched.guards("HEAD", files)] == [
        "cni/main.py:two",
        "cni/new.py:one",
        "cni/main.py:three",
        "cni/main.py:one",
    ]


def test_guards_of_changed_rows(tree: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tree / "tests/harness/guarded/cni.toml"
    rows.parent.mkdir(parents=True)
    row = '{0}.{0} = {{ line = "if {0}:", tests = [\n    "unit/test_{0}.py",\n] }}\n'
    first = f'["cni/main.py"]\n{row.format("one")}{row.format("two")}\n["cni/late.py"]\n{row.format("one")}'
    rows.write_text(first)
    git("add", ".")
    git("commit", "-m", "rows")
    rows.write_text(first.replace("unit/test_two", "unit/test_three") + row.format("two"))
    monkeypatch.setattr(touched, "GUARDS", [*read(rows.read_text())])
    wanted = ["cni/main.py:two", "cni/late.py:two"]
    assert [g.title for g in touched.in_changed_functions("HEAD")] == wanted
    assert [g.title for g in touched.guards("HEAD", ["Makefile"])] == wanted


def test_the_table_names_test_files() -> None:
    assert [path for path in touched.seconds() if not (Path(__file__).parents[3] / path).exists()] == []


def test_the_table_is_made_of_a_report(tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    cases = [("unit.test_a", 2), ("unit.test_a.TestIt", 2), ("unit.test_short", 1), ("system.test_b", 9)]
    text = "".join(f'<testcase classname="tests.{name}" name="test_it" time="{time}"/>' for name, time in cases)
    report.write_text(f"<testsuites><testsuite>{text}</testsuite></testsuites>")
    assert touched.table(report) == "   4.0 tests/unit/test_a.py\n"
