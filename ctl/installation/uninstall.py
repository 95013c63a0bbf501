"""hpn uninstall: remove what hpn install has put on the node, and hpn's state, once no pod needs them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cni.protocol.errors import NotAvailable
from ctl.command_line import parser_for
from ctl.installation import found, held, places, plan, put, state, systemd
from ctl.installation.install import do, failure, refuse_package
from ctl.installation.plan import Remove, Step, Tell
from ctl.screen import text

_NAMED = 10
# What is printed where nobody has anything.  The Debian package's prerm looks for this sentence.
NOBODY: Final = "no pod has an interface or an address of hpn"


def answer(words: Sequence[str]) -> tuple[str, int]:
    """What the command prints, and its exit status.  Raises CniError, and SystemExit for wrong options."""
    about = "Remove what hpn install has put, and hpn's state.  Configurations stay."
    fails = "pods have interfaces or addresses of hpn, or it fails"
    parser = parser_for("uninstall", about, "example: hpn uninstall --check", fails=fails)
    parser.add_argument("--root", type=Path, default=Path("/"), help="uninstall below this directory; default /")
    parser.add_argument("--force", action="store_true", help="also while pods have interfaces; the state then stays")
    parser.add_argument("--check", action="store_true", help="only say who has interfaces or addresses; 1 if anybody")
    options = parser.parse_args(words)
    if options.check:
        lines = holders(options.root)
        return text(lines or [NOBODY]), 1 if lines else 0
    return text(uninstall(options.root, force=options.force)), 0


def holders(root: Path) -> list[str]:
    """In words, who would lose the program that takes interfaces and addresses back.  Raises CniError."""
    try:
        return held.holders(root)
    except OSError as e:
        raise failure("uninstall", e) from e


def uninstall(root: Path, *, force: bool = False) -> list[str]:
    """Uninstall below the root; what was done and what is left, a line for each.

    Raises NotAvailable if pods have interfaces or addresses, and other CniErrors.
    """
    units = places.units(places.carried_units())
    try:
        refuse_package(root, "uninstall")
        _refuse_while_held(root, force=force)  # guard: held
        noted = state.state_dirs(root)[1:]
        steps, others = _steps(root, units)
        if not steps and not any(_is_there(root, path) for path in (*places.STATE, places.LOCK)):
            return ["nothing of hpn is installed"]
        with put.alone(f"{root}"):
            for step in steps:
                do(root, step, Path())
            # A pod that was attached in the meantime keeps the state: hpn detaches it when it is installed again.
            kept, claimed = held.holders(root), held.claimed(root)
            gone = [] if kept else [Remove(path) for path in places.STATE if _is_there(root, path)]  # guard: kept ([])
            for step in gone:
                do(root, step, Path())
    except OSError as e:
        raise failure("uninstall", e) from e
    lines = [f"{step}" for step in (*steps, *gone)]
    left = [*others, *(path for path in (*places.STATE, *places.CONFIGURATION) if _is_there(root, path))]
    lines += [f"left: /{path}" for path in left]
    lines += [f"left: {path}, which a configuration names as its stateDir" for path in noted]
    return [*lines, *claimed, *(f"still attached: {one}" for one in kept[:_NAMED])]


def _refuse_while_held(root: Path, *, force: bool) -> None:
    if not force and (lines := held.holders(root)):
        more = [f"and {len(lines) - _NAMED} more"] if len(lines) > _NAMED else []
        raise NotAvailable(
            f"pods have interfaces or addresses of hpn: {'; '.join([*lines[:_NAMED], *more])}.  Nothing was removed.  "
            "Delete these pods, let hpn gc take back what dead ones left, or add --force, which leaves them as they are"
        )


def _steps(root: Path, units: dict[str, str]) -> tuple[list[Step], list[str]]:
    names = [f"{places.UNITS}/{unit}" for unit in units]
    wishes = map(places.wish, places.WANTED_BY)
    paths = [*names, *wishes, places.KUBECONFIG, places.COMMAND, places.IPAM, places.HPN]
    there = {path: found.look(f"{root}", path) for path in (*paths, *map(places.temporary, paths))}
    removed, others = plan.uninstall(there, units)
    steps: list[Step] = [*removed]
    gone = [unit for unit in units if Remove(f"{places.UNITS}/{unit}") in removed]
    if gone and systemd.runs_here(f"{root}"):
        # The socket first: it would start the agent again.
        steps = [Tell(("stop", *sorted(gone, key=lambda unit: unit != places.AGENT_SOCKET))), *steps]
        steps.append(Tell(("daemon-reload",)))
    return steps, others


def _is_there(root: Path, path: str) -> bool:
    return found.look(f"{root}", path).kind != "nothing"
