"""hpn install: this program's file, its names and its units, put where they belong."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from cni.kernel import elf
from cni.protocol.errors import IoFailure
from ctl.command_line import parser_for
from ctl.installation import found, places, plan, put, state, systemd
from ctl.installation.places import Content
from ctl.installation.plan import Put, Remove, Step, Tell
from ctl.screen import text
from node.config import DEFAULTS, Refused, read

NO_FILES: Final[Mapping[str, Content]] = {}


def answer(words: Sequence[str], program: str, version: str) -> tuple[str, int]:
    """What the command prints, and its exit status.  ``program`` is the file that runs, and ``version`` its build.

    Raises CniError, and SystemExit for wrong options.
    """
    about = "Install this program, or another version of it."
    parser = parser_for("install", about, "example: hpn install --dry-run", fails="it is refused, or fails")
    parser.add_argument("--root", type=Path, default=Path("/"), help="install below this directory; default /")
    parser.add_argument("--no-units", action="store_true", help="without the systemd units")
    parser.add_argument(
        "--api-server",
        metavar="HOST:PORT",
        help=f"write /{places.KUBECONFIG}, by which blocks of addresses are claimed",
    )
    parser.add_argument(
        "--credential", metavar="DIRECTORY", help="where that has its token and its ca.crt, on the node"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.add_argument(
        "--check",
        action="store_true",
        help="only say whether it understands the state on this node, and could claim addresses; 1 if not",
    )
    options = parser.parse_args(words)
    if options.check:
        return checked(options.root, is_this_node=options.root.samefile("/"))
    if not program:
        raise IoFailure("this hpn runs from its sources; build it and install that: make binary; dist/hpn install")
    if bool(options.api_server) != bool(options.credential):
        parser.error("--api-server and --credential go together")
    files: dict[str, Content] = {}
    if options.api_server:
        files[places.KUBECONFIG] = places.kubeconfig(options.api_server, options.credential)
    units = {} if options.no_units else places.units(places.carried_units())
    lines = install(options.root, Path(program), units, version, files=files, dry_run=options.dry_run)
    return "".join(f"{line}\n" for line in lines), 0


def install(
    root: Path,
    program: Path,
    units: Mapping[str, str],
    version: str,
    *,
    files: Mapping[str, Content] = NO_FILES,
    dry_run: bool = False,
) -> list[str]:
    """Install the program, the units and further files below the root; what was done, a line for each step.

    Raises CniError.
    """
    try:
        refuse_package(root, "install")  # guard: package
        refuse_foreign(root, program)
        refuse_unreadable(root)  # guard: state
        steps = _steps(root, program, units, files)
        if units and (_is_enabled(root, places.NODE) or _is_put(steps, places.wish(places.NODE))):
            refuse_configuration(root)  # guard: configuration
        if not dry_run and (steps or found.look(f"{root}", places.LOCK).kind != "nothing"):
            with put.alone(f"{root}"):
                steps = _steps(root, program, units, files)
                for step in steps:
                    do(root, step, program)
        told = _tellings(root, steps, units, version)
        if not dry_run:
            for step in told:
                do(root, step, program)
    except OSError as e:
        raise failure("install", e) from e
    would = "would " if dry_run else ""
    lines = [f"{would}{step}" for step in (*steps, *told)] or ["it is already installed"]
    return [*lines, *_hints(root, units)]


def checked(root: Path, *, is_this_node: bool) -> tuple[str, int]:
    """In words, whether this version would do on the node, and the exit status.  A store that nodes share is asked only
    by the node itself.  Raises IoFailure as ``refuse_unknown``."""
    refuse_unknown(root)
    lines = ["this version understands the state on this node"]
    if not is_this_node:  # guard: another-nodes-files
        return text(lines), 0
    from ctl.installation import shared  # noqa: PLC0415  # what it imports no install needs

    refusals = shared.refusals(root)
    return text([*lines, *refusals]), 1 if refusals else 0


def refuse_unknown(root: Path) -> None:
    """Raise IoFailure if another version has written what this one would not understand: state, or the file of an
    hpn node that is enabled."""
    try:
        refuse_unreadable(root)  # guard: state-checked
        if _is_enabled(root, places.NODE):
            refuse_configuration(root)
    except OSError as e:
        raise failure("install", e) from e


def refuse_package(root: Path, command: str) -> None:
    """Raise IoFailure if the files there are those of the Debian package.  Raises OSError."""
    if f"/{places.HPN}" in found.look(f"{root}", places.PACKAGE).text.split("\n"):
        raise IoFailure(
            f"the Debian package hpn-cni has put /{places.HPN} there; use apt to {command} a version, or remove the "
            "package first: apt remove hpn-cni"
        )


def refuse_foreign(root: Path, program: Path) -> None:
    """Raise IoFailure if the root is that of another machine, such as an image's.  Raises OSError."""
    ours = elf.machine(f"{program}")
    for path in places.PROGRAMS:
        if ours and (theirs := found.look(f"{root}", path).machine) not in ("", ours):
            raise IoFailure(
                f"this hpn is built for {ours}, and {root / path} for {theirs}; nothing was replaced.  Install the hpn "
                f"that is built for {theirs}: of its Debian package or image, or of make binary (docs/packaging.md)"
            )


