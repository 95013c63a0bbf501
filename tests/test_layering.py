"""Who may import whom."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[1]
HACKING = (ROOT / "HACKING.md").read_text()
FILES = {
    ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
    for package in ("cni", "ipam", "agent", "node", "ctl")
    for p in sorted((ROOT / package).rglob("*.py"))
}
MODULES = pytest.mark.parametrize("module", FILES)

# Of each floor: what of ours it may import.  A package stands for all that is in it; the longest name decides.
OURS = {
    "cni": {"cni"},
    "cni.kinds": {"cni.kinds", "cni.parts", "cni.state", "cni.kernel", "cni.protocol", "cni.config", "cni.models"},
    "cni.parts": {"cni.parts", "cni.state", "cni.kernel", "cni.protocol", "cni.models"},
    "cni.state": {"cni.state", "cni.kernel", "cni.protocol"},
    "cni.kernel": {"cni.kernel"},
    "cni.protocol": {"cni.protocol"},
    "ipam": {"ipam", "cni.protocol", "cni.state.durable", "cni.state.locks"},
    "ipam.stores": {"ipam.stores", "ipam.ranges", "cni.protocol", "cni.state.durable", "cni.state.locks"},
    "ipam.cluster": {
        *("ipam.cluster", "ipam.pool", "ipam.ranges", "ipam.stores", "cni.kernel.clock"),
        *("cni.protocol", "cni.state.durable", "cni.state.locks", "cni.state.node", "cni.state.trust"),
    },
    # Waits are of the request's budget; rounds gives it to each network, and claiming leaves some of it for a list.
    "ipam.cluster.http": {"ipam.cluster", "cni.protocol", "cni.kernel.budget"},
    "ipam.cluster.claiming": {"ipam.cluster", "ipam.ranges", "ipam.stores", "cni.protocol", "cni.kernel.budget"},
    "ipam.cluster.rounds": {"ipam.cluster", "ipam.stores", "cni.kernel.budget", "cni.protocol"},
    # Paths that the node allows.
    "ipam.resolv_conf": {"cni.protocol", "cni.state.node"},
    # It begins the budget of all waits, which link spends, and asks what the node allows.
    "ipam.main": {"ipam", "cni.protocol", "cni.kernel.budget", "cni.state.permitted"},
    # What of ipam asks the kernel, and all that it asks.
    "ipam.sandboxes": {"ipam.stores", "cni.protocol", "cni.kernel.netns"},
    "ipam.device": {"ipam.rails", "cni.protocol", "cni.kernel.sysfs"},
    # Where the pod's interface decides.
    "ipam.link": {
        *("ipam.conflicts", "ipam.eui64", "ipam.pool", "ipam.stores", "cni.protocol", "cni.state.pod"),
        *("cni.kernel.budget", "cni.kernel.links", "cni.kernel.probe"),
    },
    "agent": {"agent", "cni.main", "cni.protocol", "ipam.main"},
    # What it imports before the first request, for that to find.
    "agent.main": {"agent", "cni", "ipam"},
    "agent.listening": {"cni.kernel.unix_sockets", "cni.state.trust"},
    "agent.idle": {
        *("cni.collect", "cni.protocol", "cni.state.places", "ipam.cluster.rounds"),
        *("ipam.main", "ipam.sandboxes", "ipam.stores"),
    },
    # It offers devices to kubelet, and attaches nothing.
    "node": {"node", "cni.kernel", "cni.protocol", "cni.state.durable", "cni.state.locks", "cni.state.trust"},
    # What it does is kept from those who have a device, and that is in the journal.
    "node.provision": {"node", "cni.kernel", "cni.kinds.needed", "cni.protocol", "cni.state"},
    # It is for people, who see columns as ctl has them.
    "node.check": {"node", "ctl.table", "cni.kernel.sysfs"},
    # What is stored where; it changes nothing.
    "node.stored": {"cni.protocol", "cni.state.durable", "cni.state.journal", "cni.state.places", "cni.state.record"},
    # It counts what the journal and the leases have, and changes nothing.
    "node.metrics.state": {"cni.protocol", "cni.state.record", "ipam.inventory", "ipam.stores"},
    "node.metrics.cluster": {"node.blocks", "ipam.cluster.counting", "ipam.cluster.held", "ipam.stores"},
    # Its process asks the store that a cluster's nodes share.
    "node.blocks": {
        *("node", "cni.kernel", "cni.protocol", "cni.state.durable", "cni.state.places", "cni.state.trust"),
        *("ipam.cluster.rounds", "ipam.sandboxes"),
    },
    "node.metrics.rdma": {"node", "cni.kernel", "cni.state.record"},
    "node.metrics.ports": {"node.metrics.inside", "cni.kernel", "cni.state.record"},
    "node.metrics.inside": {"cni.kernel", "cni.state.record"},
    "ctl": {"ctl", "cni.main", "cni.protocol", "agent.main", "node.main", "ipam.main"},
    # The commands are imported by name (ctl.main.COMMANDS).
    "ctl.main": {"ctl.screen", "cni.protocol"},
    "ctl.screen": {"ctl.table", "cni.protocol.printable"},
    "ctl.command_line": {"cni.protocol", "cni.state.places"},
    # What a person is shown, and nothing that could change it.
    "ctl.chosen": {"cni.attachments", "cni.protocol", "cni.state.places"},
    "ctl.listing": {"ctl.chosen", "ctl.screen", "cni.attachments", "cni.protocol", "cni.standing"},
    # CHECK changes nothing.
    "ctl.checking": {
        *("ctl.chosen", "ctl.screen", "cni.attachments", "cni.checking", "cni.protocol", "cni.standing", "ipam.main"),
    },
    "ctl.details": {"ctl.chosen", "cni.attachments", "cni.protocol", "cni.whereabouts"},
    "ctl.inspection": {
        *("ctl.chosen", "ctl.details", "ctl.screen", "ctl.given"),
        *("cni.attachments", "cni.protocol", "cni.standing", "cni.state.record"),
    },
    "ctl.given": {"ctl.screen", "cni.protocol", "node.kubelet.podresources"},
    # It is pure but for the command, which looks into the pod's namespace.
    "ctl.hints": {"ctl.hints", "ctl.screen", "cni.protocol"},
    "ctl.hints.command": {
        *("ctl.hints", "cni.attachments", "cni.kernel.gids", "cni.kernel.netns", "cni.protocol", "cni.state.places"),
    },
    "ctl.hardware": {"ctl.hardware", "cni.kernel", "cni.protocol"},
    # Who has a device is in the journal; what it is hpn node knows.
    "ctl.hardware.functions": {
        *("ctl.hardware", "cni.kernel", "cni.state.owned", "cni.state.record"),
        *("node.inventory", "node.model", "node.provision.users"),
    },
    "ctl.devices": {"ctl.devices", "ctl.hardware", "ctl.screen", "cni.kernel.sysfs", "cni.protocol", "node.model"},
    "ctl.gids": {"ctl.hardware", "ctl.screen", "cni.kernel.sysfs", "cni.protocol"},
    "ctl.devinfo": {"ctl.hardware", "ctl.screen", "cni.kernel.rdma_netlink", "cni.kernel.sysfs", "cni.protocol"},
    # What the other commands say, which it imports by name.
    "ctl.report": {"ctl.report", "ctl.screen", "cni.protocol"},
    # The word for an attachment whose record is damaged.
    "ctl.report.page": {"ctl.report", "ctl.screen", "cni.protocol", "cni.state.record"},
    # The version stands in the second.
    "ctl.report.command": {"ctl.report", "ctl.main", "ctl.screen", "cni.protocol"},
    # What ports have counted, as the page of metrics has it.
    "ctl.traffic": {
        *("ctl.traffic", "ctl.screen", "cni.kernel.sysfs", "cni.state", "cni.protocol", "ipam.eui64"),
        *("node.metrics.inside", "node.metrics.ports"),
    },
    # It looks everywhere, and changes nothing.  What it finds is decided without looking.
    "ctl.doctor": {"ctl.doctor", "ctl.hardware", "cni.kernel", "cni.protocol", "node.inventory", "node.model"},
    "ctl.doctor.kept": {
        *("ctl.doctor", "cni.attachments", "cni.kernel.sysfs", "cni.protocol"),
        *("cni.state.journal", "cni.state.numbers", "cni.state.places", "cni.state.record", "cni.state.trust"),
        *("ipam.inventory", "ipam.sandboxes", "ipam.stores"),
    },
    # It asks the store that a cluster's nodes share whether it is there.
    "ctl.doctor.blocks": {
        *("ctl.doctor", "cni.kernel.budget", "cni.protocol"),
        *("ipam.cluster.counting", "ipam.cluster.held", "ipam.cluster.opening", "ipam.stores"),
    },
    "ctl.doctor.definitions": {"ctl.doctor", "cni.kernel.budget", "cni.protocol", "ipam.cluster"},
    "ctl.doctor.networks": {"ctl.doctor", "cni.config", "cni.protocol", "cni.state", "node.config"},
    "ctl.doctor.programs": {"ctl.doctor", "ctl.installation.places", "node.kubelet.registered"},
    "ctl.doctor.report": {"ctl.doctor", "ctl.screen"},
    # How an attachment stands, in the words of hpn list.
    "ctl.doctor.model": {"ctl.doctor", "ctl.hardware", "cni.kernel.dcb", "cni.protocol", "cni.standing", "node.model"},
    "ctl.doctor.checks": {"ctl.doctor", "ctl.hardware.rdma", "cni.standing", "node.model", "node.offers"},
    # What puts files on the node, and looks whether the state there can be read; it changes none of that.
    "ctl.installation": {
        *("ctl.installation", "ctl.screen", "cni.kernel.elf", "cni.kernel.files", "cni.protocol"),
        *("cni.state.durable", "cni.state.locks"),
    },
    "ctl.installation.install": {"ctl.installation", "cni.kernel.elf", "cni.protocol", "node.config"},
    # What it says of attachments, as hpn inspect and hpn ipam do.
    "ctl.installation.held": {
        *("ctl.installation", "cni.attachments", "cni.protocol", "ipam.inventory", "ipam.sandboxes", "ipam.stores"),
        "ipam.cluster.held",
    },
    # It asks what STATUS asks, of the networks that hpn doctor finds.
    "ctl.installation.shared": {
        *("ctl.installation.state", "ctl.doctor.blocks", "ctl.doctor.networks", "ctl.doctor.reading"),
        *("cni.kernel.budget", "cni.protocol", "cni.state.journal", "ipam.config", "ipam.cluster", "ipam.stores"),
    },
    "ctl.installation.state": {"cni.kinds", "cni.protocol", "cni.state.durable", "cni.state.record", "ipam.stores"},
    # What mends, and undoes what the dead left.
    "ctl.repair": {"ctl", "cni.attachments", "cni.protocol", "cni.repair", "cni.standing", "ipam.main"},
    "ctl.collection": {
        *("ctl.addresses", "ctl.screen"),
        *("cni.collect", "cni.protocol", "cni.state.record", "cni.state.places", "ipam.main"),
    },
    # And what frees the addresses of the dead.
    # The third reads YAML.
    "ctl.migrate": {
        *("ctl.screen", "ctl.cluster.moving", "cni.protocol", "cni.state.durable", "node.config.document"),
        *("ipam.migrate", "ipam.inventory", "ipam.sandboxes", "ipam.stores", "ipam.cluster.giving"),
    },
    "ctl.addresses": {
        *("ctl.screen", "ctl.table", "ctl.migrate", "ctl.cluster", "cni.protocol"),
        *("ipam.inventory", "ipam.sandboxes", "ipam.stores"),
    },
    # What the cluster's store has.
    "ctl.cluster": {
        *("ctl.cluster", "ctl.screen", "cni.kernel.budget", "cni.protocol", "ipam.config"),
        *("ipam.cluster", "ipam.inventory", "ipam.ranges", "ipam.sandboxes", "ipam.stores"),
    },
}
# What any command may import beside.
OF_COMMANDS = {"ctl.command_line", "ctl.screen"}
# Of each library: who may import it.
LIBRARIES = {
    "pyroute2": {"cni.kernel.dump"},
    "pydantic": {"cni.config", "cni.models", "ipam.config", "ipam.models", "node.config"},
    "pydantic_core": {"cni.config", "cni.models", "ipam.config"},
    "netaddr": {"cni.models"},
    "filelock": {"cni.state.locks"},
    # None of these is on the way of a CNI command.
    "h2": {"node.grpc"},
    "google": {"node.kubelet"},
    "yaml": {"node.config", "ipam.cluster.credentials"},
    "h11": {"node.metrics.http"},
    "prometheus_client": {f"node.metrics.{module}" for module in ("cluster", "page", "rdma", "state")},
    "rich": {"ctl.screen"},
}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text())


def imports(module: str) -> Iterator[str]:
    """Every module it imports anywhere, "from a import b" as a.b where that is a module and as a where not."""
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


def test_there_is_something_to_look_at() -> None:
    assert {"cni.main", "cni.kernel.rtnl", "ipam.main", "ctl.__main__"} <= FILES.keys()
    assert {"json", "cni.protocol.errors"} <= set(imports("cni.protocol.spec"))
    assert {"cni.main", "ipam.main"} <= set(imports("ctl.__main__"))  # those inside functions too
    assert "cni.parts.addressing" in set(imports("cni.commands"))  # from cni import addressing


@MODULES
def test_imports(module: str) -> None:
    allowed = OURS[max((part for part in OURS if within(module, part)), key=len)]
    allowed = allowed | OF_COMMANDS if within(module, "ctl") else allowed
    for name in set(imports(module)):
        if name.partition(".")[0] in ("cni", "ipam", "agent", "node", "ctl"):
            assert any(within(name, part) for part in allowed), f"{module} may not import {name}"
        elif (library := name.partition(".")[0]) not in sys.stdlib_module_names:
            assert any(within(module, part) for part in LIBRARIES.get(library, ())), f"{module} may not import {name}"


def test_nobody_reaches_into_a_store() -> None:
    """Who needs a store opens it by ipam.stores, and speaks of what it holds by the modules beside that."""
    outside = {module: tree(module) for module in FILES if not within(module, "ipam.stores")}
    outside |= {f"{path}": ast.parse(path.read_text()) for path in (ROOT / "bench").glob("*.py")}
    assert any("ipam.stores" in imported(parsed) for parsed in outside.values())
    inside = {module for module in FILES if within(module, "ipam.stores") and FILES[module].parent.name != "stores"}
    assert {name: reached for name, parsed in outside.items() if (reached := inside & set(imported(parsed)))} == {}


def test_design_lists_the_modules() -> None:
    """docs/design.md's list of modules is the tree."""
    listed, above = set[str](), list[str]()
    lines = (ROOT / "docs" / "design.md").read_text().partition("\n```\ncni/ ")[2].partition("\n```\n")[0]
    for line in f"cni/ {lines}".splitlines():
        name = line.split()[0]
        above[(len(line) - len(line.lstrip())) // 2 :] = [name.rstrip("/")]
        if name.endswith(".py"):
            listed.add(".".join(above).removesuffix(".py"))
    empty = {"__init__", "__main__"}
    tree = {module for module, path in FILES.items() if path.stem not in empty}
    assert listed == tree


def test_hacking_names_files_that_exist() -> None:
    """Whoever follows a recipe finds each file.  NAME stands for a name still to be found."""
    named = re.findall(r"`((?:cni|ipam|ctl|agent|node|tests|docs|conf|packaging|netns-fixtures)/[^`\s]*)`", HACKING)
    assert len(named) > 20
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


@MODULES
def test_nobody_prints(module: str) -> None:
    """stdout is the answer's, and process.py writes it."""
    calls = [n.func for n in ast.walk(tree(module)) if isinstance(n, ast.Call)]
    assert not [f for f in calls if isinstance(f, ast.Name) and f.id == "print"]
    if module not in ("cni.protocol.process", "ctl.main", "ctl.screen", "node.main"):
        assert not [n for n in ast.walk(tree(module)) if isinstance(n, ast.Attribute) and n.attr == "stdout"
                    and isinstance(n.value, ast.Name) and n.value.id == "sys"]  # fmt: skip


@MODULES
def test_length(module: str) -> None:
    """One screen's worth of topic; whatever grows beyond this is two topics.  A guard's mark is not counted."""
    assert sum("# guard below: " not in line for line in FILES[module].read_text().splitlines()) <= 300


def test_length_of_tests() -> None:
    """A test file is about one subject too."""
    files = {p.relative_to(ROOT / "tests").as_posix(): p for p in (ROOT / "tests").rglob("*.py")}
    assert [name for name, p in files.items() if len(p.read_text().splitlines()) > 300] == []


def test_length_of_functions() -> None:
    lengths = [
        (f"{module}.{node.name}", node.end_lineno - node.lineno + 1)
        for module in FILES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.FunctionDef) and node.end_lineno
    ]
    assert [name for name, lines in lengths if lines > 50] == []
    assert median(lines for _, lines in lengths) <= 6
