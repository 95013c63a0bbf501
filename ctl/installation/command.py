"""hpn install, and hpn uninstall: this program's file, its names and its units, installed and removed."""

import errno
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from base.kernel.files import machine
from base.protocol.errors import InvalidConfig, IoFailure, NotAvailable
from base.state import permitted, policy
from ctl.command_line import parser_for
from ctl.installation import files, layout, state, systemd
from ctl.installation.files import Step, present
from ctl.installation.layout import Entry
from ctl.screen import text
from node.config import DEFAULTS, BadFile, read
from node.offer import cdi

_NAMED = 10
# The Debian package's prerm compares the output of hpn uninstall --check with this sentence.
NOBODY: Final = "no pod uses hpn"
NOT_ASKED: Final = (
    "no backend was asked, because this node knows no network with ipam.cluster; it learns a "
    "NetworkAttachmentDefinition from the first pod"
)


@contextmanager
def _failing(command: str) -> Iterator[None]:
    """Turn a system error into an IoFailure with its path and a remedy."""
    try:
        yield
    except OSError as e:
        path = e.filename2 or e.filename or ""
        where, why = f"{path}: " if path else "", f"{e.strerror}; check that it is writable and has room"
        if e.errno == errno.EACCES and path and (whose := files.whose(Path(path).parent)):
            why = f"{e.strerror}: {whose}; give that capability to the container"
        raise IoFailure(f"{where}{why}, and run hpn {command} as root again") from e


def answer_install(words: Sequence[str], program: str, version: str) -> tuple[str, int]:
    """The command's output and exit status.  ``program`` is the running file, and ``version`` its build."""
    about = "Install this program, or another version of it."
    parser = parser_for("install", about, "example: hpn install --dry-run", fails="it is refused, or fails")
    parser.add_argument("--root", type=Path, default=Path("/"), help="install below this directory; default /")
    parser.add_argument("--no-units", action="store_true", help="install no systemd units")
    server = f"write /{layout.KUBECONFIG}, the credential for claiming blocks of addresses"
    parser.add_argument("--api-server", metavar="HOST:PORT", help=server)
    credential = "the node's directory with token and ca.crt for --api-server"
    parser.add_argument("--credential", metavar="DIRECTORY", help=credential)
    parser.add_argument("--dry-run", action="store_true", help="only report the steps")
    check = "only check whether this version understands the node's state and could claim addresses; 1 if not"
    parser.add_argument("--check", action="store_true", help=check)
    options = parser.parse_args(words)
    if options.check:
        return checked(options.root, is_this_node=options.root.samefile("/"))
    if not program:
        raise IoFailure(
            "this hpn runs from its sources; build a binary and install that: make binary; dist/hpn install"
        )
    if bool(options.api_server) != bool(options.credential):
        parser.error("--api-server and --credential go together")
    more = [layout.kubeconfig(options.api_server, options.credential)] if options.api_server else []
    units = {} if options.no_units else layout.units()
    return text(install(options.root, Path(program), units, version, more=more, dry_run=options.dry_run)), 0


@_failing("install")
def install(
    root: Path,
    program: Path,
    units: Mapping[str, str],
    version: str,
    *,
    more: Sequence[Entry] = (),
    dry_run: bool = False,
) -> list[str]:
    """Install the program, the units and ``more`` below the root; a line for each step.  Raises CniError.

    Only root may be able to write below ``root``: another user could replace a directory by a link meanwhile.
    """
    refuse_package(root, "install")
    _refuse_foreign(root, program)
    _refuse_unknown_state(root)
    refuse_policy(root)
    has_file = any(entry.path == layout.DEVICES for entry in more)
    wanted = files.entries(root, units, more, has_node_file=has_file or _node_file(root) is not None)
    steps = [*_left_over(root, more, units), *files.steps_of_install(root, wanted, program)]
    put = [step.path for step in steps if step.entry]
    links = {one: layout.wants_link(one) for one in layout.WANTED_BY if one in units}
    enabled = {one for one, link in links.items() if _is_enabled(root, one) or link in put}
    if layout.NODE in enabled and not has_file:
        _refuse_node_file(root)
    # An interrupted install may have left only the lock's file.
    if (steps or present(root, [layout.LOCK])) and not dry_run:
        with files.exclusive(root):
            steps = [*_left_over(root, more, units), *files.steps_of_install(root, wanted, program)]
            files.do(root, steps, program)
    commands = list[tuple[str, ...]]()
    if units and systemd.runs_here(root):
        commands += systemd.commands(put, enabled, systemd.running(units), version, layout.node_arguments(units))
    for words in () if dry_run else commands:
        systemd.run(*words)
    lines = [*map(str, steps), *(f"systemctl {' '.join(words)}" for words in commands)]
    lines = [f"would {line}" for line in lines] if dry_run else lines
    return [*(lines or ["it is already installed"]), *_hints(root, units, has_file=has_file)]


