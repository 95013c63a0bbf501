"""The permitted imports of each folder."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import quantiles

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = ("base", "hardware", "cni", "ipam", "agent", "node", "ctl")
GUIDE = "".join((ROOT / "docs" / "develop" / name).read_text() for name in ("guide.md", "testing.md"))
FILES = {
    ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
    for package in FLOORS
    for p in sorted((ROOT / package).rglob("*.py"))
}
MODULES = pytest.mark.parametrize("module", FILES)

BASE = ("base.kernel", "base.protocol", "base.state")
# The imports of our packages that each floor may have.  A package includes all of its modules; the longest name
# decides.
OURS = {
    "base": {"base"},
    "base.kernel": {"base.kernel", "base.protocol.result"},
    "base.kubernetes": {"base.kubernetes", *BASE},
    "base.protocol": {"base.protocol"},
    "base.state": {*BASE},
    "hardware": {"hardware", "base"},
    "ipam": {"ipam", *BASE},
    "ipam.migrate": {"ipam", "base.kubernetes", *BASE},
    "ipam.stores": {"ipam.stores", "ipam.ranges", "base.protocol", "base.state"},
    "ipam.cluster": {
        *("ipam.cluster", "ipam.allocation", "ipam.pool", "ipam.ranges", "ipam.stores", "ipam.withheld"),
        *BASE,
    },
    "ipam.cluster.backends": {"ipam.cluster", "base.kubernetes", *BASE},
    "cni": {"cni", "hardware", *BASE},
    "cni.kinds": {"cni.kinds", "cni.features", "cni.config", "cni.models", "hardware", *BASE},
    "cni.features": {"cni.features", "cni.models", *BASE},
    "agent": {"agent", "cni", "ipam", *BASE},
    "node": {"node", "ipam", "hardware", "base"},
    # A claim's configuration is refused as ADD would refuse it.
    "node.dra.claims": {"node", "cni.config", "hardware", "base"},
    "node.dra.slices": {"node.dra", "node.kubelet", "node.background", "node.log", "node.model", "hardware", "base"},
    "ctl": {
        "ctl",
        "agent.main",
        "node.main",
        "node.config",
        "node.dra.api",
        "node.dra.slices",
        "node.flags",
        "node.kubelet.directory",
        "node.model",
        "node.offer.cdi",
        "node.offer.offers",
        "cni",
        "ipam",
        "hardware",
        "base",
    },
}
# The modules that change attachments, leases or the node.
CHANGES = (
    *("cni.main", "cni.commands", "cni.transaction", "cni.collect", "cni.repair"),
    *("ipam.main", "ipam.migrate", "agent", "node.main"),
)
# The commands that only show something import none of CHANGES.
SHOWS = (
    "selection",
    "inspection",
    "hints",
    "fabric",
    "devices",
    "fabric.wiring",
    "plan",
    "top",
    "doctor",
)
# For each library, the modules that may import it.
LIBRARIES = {
    "pyroute2": {"base.kernel.dump"},
    "pydantic": {"cni.config", "cni.models", "ipam.config", "ipam.models", "node.config"},
    "pydantic_core": {"cni.config", "cni.models", "ipam.config"},
    "netaddr": {"cni.models"},
    "filelock": {"base.state.locks"},
    # No CNI command imports any of these.
    "grpclib": {"base.grpc", "node.dra.claims.driver", "node.kubelet"},
    "google": {"base.grpc", "base.kubelet", "node.kubelet"},
    "yaml": {"base.yaml_document", "base.kubernetes.credentials"},
    "prometheus_client": {f"node.metrics.{module}" for module in ("page", "server")},
    "rich": {"ctl.screen"},
}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text())


def imports(module: str) -> Iterator[str]:
    """Every module it imports anywhere, "from a import b" as a.b if that is a module and as a if not."""
    return imported(tree(module))


def imported(parsed: ast.Module) -> Iterator[str]:
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            yield from (f if (f := f"{node.module}.{n.name}") in FILES else str(node.module) for n in node.names)


def within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def needed(module: str) -> set[str]:
    """Our modules that it imports when it runs, at its start or later; including a package whose member it imports."""
    found, skipped = set[str](), set[ast.AST]()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped |= {inner for one in node.body for inner in ast.walk(one)}
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in skipped:
            found |= set(imported(ast.Module([node], [])))
    return {name for name in found if name in FILES}


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Every circle of a graph: the largest sets of members that reach each other, or a member that names itself."""
    reached = dict[str, set[str]]()
    for module in graph:
        reached[module], todo = set(), {module}
        while todo:
            todo = {name for one in todo for name in graph[one]} - reached[module]
            reached[module] |= todo
    circle = {module: frozenset(name for name in names if module in reached[name]) for module, names in reached.items()}
    return set(circle.values()) - {frozenset()}


