"""The containers agent and node of the DaemonSet's pod: daemons, unless the node runs them as units of its systemd.

Then the container node waits, and the container agent shows the units' logs and ends when one is not active or ends.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NoReturn

from base.child_process import Child
from base.kernel import host_mounts
from base.protocol.errors import CniError, InvalidConfig
from ctl.installation import layout, systemd

# The mode, in a directory of the pod that all its containers read.  kubelet keeps it below a directory of this name.
CHOSEN: Final = Path("/hpn-mode/mode")
_PLUGINS: Final = Path("/", layout.HPN).parent
_UNITS: Final = (layout.AGENT_SOCKET, layout.NODE)
_LOGS: Final = (layout.NODE, layout.AGENT)
_LINES: Final = 50  # of earlier log
_WELL: Final = ("active", "reloading")
_CHANGES: Final = ("activating", "deactivating")
# A unit that systemd starts again is inactive for a moment.
_TIMES: Final = 3
_PACE: Final = 1.0
_LONGEST: Final = 60.0  # seconds between two checks


def command(words: Sequence[str]) -> list[str]:
    """The words of the daemon to run in this container: "agent" or "node", and its options.  Ends the process if the
    node's systemd runs the daemons."""
    role, *options = words
    if CHOSEN.exists() and CHOSEN.read_text().strip() == "systemd":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        sys.exit(_watch() if role == "agent" else _wait())
    if role == "node":
        defaults = {"--kubeconfig": "--no-blocks", "--cni-bin-dir": f"--cni-bin-dir={_PLUGINS}"}
        more = [word for name, word in defaults.items() if not any(one.startswith(name) for one in options)]
        return [role, *options, *more]
    # A child, because the agent enters the host's mounts itself.
    for line in Child(_withdraw).answer():
        _say(line)
    return [role, "--host", *options]


def _say(line: str) -> None:
    sys.stderr.write(f"hpn daemonset: {line}\n")


def _wait() -> NoReturn:
    _say("hpn node is a unit of this node's systemd; the container agent shows its log")
    while True:
        signal.pause()


def _withdraw() -> list[str]:
    """Remove the units that an earlier pod of the DaemonSet installed, and its credential.

    Return a line for each step, and for a policy file that every ADD refuses.
    """
    # The container needs none of these later.
    from base.state import permitted  # noqa: PLC0415
    from ctl.installation.command import drop_credential, withdraw  # noqa: PLC0415

    lines = list[str]()
    try:
        host_mounts.enter()
        lines = drop_credential(Path("/"))
        if os.path.lexists(f"/{layout.UNITS}/{layout.LEAVE}"):
            lines += withdraw(Path("/"))
        permitted.read()
        return lines
    except CniError as e:
        return [*lines, f"every ADD on this node fails: {e.msg}" if isinstance(e, InvalidConfig) else e.msg]
    except (host_mounts.NotEntered, OSError) as e:
        return [f"{e}"]


def _watch() -> int:
    """Show the units' logs until one of _UNITS is not active or ends; return the exit status."""
    try:
        host_mounts.enter()
        words = ["journalctl", "--follow", f"--lines={_LINES}", "--output=cat", *(f"--unit={unit}" for unit in _LOGS)]
        with subprocess.Popen(words) as log:  # noqa: S603
            try:
                why = _until_inactive(log.pid)
            finally:
                log.terminate()
    except CniError as e:
        why = e.msg
    except (host_mounts.NotEntered, OSError) as e:
        why = f"{e}"
    _say(why)
    return 1


def _until_inactive(log: int) -> str:
    """Wait until a unit is not active or has ended, or the process with their log has ended; return which."""
    times, before = 0, sys.maxsize
    while True:
        shown = systemd.show(_UNITS, "ActiveState", "MainPID", "NRestarts")
        # One that ends again and again is activating between, and never failed if it runs for two seconds each time.
        restarts = int(shown[layout.NODE]["NRestarts"] or 0)
        if restarts > before:
            return f"{layout.NODE} ended, and this node's systemd started it again; the reason is above"
        before = restarts
        bad = {unit: one["ActiveState"] for unit, one in shown.items() if one["ActiveState"] not in _WELL}
        times = times + 1 if any(state not in _CHANGES for state in bad.values()) else 0
        if times == _TIMES:
            what = ", ".join(f"{unit} is {state}" for unit, state in bad.items())
            return f"{what} on this node; correct the reason above, then delete this pod, which installs hpn again"
        if bad:
            time.sleep(_PACE)
        elif _ended((log,), 0):
            return "journalctl has ended, which shows the log of this node's units"
        else:
            _ended((log, *(int(one["MainPID"] or 0) for one in shown.values())), _LONGEST)


def _ended(processes: Iterable[int], timeout: float) -> bool:
    """Wait until one of the processes has ended, for at most ``timeout`` seconds; return whether one has."""
    poll = select.poll()
    with ExitStack() as stack:
        for process in filter(None, processes):
            try:
                fd = os.pidfd_open(process)
            except ProcessLookupError:
                return True
            stack.callback(os.close, fd)
            poll.register(fd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))
