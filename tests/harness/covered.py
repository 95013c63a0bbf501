"""The files that a part of a long run covers: its result is valid until one of them changes.

A part covers the files that its tests reach (reach.py), and all fixtures of every conftest.py above them.  Shell
scripts and paths in pieces hide their uses, so a part that uses or names one file of FIXTURES covers the whole folder.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import reach
from guarded import FLOORS

# Every test needs these.
ALWAYS = ("pyproject.toml", "packaging/venv", "tests/conftest.py", "tests/harness/drawn.py")
FIXTURES = ("netns-fixtures", "packaging", "conf")
# A frozen binary has all of these.
PROGRAM = ("Makefile", "packaging", *FLOORS)
LAB = "tests/test_lab.py"
_NAMED = re.compile(rf"[\"'/]({'|'.join(FIXTURES)})[\"'/]")


class Tree:
    """The files of a tree as they are now, and the uses of each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = frozenset(reach.listed(root))
        self._uses = reach.graph(root, self.files, with_conftests=True)
        self._folders = cache(self._folders_of)

    def below(self, *folders: str) -> frozenset[str]:
        """Every file of these folders, and these files."""
        within = tuple(f"{folder}/" for folder in folders)
        return frozenset(path for path in self.files if path in folders or path.startswith(within))

    def reached(self, tests: Iterable[str], within: str = "") -> frozenset[str]:
        """The files that these tests cover; with ``within``, only those below that folder.

        tests/test_lab.py names the tests of all its boots.  If tests of one boot are named too, no others are followed.
        """
        found, border = set[str](), {*ALWAYS, *tests}
        boots = {path for path in self._uses.get(LAB, ()) if reach.is_test(path)}
        others = boots - border if boots & border else set()
        while border:
            found |= border
            border = {one for path in border for one in self._used(path) - (others if path == LAB else set())} - found
            border = {path for path in border if path.startswith(within)}
        return frozenset(found)

    def _used(self, path: str) -> set[str]:
        folders = set() if path in ALWAYS else self._folders(path)
        used = self._uses.get(path, set()) | (self.below(*folders) if folders else set())
        # The program's messages name pages, and the package has some: no result depends on them.
        return used if path.startswith("tests/") else {one for one in used if not one.endswith(".md")}

    def _folders_of(self, path: str) -> set[str]:
        """The folders of FIXTURES that hold the file, or that it names."""
        own = {folder for folder in FIXTURES if path.startswith(f"{folder}/")}
        if path.startswith("tests/") and path.endswith(".py") and (self.root / path).is_file():
            own |= set(_NAMED.findall((self.root / path).read_text()))
        return own

    def digest(self, files: Iterable[str], *words: str) -> str:
        """One hash of these files' present contents, and of other words that a result depends on."""
        contents = [f"{path}\0{_content(self.root / path)}" for path in sorted(set(files))]
        return hashlib.sha256("\n".join((*words, *contents)).encode()).hexdigest()


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    if not path.is_file():
        return "absent"
    mode = path.stat().st_mode & 0o111
    return f"{mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