def test_no_circle() -> None:
    """The import graph of the program has no circle; imports inside functions count too."""
    assert circles({module: needed(module) for module in FILES}) == set()


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == set()
    bridged = {"in": {"a"}, "a": {"b"}, "b": {"a", "bridge"}, "bridge": {"c"}, "c": {"d"}, "d": {"e"}, "e": {"c"}}
    assert circles(bridged) == {frozenset("ab"), frozenset("cde")}
    assert circles({"a": {"a"}, "b": {"a"}}) == {frozenset("a")}


def test_there_is_something_to_look_at() -> None:
    assert {"cni.main", "base.kernel.rtnl", "ipam.main", "ctl.__main__"} <= FILES.keys()
    assert {"json", "base.protocol.errors"} <= set(imports("base.protocol.spec"))
    assert {"cni.main", "ipam.main"} <= set(imports("ctl.__main__"))  # including those inside functions
    assert "cni.features.addressing" in set(imports("cni.transaction"))  # from cni import addressing


@MODULES
def test_imports(module: str) -> None:
    allowed = OURS[max((part for part in OURS if within(module, part)), key=len)]
    for name in set(imports(module)):
        if name.partition(".")[0] in FLOORS:
            assert any(within(name, part) for part in allowed), f"{module} may not import {name}"
        elif (library := name.partition(".")[0]) not in sys.stdlib_module_names:
            assert any(within(module, part) for part in LIBRARIES.get(library, ())), f"{module} may not import {name}"


@pytest.mark.parametrize("command", SHOWS)
def test_commands_that_show_change_nothing(command: str) -> None:
    theirs = [module for module in FILES if within(module, f"ctl.{command}")]
    assert theirs
    found = {name for module in theirs for name in imports(module) if any(within(name, one) for one in CHANGES)}
    assert found == set()


def test_nobody_reaches_into_a_store() -> None:
    """Other modules open a store through ipam.stores, and import none of its subpackages."""
    outside = {module: tree(module) for module in FILES if not within(module, "ipam.stores")}
    outside |= {f"{path}": ast.parse(path.read_text()) for path in (ROOT / "bench").glob("*.py")}
    assert any("ipam.stores" in imported(parsed) for parsed in outside.values())
    inside = {module for module in FILES if within(module, "ipam.stores") and FILES[module].parent.name != "stores"}
    assert {name: reached for name, parsed in outside.items() if (reached := inside & set(imported(parsed)))} == {}


def test_design_lists_the_folders() -> None:
    """docs/develop/design.md's map names each folder of the program."""
    text = (
        (ROOT / "docs" / "develop" / "design.md").read_text().partition("## Where things are")[2].partition("\n## ")[0]
    )
    listed = re.findall(r"^\| `([a-z_/-]+)/` \|", text, re.MULTILINE)
    assert {path.parent.relative_to(ROOT).as_posix() for path in FILES.values()} - set(listed) == set()
    assert [name for name in listed if not (ROOT / name).is_dir()] == []


def test_guide_names_files_that_exist() -> None:
    """Each file in a recipe exists.  NAME stands for a name that the reader chooses."""
    named = re.findall(r"`((?:cni|ipam|ctl|agent|node|tests|docs|conf|packaging|netns-fixtures)/[^`\s]*)`", GUIDE)
    assert len(named) > 20
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


