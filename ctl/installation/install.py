"""hpn install: this program's file, its names and its units, put where they belong."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from base.kernel.files import machine
from base.protocol.errors import IoFailure
from ctl.command_line import parser_for
from ctl.installation import files, layout, plan, state, systemd
from ctl.installation.layout import Entry
from ctl.screen import text
from node.config import DEFAULTS, Refused, read


def answer(words: Sequence[str], program: str, version: str) -> tuple[str, int]:
    """What the command prints, and its exit status.  ``program`` is the file that runs, and ``version`` its build.

    Raises CniError, and SystemExit for wrong options.
    """
    about = "Install this program, or another version of it."
    parser = parser_for("install", about, "example: hpn install --dry-run", fails="it is refused, or fails")
    parser.add_argument("--root", type=Path, default=Path("/"), help="install below this directory; default /")
    parser.add_argument("--no-units", action="store_true", help="without the systemd units")
    server = f"write /{layout.KUBECONFIG}, by which blocks of addresses are claimed"
    parser.add_argument("--api-server", metavar="HOST:PORT", help=server)
    credential = "where that has its token and its ca.crt, on the node"
    parser.add_argument("--credential", metavar="DIRECTORY", help=credential)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    check = "only say whether it understands the state on this node, and could claim addresses; 1 if not"
    parser.add_argument("--check", action="store_true", help=check)
    options = parser.parse_args(words)
    if options.check:
        return checked(options.root, is_this_node=options.root.samefile("/"))
    if not program:
        raise IoFailure("this hpn runs from its sources; build it and install that: make binary; dist/hpn install")
    if bool(options.api_server) != bool(options.credential):
        parser.error("--api-server and --credential go together")
    more = [layout.kubeconfig(options.api_server, options.credential)] if options.api_server else []
    units = {} if options.no_units else layout.carried_units()
    return text(install(options.root, Path(program), units, version, more=more, dry_run=options.dry_run)), 0


def install(
    root: Path,
    program: Path,
    units: Mapping[str, str],
    version: str,
    *,
    more: Sequence[Entry] = (),
    dry_run: bool = False,
) -> list[str]:
    """Install the program, the units and ``more`` below the root; what was done, a line for each step.

    ``--root`` is for images that root made: whoever can write there can put a link in the place of a directory
    meanwhile.  Raises CniError.
    """
    try:
        refuse_package(root, "install")  # guard: package
        _refuse_foreign(root, program)
        _refuse_unknown_state(root)  # guard: state
        wanted = plan.entries(root, units, more, has_node_file=_node_file(root) is not None)
        steps = plan.install(root, wanted, program)
        put = [step.path for step in steps if step.entry]
        enabled = {one for one in layout.WANTED_BY if _is_enabled(root, one) or layout.wish(one) in put}
        if units and layout.NODE in enabled:
            _refuse_node_file(root)  # guard: configuration
        if not dry_run and (steps or plan.is_there(root, layout.LOCK)):
            with files.exclusive(root):
                steps = plan.install(root, wanted, program)
                plan.do(root, steps, program)
        commands = list[tuple[str, ...]]()
        if units and systemd.runs_here(root):
            commands += systemd.commands(put, enabled, systemd.running(units), version)
        for words in () if dry_run else commands:
            systemd.run(*words)
    except OSError as e:
        raise failure("install", e) from e
    lines = [*map(str, steps), *(f"systemctl {' '.join(words)}" for words in commands)]
    lines = [f"would {line}" for line in lines] if dry_run else lines
    return [*(lines or ["it is already installed"]), *_hints(root, units)]


def checked(root: Path, *, is_this_node: bool) -> tuple[str, int]:
    """In words, whether this version would do on the node, and the exit status.  Only the node itself asks a store that
    nodes share.  Raises IoFailure if it would not understand the state, or the file of an hpn node that is enabled."""
    try:
        _refuse_unknown_state(root)  # guard: state-checked
        if _is_enabled(root, layout.NODE):
            _refuse_node_file(root)
    except OSError as e:
        raise failure("install", e) from e
    lines = ["this version understands the state on this node"]
    if not is_this_node:  # guard: another-nodes-files
        return text(lines), 0
    from ctl.doctor import cluster  # noqa: PLC0415  # what it imports no install needs

    refusals = cluster.refusals(root)
    return text([*lines, *refusals]), 1 if refusals else 0


def refuse_package(root: Path, command: str) -> None:
    """Raise IoFailure if the files there are those of the Debian package.  Raises OSError."""
    if f"/{layout.HPN}" in files.text(root / layout.PACKAGE).split("\n"):
        raise IoFailure(
            f"the Debian package hpn-cni has put /{layout.HPN} there; use apt to {command} a version, or remove the "
            "package first: apt remove hpn-cni"
        )


def failure(command: str, e: OSError) -> IoFailure:
    """A system error in words, with what can be done about it."""
    where = f"{e.filename2 or e.filename}: " if e.filename2 or e.filename else ""
    return IoFailure(f"{where}{e.strerror}; see that it is writable and has room, and run hpn {command} as root again")


def _refuse_foreign(root: Path, program: Path) -> None:
    """Raise IoFailure if the root is that of another machine, such as an image's.  Raises OSError."""
    ours = machine(f"{program}")
    for path in (root / one for one in layout.PROGRAMS if ours and files.kind(root / one) == "file"):
        if (theirs := machine(f"{path}")) not in ("", ours):
            raise IoFailure(
                f"this hpn is built for {ours}, and {path} for {theirs}; nothing was replaced.  Install the hpn "
                f"that is built for {theirs}: from its Debian package, image or make binary (docs/develop/packaging.md)"
            )


def _refuse_unknown_state(root: Path) -> None:
    """Raise IoFailure if there is state on the node that this version would not understand."""
    if unknown := list(state.unknown(root)):
        more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise IoFailure(
            f"{unknown[0]}{more}; nothing was replaced.  This version could not detach what these stand for: install "
            "the version that wrote them or a newer one, or delete their pods first (hpn inspect, hpn ipam show)"
        )


def _refuse_node_file(root: Path) -> None:
    """Raise IoFailure if this version's hpn node would end because of its file."""
    if path := _node_file(root):
        try:
            # The unit may give a prefix to resources that have none.
            read(state.below(root, f"{path}"), prefix="any.prefix")
        except Refused as e:
            raise IoFailure(f"hpn node of this version would refuse its file; nothing was replaced.  {e.msg}") from e


def _node_file(root: Path) -> Path | None:
    """The file that hpn node would read."""
    return next((path for path in DEFAULTS if state.below(root, f"{path}").exists()), None)


def _is_enabled(root: Path, unit: str) -> bool:
    return files.kind(root / layout.wish(unit)) == "link"


def _hints(root: Path, units: Mapping[str, str]) -> Iterator[str]:
    if not units:
        return
    if _node_file(root) is None and not _is_enabled(root, layout.NODE):
        yield f"{layout.NODE} is not enabled: write {DEFAULTS[0]}, then: systemctl enable --now {layout.NODE}"
    if not systemd.runs_here(root):
        yield "no systemd runs there: it finds the units when it starts"
