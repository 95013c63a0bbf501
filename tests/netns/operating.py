"""hpn list, inspect, check and repair of a host's attachments, in this process and in their own."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from support.topology import Host

from ctl.main import main

ROOT = Path(__file__).parents[2]


def words(host: Host, command: str, *more: str) -> list[str]:
    """The command line, for this host's state and without the machine's."""
    (none := host.tmp_path / "none").mkdir(exist_ok=True)
    host.state.mkdir(mode=0o700, exist_ok=True)  # the first ADD has not created it yet
    data = ("--data-dir", str(none)) if command == "repair" else ()
    kubelet = ("--kubelet-dir", str(host.tmp_path / "no")) if command == "inspect" else ()
    return [command, "--state-dir", str(host.state), *data, *kubelet, *more]


def said(host: Host, command: str, *more: str, status: int = 0) -> str:
    """The output of a command, which must not write an error."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        ended = main(["hpn", *words(host, command, *more)])
    assert (ended, err.getvalue()) == (status, ""), (out.getvalue(), err.getvalue())
    return out.getvalue()


def told(host: Host, command: str, *more: str, status: int = 0) -> list[dict[str, Any]]:
    """The attachments or steps in the command's JSON."""
    document = json.loads(said(host, command, "--json", *more, status=status))
    found: list[dict[str, Any]] = document["steps" if command == "repair" else "attachments"]
    return found


def started(host: Host, command: str, *more: str) -> "subprocess.Popen[str]":
    """Start the command as a process."""
    environ = {k: v for k, v in os.environ.items() if k != "CNI_COMMAND"}
    argv = [sys.executable, "-m", "ctl", *words(host, command, *more)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environ)


def ran(host: Host, command: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a process to its end."""
    with started(host, command, *more) as process:
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