def test_pages_name_modules_that_exist() -> None:
    """A page names a module by the end of its path.  NAME stands for a name that the reader chooses."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    folders = (*FLOORS, "bench", "docs", "netns-fixtures", "packaging", "tests")
    modules = {f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.py")}
    named = {(page.name, one) for page in pages for one in re.findall(r"`([\w/-]+\.py)`", page.read_text())}
    named -= {("packaging.md", "Modules/getpath.py")}  # of CPython
    assert len(named) > 100
    assert {
        one for one in named if "NAME" not in one[1] and not any(m.endswith(f"/{one[1]}") for m in modules)
    } == set()


def names_of_imports(module: str) -> dict[str, str]:
    """What each name of a module stands for, if it is one of our modules or a member of one."""
    ours = [one for one in ast.walk(tree(module)) if isinstance(one, ast.ImportFrom)]
    return {name.asname or name.name: f"{one.module}.{name.name}" for one in ours for name in one.names}


@MODULES
def test_no_global_of_another_module_is_assigned(module: str) -> None:
    imported_names = names_of_imports(module)
    assigned = [
        ast.unparse(node)
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
        if isinstance(node.value, ast.Name) and imported_names.get(node.value.id) in FILES
    ]
    assert assigned == []


@cache
def callables() -> frozenset[str]:
    """Callable, and the names that modules give to types of callables."""
    found = {"collections.abc.Callable"}
    for module in FILES:
        for node in tree(module).body:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Subscript)
                and "Callable" in names(node.value)
            ):
                found |= {f"{module}.{target.id}" for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(found)


def names(annotation: ast.AST | None) -> set[str]:
    """The names in an annotation, as "Callable" or "module.Find"."""
    if annotation is None:
        return set()
    parts = [one for one in ast.walk(annotation) if isinstance(one, ast.Name | ast.Attribute)]
    return {ast.unparse(one) for one in parts}


def takes_callables(module: str) -> Iterator[tuple[str, list[str]]]:
    """Each function of a module, and its parameters that are callables."""
    stands_for = names_of_imports(module)
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            of = {one.arg: {part.partition(".") for part in names(one.annotation)} for one in named}
            full = {
                arg: {stands_for.get(a, f"{module}.{a}") + dot + b for a, dot, b in parts} for arg, parts in of.items()
            }
            yield node.name, [arg for arg, parts in full.items() if parts & callables()]


def test_one_callable() -> None:
    """A function with two callables hides which of them runs when.  An exception has its reason."""
    found = {(m, name): args for m in FILES for name, args in takes_callables(m) if args}
    assert len(found) > 50
    assert {one for one, args in found.items() if len(args) > 1} == {
        ("base.grpc", "unary"),  # what a method answers, and whose log a bug of it reaches
        ("base.kernel.nsid", "walk"),  # two questions about a namespace, from outside and from inside
        ("base.kernel.nsid", "_places"),
        ("agent.workers", "serve"),  # what a worker does for a request, and what idle time is for
        ("agent.workers", "__init__"),
        ("base.kubernetes.http", "__init__"),  # certificates and tokens change, each in its time
        ("node.background", "start"),  # the work of the child, and what its parent does with the answer
    }


@MODULES
def test_nobody_prints(module: str) -> None:
    """Only dispatch.py writes to stdout, which carries the answer."""
    calls = [n.func for n in ast.walk(tree(module)) if isinstance(n, ast.Call)]
    assert not [f for f in calls if isinstance(f, ast.Name) and f.id == "print"]
    if module not in ("base.protocol.dispatch", "ctl.main", "ctl.screen", "node.main"):
        assert not [n for n in ast.walk(tree(module)) if isinstance(n, ast.Attribute) and n.attr == "stdout"
                    and isinstance(n.value, ast.Name) and n.value.id == "sys"]  # fmt: skip


@MODULES
def test_length(module: str) -> None:
    """A module is short enough to read in one sitting, on one subject."""
    assert len(FILES[module].read_text().splitlines()) <= 500


def test_length_of_tests() -> None:
    """A test file is about one subject too."""
    files = {p.relative_to(ROOT / "tests").as_posix(): p for p in (ROOT / "tests").rglob("*.py")}
    assert [name for name, p in files.items() if len(p.read_text().splitlines()) > 500] == []


def test_length_of_functions() -> None:
    """A function fits on a screen; splitting a short one further helps no reader."""
    lengths = {
        f"{module}.{node.name}:{node.lineno}": node.end_lineno - node.lineno + 1
        for module in FILES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    }
    assert [name for name, lines in lengths.items() if lines > 50] == []
    assert quantiles(lengths.values(), n=20)[-1] <= 25, sorted(lengths, key=lengths.__getitem__)[-len(lengths) // 20 :]
