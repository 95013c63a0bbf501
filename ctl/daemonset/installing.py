"""hpn daemonset install: install hpn on the node, and decide how it runs there.

- service: as units of the node's systemd, so that the agent and hpn node run before kubelet.
- pod: as containers of the DaemonSet's pod.
"""

import argparse
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from base.child_process import Child
from base.kernel import host_mounts
from base.protocol.errors import CniError, InvalidConfig, IoFailure
from ctl.daemonset import notes
from ctl.daemonset.containers import CHOSEN
from ctl.installation import command, files, layout, systemd
from ctl.installation.layout import Entry
from ctl.screen import text
from node import flags
from node.config import BadFile, read
from node.model import Settings

MODES: Final = ("auto", "systemd", "container")
KUBELET: Final = flags.Flags.kubelet
# kubelet makes the file, and shows its text in the pod's status.
STATUS: Final = Path("/dev/termination-log")
_KEEP: Final = "or keep the DaemonSet from this node"


def install(options: argparse.Namespace, program: str, version: str) -> list[str]:
    """Install by the options of ``hpn daemonset install``; a line for each step, then one for each note.

    The pod's status gets the mode and the notes.  Raises CniError, OSError.
    """
    if not program:
        raise IoFailure("this hpn runs from its sources; build an image of the binary (packaging/image)")
    command.refuse_package(options.root, "install")
    arguments = _arguments(options)
    more = [layout.kubeconfig(options.api_server, options.credential)] if options.api_server else []
    settings, devices = _device_file()
    mode, lines, noted = "container", ["this node runs hpn in containers, as --mode=container demands"], list[str]()
    if options.mode != "container":
        units = layout.daemonset_units(arguments, f"{options.kubelet_dir}", f"{options.cni_bin_dir}")
        mode, lines = _on_host(options.mode, program, version, units, [*devices, *more])
        noted = _noted_on_host(options.kubelet_dir, {one.full_name for one in settings.resources})
    # Where the runtime has its plugins in another directory, the pod has that at the usual path.
    lines += command.install(options.root, Path(program), {}, version, more=more)
    if CHOSEN.parent.is_dir():
        CHOSEN.write_text(f"{mode}\n")
    noted += notes.of_plugins(options.root)
    if mode == "container" and not options.provision:
        noted += notes.of_container(settings)
    with suppress(OSError), STATUS.open("r+") as file:
        file.write(text([lines[0], *noted]))
    return [*lines, *noted]


def _arguments(options: argparse.Namespace) -> tuple[str, ...]:
    """The arguments of hpn node in its unit.  Raises InvalidConfig."""
    found = [f"--metrics={options.metrics}"] if options.metrics else []
    found += [f"--kubelet-dir={options.kubelet_dir}"] if options.kubelet_dir != KUBELET else []
    try:
        flags.parse(found)
    except flags.Wrong as e:
        raise InvalidConfig(f"{e}") from e
    return tuple(found)


def _device_file() -> tuple[Settings, list[Entry]]:
    """The pod's device file, and its entry for the node.  Raises IoFailure if hpn node would refuse it."""
    path = Path("/", layout.DEVICES)
    if not path.exists():
        return Settings((), ""), []
    try:
        settings = read(path, prefix="any.prefix")
    except BadFile as e:
        raise IoFailure(f"hpn node would refuse the device file; nothing was replaced.  {e.msg}") from e
    # A link: so kubelet makes a ConfigMap's files.
    return settings, [Entry(layout.DEVICES, "file", f"{layout.MARK}\n{path.read_text()}")]


def _on_host(
    wanted: str, program: str, version: str, units: Mapping[str, str], more: Sequence[Entry]
) -> tuple[str, list[str]]:
    """The chosen mode, and a line for each step.  If it is systemd, the units were installed.  Raises CniError.

    A child does it, because a process that has entered the host's mounts does not find its own files.
    """
    source = os.open(program, os.O_RDONLY)

    def work() -> tuple[str, list[str]]:
        try:
            host_mounts.enter()
            _refuse_by_hand(units)
            command.refuse_policy(Path("/"))
            if why := _obstacle([*map(_path, units), *(entry.path for entry in more)]):
                if wanted == "systemd":
                    raise IoFailure(
                        f"--mode=systemd: {why}; nothing was replaced.  Choose --mode=auto or --mode=container; {_KEEP}"
                    )
                return "container", [f"this node runs hpn in containers: {why}"]
            # A removal that has not noticed this pod ends first.
            with files.exclusive(Path("/")):
                pass
            here = Path(f"/proc/self/fd/{source}")
            lines = command.install(Path("/"), here, units, version, more=more)
            return "systemd", ["this node runs hpn as units of systemd", *lines]
        except CniError as e:
            return "", [e.msg]
        except (host_mounts.NotEntered, OSError) as e:
            return "", [f"{e}"]

    try:
        mode, lines = Child(work).answer()
    except ChildProcessError as e:
        raise IoFailure(f"the install on the node {e}; see the lines above") from e
    finally:
        os.close(source)
    if not mode:
        raise IoFailure(lines[0])
    return mode, lines


def _noted_on_host(kubelet: Path, offered: Collection[str]) -> list[str]:
    """The notes that need the host's mounts; none if a child process cannot find them, because hpn is installed."""

    def work() -> list[str]:
        host_mounts.enter()
        return list(notes.of_kubelet(kubelet, offered))

    with suppress(OSError):
        return list(Child(work).answer())
    return []


def _path(unit: str) -> str:
    return f"{layout.UNITS}/{unit}"


def _refuse_by_hand(units: Iterable[str]) -> None:
    """Raise IoFailure if another installer than the DaemonSet put the units there.  Raises OSError."""
    found = files.present(Path("/"), map(_path, units))
    if found and _path(layout.LEAVE) not in found:
        raise IoFailure(
            f"hpn was installed on this node by hand: /{found[0]}; nothing was replaced.  Remove it first: hpn "
            f"uninstall --force, which leaves pods alone; {_KEEP}"
        )


def _obstacle(paths: Iterable[str]) -> str:
    """Why hpn cannot run as units of the node's systemd; empty if it can."""
    if not systemd.runs_here(Path("/")):
        return "systemd does not run on this node"
    for folder in sorted({Path("/", path).parent for path in (*paths, layout.HPN, layout.COMMAND)}):
        there = next(one for one in (folder, *folder.parents) if one.is_dir())
        with suppress(OSError):
            if not os.access(there, os.W_OK):
                return files.whose(there) or f"{there} is not writable"
    return ""
