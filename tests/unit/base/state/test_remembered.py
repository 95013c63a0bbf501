"""What a process remembers of files, while anything changes them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings, strategies
from support import system_calls
from support.pages import ROOT

from base.protocol.errors import IoFailure
from base.state import remembered


class Reader:
    """Reads files of one line, and notes which."""

    def __init__(self) -> None:
        self.read = list[str]()
        self.lost = ""  # a file that the disk cannot read

    def text(self, file: str) -> str | None:
        name = os.path.basename(file)
        if name.endswith(".tmp"):
            return None
        self.read.append(name)
        if name == self.lost:
            raise IoFailure(f"reading {file}")
        return Path(file).read_text()

    def values(self, folder: Path) -> dict[str, str]:
        """The values, and which files were read for them."""
        self.read.clear()
        return {os.path.basename(file): f"{value}" for file, value in remembered.files(f"{folder}", self.text)}


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def folder(tmp_path: Path, reader: Reader) -> Path:
    """A directory with three files, all read."""
    path = tmp_path / "folder"
    path.mkdir()
    for name in ("a", "b", "c"):
        (path / name).write_text(name)
    assert reader.values(path) == {"a": "a", "b": "b", "c": "c"}
    return path


def in_place(folder: Path) -> None:
    (folder / "b").write_text("new")


def by_another_process(folder: Path) -> None:
    subprocess.run(["sh", "-c", "printf new >b"], cwd=folder, check=True)


def as_state_files_are_written(folder: Path) -> None:
    (folder / "b.tmp").write_text("new")
    os.replace(folder / "b.tmp", folder / "b")


def removed_and_made_anew(folder: Path) -> None:
    (folder / "b").unlink()
    in_place(folder)


def moved_from_elsewhere(folder: Path) -> None:
    (folder.parent / "b").write_text("new")
    (folder.parent / "b").rename(folder / "b")


def by_a_link(folder: Path) -> None:
    (folder / "b").unlink()
    (folder.parent / "b").write_text("new")
    (folder / "b").symlink_to(folder.parent / "b")


@pytest.mark.parametrize(
    "change",
    [in_place, by_another_process, as_state_files_are_written, removed_and_made_anew, moved_from_elsewhere, by_a_link],
)
def test_a_change(reader: Reader, folder: Path, change: Callable[[Path], None]) -> None:
    """The file is read again, and no other one."""
    assert (reader.values(folder)["b"], reader.read) == ("b", [])
    change(folder)
    assert (reader.values(folder), reader.read) == ({"a": "a", "b": "new", "c": "c"}, ["b"])
    assert (reader.values(folder)["b"], reader.read) == ("new", [])


def test_a_file_cut_short(reader: Reader, folder: Path) -> None:
    """Without being opened."""
    os.truncate(folder / "b", 0)
    assert reader.values(folder) == {"a": "a", "b": "", "c": "c"}


def test_a_file_less_and_one_more(reader: Reader, folder: Path) -> None:
    (folder / "a").unlink()
    (folder / "b").rename(folder.parent / "b")
    (folder / "d").write_text("d")
    assert reader.values(folder) == {"c": "c", "d": "d"}


def test_a_failure(reader: Reader, folder: Path) -> None:
    """It is no value: the file is read until that succeeds."""
    reader.lost = "b"
    in_place(folder)
    for _ in range(2):
        assert (reader.values(folder), reader.read) == ({"a": "a", "b": f"reading {folder}/b", "c": "c"}, ["b"])
    reader.lost = ""
    assert reader.values(folder) == {"a": "a", "b": "new", "c": "c"}


def moved_away(folder: Path) -> None:
    folder.rename(folder.parent / "old")


def removed(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


@pytest.mark.parametrize("ends", [moved_away, removed])
def test_another_directory_at_the_path(reader: Reader, folder: Path, ends: Callable[[Path], None]) -> None:
    """Its inode may be that of the earlier one."""
    ends(folder)
    assert reader.values(folder) == {}
    folder.mkdir()
    (folder / "a").write_text("new")
    assert reader.values(folder) == {"a": "new"}
    (folder / "a").unlink()
    assert reader.values(folder) == {}


def test_two_paths_of_one_directory(reader: Reader, folder: Path) -> None:
    (folder.parent / "alias").symlink_to(folder)
    assert (reader.values(folder.parent / "alias")["b"], reader.read) == ("b", [])
    in_place(folder)
    assert reader.values(folder.parent / "alias")["b"] == reader.values(folder)["b"] == "new"


def test_no_directory(reader: Reader, folder: Path) -> None:
    assert reader.values(folder / "none") == reader.values(folder / "a") == {}


def test_more_changes_than_the_kernel_keeps(reader: Reader, folder: Path) -> None:
    """Everything is read again."""
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for _ in range(most // 2 + 1):
        for name in ("x", "y"):  # two reports of one kind are one
            (folder / name).touch()
            (folder / name).unlink()
    in_place(folder)
    assert (reader.values(folder)["b"], sorted(reader.read)) == ("new", ["a", "b", "c"])
    in_place(folder)
    assert (reader.values(folder)["b"], reader.read) == ("new", ["b"])


def test_a_child_process(reader: Reader, folder: Path) -> None:
    """It has values of its own, and takes none of its parent's reports."""
    in_place(folder)
    if not (child := os.fork()):
        os._exit(reader.values(folder) != {"a": "a", "b": "new", "c": "c"})
    assert os.waitpid(child, 0)[1] == 0
    assert (reader.values(folder)["b"], reader.read) == ("new", ["b"])


