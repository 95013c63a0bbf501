"""The tests that a file of the tree can reach: by imports, and by names in texts."""

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path, PurePath

# A module's or a file's name: the text "ctl.devices.gids.answer" imports it, "packaging/deb/build.py" runs it.
_NAME, _WORD = re.compile(r"[\w./-]*\w"), re.compile(r"\w+")
# The roots of imports (pyproject.toml, and sys.path of the programs there).
_TOPS = ("", "tests/", "tests/harness/", "netns-fixtures/")

# Tables of the program's text, which name their files themselves.
_TEXTS = "tests/harness/guarded/"

Uses = dict[str, set[str]]


def listed(root: Path) -> list[str]:
    """Every file of the tree, including new and removed ones."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True)
    return sorted(filter(None, done.stdout.split("\0")))


def is_test(path: str) -> bool:
    return path.startswith("tests/") and bool(re.fullmatch(r"test_\w+\.py", PurePath(path).name))


def graph(root: Path, files: Iterable[str], *, with_conftests: bool = False) -> Uses:
    """For each Python file, the files that it uses.

    A test uses those of its fixtures; with ``with_conftests`` those of all fixtures above it, used or not.
    """
    index = _index(files)
    parsed = dict(_sources(root, index))
    found = {path: set(_used(path, tree, index)) - {path} for path, tree in parsed.items()}
    given: Uses = {}
    for path, tree in parsed.items():
        if path.endswith("/conftest.py"):
            for name, used in _fixtures(path, tree, index):
                given.setdefault(name, set()).update(used)
            if not with_conftests:
                found[path] = set()  # except for its fixtures: a test has those that it names
    for path in filter(is_test, found):
        above = {f"{folder}/conftest.py" for folder in PurePath(path).parents}
        found[path] |= above & found.keys()
        words, todo = set[str](), set(_asked(parsed[path]))
        while todo := (todo & given.keys()) - words:
            words |= todo
            todo = {one for name in todo for one in given[name]}
        found[path] |= {one for name in words for one in given[name] if one not in given}
    return found


def distances(uses: Uses, changed: Iterable[str]) -> dict[str, int]:
    """The distance of each file from the nearest changed one: 1 for a file that names it."""
    users: Uses = {}
    for path, used in uses.items():
        for one in used:
            users.setdefault(one, set()).add(path)
    far = dict.fromkeys(changed, 0)
    border = set(far)
    for distance in range(1, len(uses) + 2):
        border = {user for one in border for user in users.get(one, ())} - far.keys()
        far |= dict.fromkeys(border, distance)
    return far


def namesakes(changed: str, tests: Iterable[str]) -> set[str]:
    """The tests named after a file: cni/kinds/host_device.py has test_host_device_attacked.py too."""
    place = PurePath(changed)
    of_folder = place.suffix in (".c", ".h") or place.stem == "__init__"
    words = set((place.parent.name if of_folder else place.stem).split("_"))
    return {test for test in tests if words <= set(PurePath(test).stem.split("_")[1:])}


def _asked(tree: ast.Module) -> Iterator[str]:
    """The arguments of its tests, and strings that may be names in usefixtures."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _fixtures(path: str, tree: ast.Module, index: Mapping[str, str]) -> Iterator[tuple[str, set[str]]]:
    """For each function of a conftest.py: the files that it uses, and the functions there that it names."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    names = {function.name for function in functions}
    imported: Uses = {}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in node.names:
                one: ast.stmt = ast.Import([name])
                if isinstance(node, ast.ImportFrom):
                    one = ast.ImportFrom(node.module, [name], 0)
                imported[name.asname or name.name] = set(_used(path, ast.Module([one], []), index))
    for function in functions:
        words = set(_WORD.findall(ast.unparse(function))) - {function.name}
        yield function.name, {one for word in words & imported.keys() for one in imported[word]} | (words & names)


def _index(files: Iterable[str]) -> dict[str, str]:
    """The names of each file: its module, its path, and each unique end of the path."""
    names: dict[str, set[str]] = {}
    for path in files:
        parts = PurePath(path).parts
        for start in range(len(parts)):
            if start < len(parts) - 1 or "." in path:
                names.setdefault("/".join(parts[start:]), set()).add(path)
        if path.endswith(".py"):
            for top in _TOPS:
                if path.startswith(top):
                    module = path[len(top) :].removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                    names.setdefault(module, set()).add(path)
        if "/" not in path:  # "Makefile", a word that could be anything elsewhere
            names[f"/{path}"] = {path}
    return {name: path for name, (path, *others) in names.items() if not others}


def _sources(root: Path, index: Mapping[str, str]) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(set(index.values())):
        if path.endswith(".py") and not path.startswith(_TEXTS) and (root / path).exists():
            with suppress(SyntaxError):  # the linters report it
                yield path, ast.parse((root / path).read_bytes())


def _used(path: str, parsed: ast.Module, index: Mapping[str, str]) -> Iterator[str]:
    nodes = [*ast.walk(parsed)]
    spoken = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    package = str(PurePath(path).parent).replace("/", ".") if path.endswith("/__init__.py") else ""
    for node in nodes:
        names = list[str]()
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f if (f := f"{node.module}.{n.name}") in index else str(node.module) for n in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken:
            names = list(_in_text(node.value, package))
        elif isinstance(node, ast.BinOp):
            names = list(_joined(node))
        elif isinstance(node, ast.List | ast.Tuple | ast.Call):
            names = list(_started(node.args if isinstance(node, ast.Call) else node.elts))
        yield from (index[name] for name in names if name in index)


def _started(words: list[ast.expr]) -> Iterator[str]:
    """The package that "-m", "ctl" starts."""
    texts = [str(word.value) if isinstance(word, ast.Constant) else "" for word in words]
    yield from (f"{name}.__main__" for option, name in pairwise(texts) if option == "-m")


def _joined(path: ast.BinOp) -> Iterator[str]:
    """The path that ``ROOT / "packaging" / "deb" / "build.py"`` ends with."""
    pieces, node = list[str](), path
    while isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant) and isinstance(node.right.value, str):
        pieces.insert(0, node.right.value)
        if not isinstance(node.left, ast.BinOp):
            break
        node = node.left
    if len(pieces) > 1:
        yield "/".join(pieces)


def _in_text(text: str, package: str) -> Iterator[str]:
    """A package's table may name its modules by their last names."""
    if text.isidentifier():
        yield f"{package}.{text}"
        yield f"/{text}"
        return
    for found in _NAME.findall(text):
        if "/" in found or "." in found:
            yield found.strip("./")
            while "." in (found := found.rpartition(".")[0]):  # base.kernel.netns.run_in
                yield found