def drop_credential(root: Path) -> list[str]:
    """Remove the credential of a pod that is gone, if hpn install wrote it; a line for each step.  Raises CniError,
    OSError."""
    if not _left_over(root, (), ()):
        return []
    with files.exclusive(root):
        steps = _left_over(root, (), ())
        files.do(root, steps, Path())
    return [f"{step}" for step in steps]


def _left_over(root: Path, more: Iterable[Entry], units: Collection[str]) -> list[Step]:
    """The removal of an unwanted credential of hpn install that names a pod's token.  Either the pod is gone, or the
    DaemonSet, with its ``units``, has no credential any more.  Raises OSError."""
    folder = layout.credential(files.text(root / layout.KUBECONFIG))
    if "/pods/" not in folder or any(entry.path == layout.KUBECONFIG for entry in more):
        return []
    if layout.LEAVE in units or not state.below(root, folder).is_dir():
        return [Step(layout.KUBECONFIG, why="of a pod that is not needed any more")]
    return []


@_failing("install")
def checked(root: Path, *, is_this_node: bool) -> tuple[str, int]:
    """A report of whether this version fits the node, and the exit status.  Raises IoFailure if it does not."""
    _refuse_unknown_state(root)
    refuse_policy(root)
    if _is_enabled(root, layout.NODE):
        _refuse_node_file(root)
    lines = ["this version understands the state on this node"]
    if not is_this_node:
        return text(lines), 0
    from ctl.doctor import cluster  # noqa: PLC0415  # no install needs its imports

    refusals = cluster.refusals(root)
    if refusals is None:
        lines.append(NOT_ASKED)
    return text([*lines, *(refusals or ())]), 1 if refusals else 0


@_failing("uninstall")
def answer_uninstall(words: Sequence[str]) -> tuple[str, int]:
    """The command's output and exit status."""
    about = "Remove the files of hpn install, and hpn's state.  Configurations stay."
    fails = "pods use hpn, or it fails"
    parser = parser_for("uninstall", about, "example: hpn uninstall --check", fails=fails)
    parser.add_argument("--root", type=Path, default=Path("/"), help="uninstall below this directory; default /")
    parser.add_argument("--force", action="store_true", help="also while pods use hpn; the state then stays")
    about_check = "only list pods with interfaces, addresses or claims; 1 if any"
    parser.add_argument("--check", action="store_true", help=about_check)
    about_hooks = "only remove this program from the files of container runtimes (CDI), which start it as a hook"
    parser.add_argument("--hooks", action="store_true", help=about_hooks)
    options = parser.parse_args(words)
    if options.hooks:
        return text(cdi.release(options.root)), 0
    if options.check:
        lines = state.holders(options.root)
        return text(lines or [NOBODY]), 1 if lines else 0
    return text(uninstall(options.root, force=options.force)), 0


@_failing("uninstall")
def uninstall(root: Path, *, force: bool = False) -> list[str]:
    """Uninstall below the root; a line for each step, and for each file that stays.  Raises CniError."""
    refuse_package(root, "uninstall")
    if not force and (held := state.holders(root)):
        raise NotAvailable(
            f"hpn is in use: {'; '.join(first(held))}.  Nothing was removed.  Delete these pods, run hpn gc for the "
            "dead ones, or add --force, which leaves their interfaces alone; but pods with claims cannot end without "
            "hpn node"
        )
    units = {**layout.units(), layout.LEAVE: ""}
    if not files.steps_of_uninstall(root, units)[0] and not present(root, (*layout.STATE, layout.LOCK)):
        return ["nothing of hpn is installed"]
    with files.exclusive(root):
        return remove(root, units)


def remove(root: Path, units: Mapping[str, str]) -> list[str]:
    """As ``uninstall``, for a caller that has checked the pods and excludes others.  It does not stop units other than
    these.  Raises CniError, OSError."""
    programs, more = layout.elsewhere(files.text(root / layout.UNITS / layout.LEAVE))
    state_files = (*layout.STATE, *more)
    removed, others = files.steps_of_uninstall(root, {**units, layout.LEAVE: ""}, programs)
    done = _do(root, removed, units)
    # A pod attached meanwhile keeps the state: a later install detaches it.
    kept, claimed = state.holders(root), [*state.claimed(root)]
    gone = [] if kept else [Step(path) for path in present(root, state_files)]
    files.do(root, gone, Path())
    with suppress(OSError):  # an administrator's files are there
        (root / layout.NETWORKS).rmdir()
    left = [*others, *present(root, (*state_files, *layout.CONFIGURATION))]
    return [
        *(f"{step}" for step in (*done, *gone)),
        *(f"left: /{path}" for path in left),
        *claimed,
        *(f"still in use: {one}" for one in kept[:_NAMED]),
    ]


