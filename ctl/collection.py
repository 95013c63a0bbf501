"""hpn gc: undo what dead pods left, first attachments, then addresses that no attachment has."""

from collections.abc import Sequence
from pathlib import Path

from cni import collect
from cni.protocol.errors import CniError
from cni.state.record import Record
from ctl import addresses
from ctl.command_line import add_data_dir, add_state_dir, data_dir, parser_for, state_dirs
from ctl.screen import moment, text
from ipam import main as ipam


def answer(words: Sequence[str]) -> tuple[str, int]:
    """What the command prints, and its exit status.  Raises CniError, and SystemExit for wrong options."""
    about = "Undo the attachments of pods that are provably dead, and release their addresses."
    parser = parser_for("gc", about, "example: hpn gc --dry-run")
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")
    add_state_dir(parser)
    add_data_dir(parser)
    options = parser.parse_args(words)
    where, leases, gone, failures = state_dirs(options), data_dir(options), list[str](), list[str]()
    for state_dir in where:
        for record, problem in collect.sweep(state_dir, {"hpn-ipam": ipam.ask}, dry_run=options.dry_run):
            gone += [] if problem else [_obituary(record, dry_run=options.dry_run)]
            failures += [f"{record.whose} could not be undone: {problem}"] if problem else []
    released, not_released = release_leases(leases, where, dry_run=options.dry_run)
    gone, failures = gone + released, failures + not_released
    lines = [*gone, *failures] or ["nothing is provably dead"]
    return text(lines), 1 if failures else 0


def _obituary(record: Record, *, dry_run: bool) -> str:
    return f"{'would undo' if dry_run else 'undid'} {record.whose}, of {moment(record.time)}"


def release_leases(data_dir: Path, state_dirs: Sequence[Path], *, dry_run: bool) -> tuple[list[str], list[str]]:
    """Release the addresses of the dead, there and below each state directory: what is released, and what failed."""
    done, failed = list[str](), list[str]()
    for folder in dict.fromkeys((data_dir, *(state_dir / "ipam" for state_dir in state_dirs))):
        try:
            if folder.is_dir():
                released, not_released = addresses.release_dead(folder, dry_run=dry_run)
                done, failed = done + released, failed + not_released
        except (CniError, OSError) as e:
            failed.append(f"the addresses in {folder} could not be released: {e}")
    return done, failed
