"""hpn check, hpn repair and hpn gc: compare attachments with what ADD created, finish or undo them."""

from collections.abc import Sequence
from pathlib import Path

from base.protocol.errors import CniError, KernelRefused
from base.protocol.spec import Json
from cni import attachment_state, collect, repair
from cni.attachment_state import UNREADABLE
from cni.attachments import WORDS, Found
from cni.repair import Task
from ctl import command_line, selection
from ctl.command_line import add_data_dir, add_state_dir, parser_for
from ctl.ipam import command as addresses
from ctl.screen import Table, moment, progress, text
from ctl.selection import who
from ipam import main as ipam

_IPAM = {"hpn-ipam": ipam.ask}
_COLUMNS = ("POD", "IFNAME", "NETWORK", "STATE", "WHY")
# In these states another command is at work, and reports errors itself.
_AT_WORK = (attachment_state.ATTACHING, attachment_state.DETACHING, attachment_state.DETACHED)


def answer_check(words: Sequence[str]) -> tuple[str, int]:
    """The command's output and exit status."""
    about = "Compare attachments with what ADD created, as CNI's CHECK does; change nothing (docs/user/commands.md)."
    options = selection.parser("check", about, "hpn check default/worker-0", what="*").parse_args(words)
    found = selection.selected(options, options.what)
    checked = [_checked(one) for one in progress(found, "checking")]
    unknown = selection.unknown(options.what, found)
    status = 1 if unknown or any(a["wrong"] for a in checked) else 0
    if options.json:
        return selection.document(options, attachments=checked, unknown=unknown), status
    rows = [(who(a), a["ifname"], a["network"], a["state"], a["why"] or "-") for a in checked]
    parts: list[Table | str] = [Table(_COLUMNS, rows)] if rows else []
    parts += [selection.nothing(options, unknown)] if unknown or not checked else []
    return text(parts), status


def _checked(one: Found) -> Json:
    """The attachment's state, and for an attached one the result of CHECK."""
    word, why, code = *one.state(), 0
    if word == attachment_state.ATTACHED and one.record:
        word, why = "ok", ""
        try:
            repair.check(one.state_dir, one.record, _IPAM)
        except (CniError, OSError) as e:
            word, why, code = "wrong", selection.words_of(e), getattr(e, "code", KernelRefused.code)
    wrong = word != "ok" and word not in _AT_WORK
    return {**selection.identified(one), "state": word, "why": why, "code": code, "wrong": wrong}


def answer_repair(words: Sequence[str]) -> tuple[str, int]:
    """The command's output and exit status."""
    about = "Undo or finish incomplete attachments, and undo those of dead pods; complete ones of living pods stay."
    parser = selection.parser("repair", about, "hpn repair --dry-run", what="*")
    parser.add_argument("--dry-run", action="store_true", help="only report the steps")
    add_data_dir(parser)
    options = parser.parse_args(words)
    state_dir, data_dir = command_line.state_dir(options), command_line.data_dir(options)
    found = selection.selected(options, options.what)
    what, left = options.what, repair.leftovers(state_dir)
    tasks = [*repair.tasks(found), *(task for task in left if not what or any(map(task.found.is_called, what)))]
    unknown = selection.unknown(options.what, [*found, *(task.found for task in tasks)])
    done = [step for task in progress(tasks, "repairing") if (step := _done(task, dry_run=options.dry_run))]
    leases, problems = list[str](), list[str]()
    if not options.what:
        leases, problems = release_leases(data_dir, state_dir, dry_run=options.dry_run)
    problem = "; ".join(problems)
    status = 1 if problem or unknown or any(step["problem"] or step["state"] == UNREADABLE for step in done) else 0
    if options.json:
        members = {"steps": selection.without_words(done), "leases": leases, "problem": problem, "unknown": unknown}
        return selection.document(options, dryRun=options.dry_run, **members), status
    lines = [
        *(line for step in done for line in (step[WORDS], *step["remarks"])),
        *leases,
        *problems,
        *([selection.nothing(options, unknown)] if unknown else []),
    ]
    return text(lines or ["no attachment is incomplete, and dead pods left nothing"]), status


def _done(task: Task, *, dry_run: bool) -> Json | None:
    """The step that was done, or would be; None if another command already did it."""
    problem, remarks = "", list[str]()
    if task.can_be_done and not dry_run:
        try:
            if not repair.mend(task, _IPAM, remarks):
                return None
        except (CniError, OSError) as e:
            problem = selection.words_of(e)
    done = task.can_be_done and not dry_run and not problem
    step = {"state": task.word, "why": task.why, "action": task.action[0], "done": done, "problem": problem}
    step["remarks"] = remarks
    return {**selection.identified(task.found), **step, WORDS: _sentence(task, problem, done=done)}


def _sentence(task: Task, problem: str, *, done: bool) -> str:
    would, did = task.action
    if problem:
        return f"could not {would} {task.found.title}: {problem}"
    return f"{did if done or not task.can_be_done else f'would {would}'} {task.found.title}: {task.why}"


def answer_gc(words: Sequence[str]) -> tuple[str, int]:
    """The command's output and exit status."""
    about = "Undo the attachments of pods that are provably dead, and release their addresses."
    parser = parser_for("gc", about, "example: hpn gc --dry-run")
    parser.add_argument("--dry-run", action="store_true", help="only report what would be undone")
    add_state_dir(parser)
    add_data_dir(parser)
    options = parser.parse_args(words)
    where, leases = command_line.state_dir(options), command_line.data_dir(options)
    gone, failures = list[str](), list[str]()
    for record, problem in collect.sweep(where, _IPAM, dry_run=options.dry_run):
        if problem:
            failures.append(f"{record.title} could not be undone: {problem}")
        else:
            verb = "would undo" if options.dry_run else "undid"
            gone.append(f"{verb} {record.title}, of {moment(record.time)}")
    released, not_released = release_leases(leases, where, dry_run=options.dry_run)
    gone, failures = gone + released, failures + not_released
    lines = [*gone, *failures] or ["nothing is provably dead"]
    return text(lines), 1 if failures else 0


def release_leases(data_dir: Path, state_dir: Path, *, dry_run: bool) -> tuple[list[str], list[str]]:
    """Release the addresses of dead pods there and beside the journal: lines for released ones, and for failures."""
    done, failed = list[str](), list[str]()
    for folder in dict.fromkeys((data_dir, state_dir / "ipam")):
        try:
            if folder.is_dir():
                released, not_released = addresses.release_dead(folder, dry_run=dry_run)
                done, failed = done + released, failed + not_released
        except (CniError, OSError) as e:
            failed.append(f"the addresses in {folder} could not be released: {e}")
    return done, failed
