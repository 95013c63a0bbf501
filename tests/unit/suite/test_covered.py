"""The files that a part of a long run covers."""

import subprocess
from pathlib import Path

import pytest
from covered import Tree

FILES = {
    "pyproject.toml": "",
    "packaging/venv": "",
    "packaging/deb/build.py": "",
    "Makefile": "",
    "docs/README.md": "",
    "docs/user/addresses.md": "",
    "base/state.py": "",
    "base/journal.py": "",
    "cni/main.py": "from base.state import read\nHINT = 'see docs/README.md'",
    "cni/late.py": "",
    "cni/alone.py": "",
    "conf/rail.json": "",
    "netns-fixtures/lab": "exec guest/init",
    "netns-fixtures/guest/init": "",
    "tests/conftest.py": "from base.journal import sync",
    "tests/harness/drawn.py": "",
    "tests/netns/conftest.py": "from cni.main import run\n@pytest.fixture(autouse=True)\ndef ran(): run()",
    "tests/netns/test_add.py": "from support.host import Host",
    "tests/netns/test_lab_beside.py": 'LAB = ROOT / "netns-fixtures" / "lab"\nPAGE = "docs/user/addresses.md"',
    "tests/support/host.py": "NAME = 'cni.late'",
    "tests/unit/test_state.py": "from base.state import read",
    "tests/lab/test_vf.py": "import netns.test_add",
    "tests/lab/test_rdma.py": "",
    "tests/test_lab.py": 'BOOTS = ("tests/lab/test_vf.py", "tests/lab/test_rdma.py", "tests/netns/test_add.py")',
}
ADD, BESIDE, STATE = "tests/netns/test_add.py", "tests/netns/test_lab_beside.py", "tests/unit/test_state.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def digest(root: Path, test: str) -> str:
    tree = Tree(root)
    return tree.digest(tree.reached([test]))


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        pytest.param(ADD, {ADD}, id="itself"),
        pytest.param("base/state.py", {ADD, BESIDE, STATE}, id="an import of an import"),
        pytest.param("cni/main.py", {ADD, BESIDE}, id="of an automatic fixture"),
        pytest.param("cni/late.py", {ADD}, id="a module's name in a text"),
        pytest.param("tests/netns/conftest.py", {ADD, BESIDE}, id="conftest.py"),
        pytest.param("base/journal.py", {ADD, BESIDE, STATE}, id="of the fixtures of all tests"),
        pytest.param("pyproject.toml", {ADD, BESIDE, STATE}, id="the settings"),
        pytest.param("netns-fixtures/lab", {BESIDE}, id="a script by a path in pieces"),
        pytest.param("netns-fixtures/guest/init", {BESIDE}, id="a script of that script"),
        pytest.param("docs/user/addresses.md", {BESIDE}, id="a page that the test reads"),
        pytest.param("docs/README.md", set(), id="a page that the program names"),
        pytest.param("packaging/deb/build.py", set(), id="another folder"),
        pytest.param("cni/alone.py", set(), id="nobody uses it"),
    ],
)
def test_what_a_change_touches(root: Path, changed: str, tests: set[str]) -> None:
    before = {test: digest(root, test) for test in (ADD, BESIDE, STATE)}
    assert before == {test: digest(root, test) for test in (ADD, BESIDE, STATE)}
    (root / changed).write_text((root / changed).read_text() + "\n# changed")
    assert {test for test in before if digest(root, test) != before[test]} == tests


@pytest.mark.parametrize("new", ["tests/unit/conftest.py", "tests/unit/base.py"])
def test_a_new_file(root: Path, new: str) -> None:
    """A new conftest.py belongs to the tests below it, and a new file to those that import it."""
    (root / STATE).write_text("import unit.base\nfrom base.state import read")
    before = {test: digest(root, test) for test in (ADD, STATE)}
    (root / new).write_text("")
    assert {test for test in before if digest(root, test) != before[test]} == {STATE}


def test_removed_executable_and_linked(root: Path) -> None:
    seen = {digest(root, STATE)}
    (root / "base/state.py").chmod(0o755)
    seen.add(digest(root, STATE))
    (root / "base/state.py").unlink()
    seen.add(Tree(root).digest(["base/state.py"]))
    (root / "base/state.py").symlink_to("journal.py")
    seen.add(digest(root, STATE))
    assert len(seen) == 4


def test_words_count_too(root: Path) -> None:
    assert len({Tree(root).digest([STATE], *words) for words in ((), ("a",), ("b",))}) == 3


def test_a_boot_covers_its_own_tests(root: Path) -> None:
    """tests/test_lab.py names the tests of all boots.  A test that another one imports is covered in any boot."""
    tree = Tree(root)
    of_boot = tree.reached(["tests/test_lab.py", "tests/lab/test_vf.py"])
    assert {"tests/test_lab.py", "tests/lab/test_vf.py", ADD, "cni/late.py"} <= of_boot
    assert "tests/lab/test_rdma.py" not in of_boot
    assert {"tests/lab/test_vf.py", "tests/lab/test_rdma.py"} <= tree.reached(["tests/test_lab.py"])


def test_within(root: Path) -> None:
    """For a guard, whose file is named beside."""
    found = Tree(root).reached([ADD], within="tests/")
    assert {ADD, "tests/support/host.py", "tests/netns/conftest.py"} <= found
    assert not {path for path in found if path.startswith(("base/", "cni/"))}


def test_below(root: Path) -> None:
    assert Tree(root).below("Makefile", "cni") == {"Makefile", "cni/main.py", "cni/late.py", "cni/alone.py"}
