"""The promises of this tier through an agent that runs already, as under the shipped unit or in the DaemonSet.

HPN_BY_AGENT names the agent's socket, and HPN_BINARY the launcher.  The tests run in the agent's namespaces, which are
then the host.  With HPN_PROGRAM_DIR the launcher may do the work where the agent leaves it.  Tests that change the
program while it runs are left out, because the agent is another process.
"""

import inspect
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.topology import Host, ip, until

from base.protocol.spec import Reply, Request
from base.state import policy

VARIABLE = "HPN_BY_AGENT"
# A launcher with this directory cannot serve a request itself.
_NOWHERE = "/proc/nowhere"


class Served(Host):
    """The host, in which the agent answers."""

    def run(self, request: Request) -> Reply:
        folder = os.environ.get("HPN_PROGRAM_DIR", _NOWHERE)
        environ = {**request.environ, "HPN_AGENT": os.environ[VARIABLE], "HPN_PROGRAM_DIR": folder}

        def answered() -> subprocess.CompletedProcess[bytes] | None:
            """The launcher stops waiting after two seconds, if no worker gets a processor."""
            words = [os.environ["HPN_BINARY"]]
            done = subprocess.run(words, env=environ, input=request.stdin, capture_output=True, check=False)
            return None if _NOWHERE.encode() in done.stdout + done.stderr else done

        done: subprocess.CompletedProcess[bytes] = until(answered)
        return Reply(done.stdout.decode(), done.returncode, tuple(done.stderr.decode().splitlines()))


@contextmanager
def served(tmp_path: Path) -> Iterator[Host]:
    """The host, with rail0 for the duration of the block."""
    it = Served(tmp_path)
    try:
        yield it
    finally:
        ip("link", "delete", "rail0")


@contextmanager
def policy_file(tmp_path: Path) -> Iterator[Path]:
    """The policy file of the agent's node, which has no other one: it admits paths in the test's directory."""
    file = Path(policy.FILE)
    assert not file.exists()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"allowedPaths": {key: [str(tmp_path)] for key in policy.DEFAULTS}}))
    try:
        yield file
    finally:
        file.unlink()


def can_be_asked(item: pytest.Item) -> bool:
    """Report whether the test sends requests, and changes nothing in the program."""
    assert isinstance(item, pytest.Function)
    changes = "monkeypatch" in inspect.signature(item.function).parameters or item.get_closest_marker("own_process")
    return "host" in item.fixturenames and not changes
