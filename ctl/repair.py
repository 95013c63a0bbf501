"""hpn repair: finish or undo what is half-done, then what dead pods left."""

from collections.abc import Sequence
from pathlib import Path

from cni import repair
from cni.attachments import WORDS
from cni.protocol.errors import CniError
from cni.protocol.spec import Json
from cni.repair import Task
from cni.standing import UNREADABLE
from ctl import chosen, command_line
from ctl.collection import release_leases
from ctl.command_line import add_data_dir, as_document
from ctl.screen import progress, text
from ipam import main as ipam


def answer(words: Sequence[str]) -> tuple[str, int]:
    """What the command prints, and its exit status.  Raises IoFailure, and SystemExit for wrong options."""
    about = "Undo or finish what is half-done, and what dead pods left; complete attachments of living pods stay."
    parser = chosen.parser("repair", about, "hpn repair --dry-run", what="*")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    add_data_dir(parser)
    options = parser.parse_args(words)
    state_dirs, data_dir = command_line.state_dirs(options), command_line.data_dir(options)
    found = chosen.chosen(options, options.what)
    tasks = [*repair.tasks(found), *_leftovers(state_dirs, options.what)]
    unknown = chosen.unknown(options.what, [*found, *(task.found for task in tasks)])
    done = [step for task in progress(tasks, "repairing") if (step := _done(task, dry_run=options.dry_run))]
    leases, problems = list[str](), list[str]()
    if not options.what:
        leases, problems = release_leases(data_dir, state_dirs, dry_run=options.dry_run)
    problem = "; ".join(problems)
    status = 1 if problem or unknown or any(step["problem"] or step["state"] == UNREADABLE for step in done) else 0
    if options.json:
        dirs = [str(state_dir) for state_dir in state_dirs]
        steps = [{key: value for key, value in step.items() if key != WORDS} for step in done]
        body = {"stateDirs": dirs, "dryRun": options.dry_run, "steps": steps, "leases": leases, "problem": problem}
        return as_document({**body, "unknown": unknown}), status
    lines = [
        *(line for step in done for line in (step[WORDS], *step["remarks"])),
        *leases,
        *problems,
        *([chosen.nothing(options, unknown)] if unknown else []),
    ]
    return text(lines or ["nothing is half-done, and nothing is left of the dead"]), status


def _leftovers(state_dirs: Sequence[Path], what: Sequence[str]) -> list[Task]:
    return [task for task in repair.leftovers(state_dirs) if not what or any(map(task.found.is_called, what))]


def _done(task: Task, *, dry_run: bool) -> Json | None:
    """What was done, or would be; None if another command has done it first."""
    problem, remarks = "", list[str]()
    if task.can_be_done and not dry_run:
        try:
            if not repair.mend(task, {"hpn-ipam": ipam.ask}, remarks):
                return None
        except (CniError, OSError) as e:
            problem = chosen.words_of(e)
    done = task.can_be_done and not dry_run and not problem
    step = {"state": task.word, "why": task.why, "action": task.action[0], "done": done, "problem": problem}
    step["remarks"] = remarks
    return {**chosen.identified(task.found), **step, WORDS: _sentence(task, problem, done=done)}


def _sentence(task: Task, problem: str, *, done: bool) -> str:
    would, did = task.action
    if problem:
        return f"could not {would} {task.found.whose}: {problem}"
    return f"{did if done or not task.can_be_done else f'would {would}'} {task.found.whose}: {task.why}"