def refuse_unreadable(root: Path) -> None:
    """Raise IoFailure if there is state on the node that this version would not understand."""
    if unknown := list(state.unknown(root)):
        more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise IoFailure(
            f"{unknown[0]}{more}; nothing was replaced.  This version could not detach what these stand for: install "
            "the version that wrote them or a newer one, or delete their pods first (hpn inspect, hpn ipam show)"
        )


def refuse_configuration(root: Path) -> None:
    """Raise IoFailure if this version's hpn node would end because of its file."""
    if path := _node_file(root):
        try:
            # The unit may give a prefix to resources that have none.
            read(state.below(root, f"{path}"), prefix="any.prefix")
        except Refused as e:
            raise IoFailure(f"hpn node of this version would refuse its file; nothing was replaced.  {e.msg}") from e


def do(root: Path, step: Step, program: Path) -> None:
    """Do the step.  Raises CniError and OSError."""
    match step:
        case Put(path, content):
            put.put(f"{root}", path, content, program)
        case Remove(path):
            put.remove(f"{root}", path)
        case Tell(words):
            systemd.tell(*words)


def failure(command: str, e: OSError) -> IoFailure:
    """A system error in words, with what can be done about it."""
    where = f"{e.filename2 or e.filename}: " if e.filename2 or e.filename else ""
    return IoFailure(f"{where}{e.strerror}; see that it is writable and has room, and run hpn {command} as root again")


def _steps(root: Path, program: Path, units: Mapping[str, str], files: Mapping[str, Content]) -> list[Step]:
    units_there = {f"{places.UNITS}/{name}": found.look(f"{root}", f"{places.UNITS}/{name}") for name in units}
    wanted = plan.wanted(units, units_there, has_node_file=_node_file(root) is not None)
    wanted |= files
    return plan.install(units_there | _found(root, program, wanted), wanted)


def _found(root: Path, program: Path, wanted: Mapping[str, Content]) -> dict[str, found.Found]:
    paths = [*wanted, *map(places.temporary, wanted)]
    return {path: found.look(f"{root}", path, program if path == places.HPN else None) for path in paths}


def _node_file(root: Path) -> Path | None:
    """The file that hpn node would read."""
    return next((path for path in DEFAULTS if state.below(root, f"{path}").exists()), None)


def _tellings(root: Path, steps: list[Step], units: Mapping[str, str], version: str) -> list[Step]:
    if not units or not systemd.runs_here(f"{root}"):
        return []
    enabled = {unit for unit in places.WANTED_BY if _is_put(steps, places.wish(unit)) or _is_enabled(root, unit)}
    return list(plan.tell(steps, enabled, systemd.running([*units]), version))


def _is_put(steps: list[Step], path: str) -> bool:
    return any(isinstance(step, Put) and step.path == path for step in steps)


def _is_enabled(root: Path, unit: str) -> bool:
    return found.look(f"{root}", places.wish(unit)).kind == "link"


def _hints(root: Path, units: Mapping[str, str]) -> Iterator[str]:
    if not units:
        return
    if _node_file(root) is None and not _is_enabled(root, places.NODE):
        yield f"{places.NODE} is not enabled: write {DEFAULTS[0]}, then: systemctl enable --now {places.NODE}"
    if not systemd.runs_here(f"{root}"):
        yield "no systemd runs there: it finds the units when it starts"
