"""hpn uninstall: remove what hpn install has put on the node, and hpn's state, once no pod needs them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from base.protocol.errors import NotAvailable
from ctl.command_line import parser_for
from ctl.installation import files, layout, plan, state, systemd
from ctl.installation.install import failure, refuse_package
from ctl.installation.plan import Step, is_there
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
        return state.holders(root)
    except OSError as e:
        raise failure("uninstall", e) from e


def uninstall(root: Path, *, force: bool = False) -> list[str]:
    """Uninstall below the root; what was done and what is left, a line for each.

    Raises NotAvailable if pods have interfaces or addresses, and other CniErrors.
    """
    units = layout.carried_units()
    try:
        refuse_package(root, "uninstall")
        if not force:
            _refuse_while_held(root)  # guard: held
        noted = state.state_dirs(root)[1:]
        removed, others = plan.uninstall(root, units)
        if not removed and not any(is_there(root, path) for path in (*layout.STATE, layout.LOCK)):
            return ["nothing of hpn is installed"]
        with files.exclusive(root):
            stopped = _stop(root, removed, units)
            plan.do(root, removed, Path())
            reloaded = ["systemctl daemon-reload"] if stopped else []
            if stopped:
                systemd.run("daemon-reload")
            # A pod that was attached in the meantime keeps the state: hpn detaches it when it is installed again.
            kept, claimed = state.holders(root), [*state.claimed(root)]
            gone = [] if kept else [Step(path) for path in layout.STATE if is_there(root, path)]  # guard: kept ([])
            plan.do(root, gone, Path())
    except OSError as e:
        raise failure("uninstall", e) from e
    left = [*others, *(path for path in (*layout.STATE, *layout.CONFIGURATION) if is_there(root, path))]
    return [
        *(f"{step}" for step in (*stopped, *removed, *reloaded, *gone)),
        *(f"left: /{path}" for path in left),
        *(f"left: {path}, which a configuration names as its stateDir" for path in noted),
        *claimed,
        *(f"still attached: {one}" for one in kept[:_NAMED]),
    ]


def _refuse_while_held(root: Path) -> None:
    if lines := state.holders(root):
        more = [f"and {len(lines) - _NAMED} more"] if len(lines) > _NAMED else []
        raise NotAvailable(
            f"pods have interfaces or addresses of hpn: {'; '.join([*lines[:_NAMED], *more])}.  Nothing was removed.  "
            "Delete these pods, let hpn gc take back what dead ones left, or add --force, which leaves them as they are"
        )


def _stop(root: Path, removed: list[Step], units: Mapping[str, str]) -> list[str]:
    """Stop the units that are removed; a line if there are any."""
    gone = [unit for unit in units if f"{layout.UNITS}/{unit}" in [step.path for step in removed]]
    if not gone or not systemd.runs_here(root):
        return []
    # The socket first: it would start the agent again.
    words = ("stop", *sorted(gone, key=lambda unit: unit != layout.AGENT_SOCKET))
    systemd.run(*words)
    return [f"systemctl {' '.join(words)}"]