NAMES = ("a", "b", "c.tmp")
KINDS = ("write", "replace", "move in", "move out", "remove", "truncate", "the directory")
STEPS = strategies.tuples(strategies.sampled_from(KINDS), strategies.sampled_from(NAMES), strategies.text("xy"))


def take(folder: Path, kind: str, name: str, text: str) -> None:
    """Change something in the directory, or the directory."""
    file, beside = folder / name, folder.parent / "beside"
    with suppress(FileNotFoundError):
        match kind:
            case "write":
                file.write_text(text)
            case "replace":
                file.replace(folder / NAMES[0])
            case "move in":
                beside.write_text(text)
                beside.replace(file)
            case "move out":
                file.replace(beside)
            case "remove":
                file.unlink()
            case "truncate":
                os.truncate(file, len(text))
            case _:
                shutil.rmtree(folder)
                folder.mkdir()


@settings(deadline=None, derandomize=True)
@given(strategies.lists(strategies.tuples(STEPS, strategies.booleans()), max_size=12))
def test_any_changes(steps: list[tuple[tuple[str, str, str], bool]]) -> None:
    """The values are those of the files, whichever changes come between two questions."""
    with TemporaryDirectory(prefix="hpn-test-") as place:
        folder, reader = Path(place, "folder"), Reader()
        folder.mkdir()
        for step, asks in [*steps, (("remove", "none", ""), True)]:
            take(folder, *step)
            if asks:
                there = {file.name: file.read_text() for file in folder.iterdir() if file.suffix != ".tmp"}
                assert reader.values(folder) == there


OF_A_COMMAND = """
import os, sys
from base.state import remembered
def watches():
    return [one for one in os.scandir("/proc/self/fd") if "inotify" in os.readlink(one)]
for _ in range(2):
    assert remembered.files(sys.argv[1], open)
assert not watches()
assert remembered.files(sys.argv[1], open)
assert watches()
"""


def test_a_process_for_one_command(folder: Path) -> None:
    """It begins no watch for a few questions, because its end takes long, and others of root need instances too."""
    subprocess.run([sys.executable, "-c", OF_A_COMMAND, f"{folder}"], cwd=ROOT, check=True)


WITHOUT_INSTANCE = """
import sys
from pathlib import Path
from base.state import remembered
Path("/proc/sys/user/max_inotify_instances").write_text("0")
file = Path(sys.argv[1], "b")
for text in ("one", "two", "three", "four"):
    file.write_text(text)
    assert (f"{file}", text) in remembered.files(sys.argv[1], lambda path: Path(path).read_text())
"""


def test_no_inotify_instance_is_left(folder: Path) -> None:
    """Every file is read each time.  A user namespace has its own limit."""
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", WITHOUT_INSTANCE, f"{folder}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr:
        pytest.skip("this machine lets no user make a user namespace")
    assert done.returncode == 0, done.stderr


def test_the_work_does_not_grow(reader: Reader, folder: Path) -> None:
    """With ten times as many files it makes the same system calls, also after a change."""

    def work() -> None:
        reader.values(folder)
        in_place(folder)
        reader.values(folder)

    few = system_calls.made_by(work)
    for number in range(300):
        (folder / f"{number}").write_text("")
    reader.values(folder)
    assert system_calls.made_by(work) == few