@_failing("daemonset")
def withdraw(root: Path) -> list[str]:
    """Remove the units and the device file that the DaemonSet installed, and leave the program and the state; a line
    for each step.  Raises CniError."""
    units = {**layout.units(), layout.LEAVE: ""}
    with files.exclusive(root):
        steps = files.steps_of_uninstall(root, units)[0]
        return _do(root, [one for one in steps if one.path.startswith((layout.UNITS, layout.DEVICES))], units)


def first(held: Sequence[str]) -> list[str]:
    """The first of these lines, and how many more there are."""
    return [*held[:_NAMED], *([f"and {len(held) - _NAMED} more"] if len(held) > _NAMED else [])]


def _do(root: Path, removed: Sequence[Step], units: Mapping[str, str]) -> list[str]:
    """Stop these units, and carry out the steps; a line for each.  Raises CniError, OSError."""
    stopped = _stop(root, removed, units)
    # Not before hpn node has ended, which would write them again.
    released = cdi.release(root) if layout.HPN in [step.path for step in removed] else []
    files.do(root, removed, Path())
    if layout.DEVICES in [step.path for step in removed]:
        with suppress(OSError):  # an administrator's files are there
            (root / layout.DEVICES).parent.rmdir()
    if stopped:
        systemd.run("daemon-reload")
    lines = [f"remove the hook from {path}" for path in released]
    return [*stopped, *lines, *map(str, removed), *(["systemctl daemon-reload"] if stopped else [])]


def refuse_package(root: Path, command: str) -> None:
    """Raise IoFailure if the Debian package installed the program.  Raises OSError."""
    # A DaemonSet's pod sees only the package's link, not its program and not dpkg's list.
    is_linked = files.text(root / layout.HPN) == layout.PACKAGED and not (root / "usr/lib").exists()
    if is_linked or f"/{layout.HPN}" in files.text(root / layout.PACKAGE).split("\n"):
        raise IoFailure(
            f"the Debian package hpn-cni installed /{layout.HPN}; {command} with apt, or remove the package first: apt "
            "remove hpn-cni"
        )


def _refuse_foreign(root: Path, program: Path) -> None:
    """Raise IoFailure if the root, such as an image's, is for another architecture.  Raises OSError."""
    ours = machine(f"{program}")
    for path in (root / one for one in layout.PROGRAMS if ours and files.kind(root / one) == "file"):
        if (theirs := machine(f"{path}")) not in ("", ours):
            raise IoFailure(
                f"this hpn is built for {ours}, and {path} for {theirs}; nothing was replaced.  Install the hpn that "
                f"is built for {theirs}: from its Debian package, image or make binary (docs/develop/packaging.md)"
            )


def _refuse_unknown_state(root: Path) -> None:
    """Raise IoFailure if this version does not understand some of the node's state."""
    if unknown := list(state.unknown(root)):
        more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise IoFailure(
            f"{unknown[0]}{more}; nothing was replaced.  This version could not detach these attachments or release "
            "these leases.  Install the version that wrote them or a newer one, or delete their pods first (hpn "
            "inspect, hpn ipam show)"
        )


def refuse_policy(root: Path) -> None:
    """Raise IoFailure if every ADD of this version would refuse the policy file."""
    try:
        permitted.read(f"{state.below(root, policy.FILE)}")
    except InvalidConfig as e:
        raise IoFailure(f"every ADD of this version would fail; nothing was replaced.  {e.msg}") from e


def _refuse_node_file(root: Path) -> None:
    """Raise IoFailure if hpn node of this version would refuse its file."""
    if path := _node_file(root):
        try:
            # The unit may give a prefix to resources that have none.
            read(state.below(root, f"{path}"), prefix="any.prefix")
        except BadFile as e:
            raise IoFailure(f"hpn node of this version would refuse its file; nothing was replaced.  {e.msg}") from e


def _node_file(root: Path) -> Path | None:
    """The file that hpn node would read."""
    return next((path for path in DEFAULTS if state.below(root, f"{path}").exists()), None)


def _is_enabled(root: Path, unit: str) -> bool:
    return files.kind(root / layout.wants_link(unit)) == "link"


def _hints(root: Path, units: Mapping[str, str], *, has_file: bool) -> Iterator[str]:
    if not units:
        return
    if not has_file and _node_file(root) is None and not _is_enabled(root, layout.NODE):
        yield f"{layout.NODE} is not enabled: write {DEFAULTS[0]}, then: systemctl enable --now {layout.NODE}"
    if not systemd.runs_here(root):
        yield "systemd does not run there; it reads the units when it starts"


def _stop(root: Path, removed: Sequence[Step], units: Mapping[str, str]) -> list[str]:
    """Stop the units that are removed; the command as a line, if there are any."""
    gone = [unit for unit in units if f"{layout.UNITS}/{unit}" in [step.path for step in removed]]
    if not gone or not systemd.runs_here(root):
        return []
    # The socket goes first: it would start the agent again.
    words = ("stop", *sorted(gone, key=lambda unit: unit != layout.AGENT_SOCKET))
    systemd.run(*words)
    return [f"systemctl {' '.join(words)}"]
