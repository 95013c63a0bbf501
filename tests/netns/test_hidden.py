"""Where /proc or /sys is not mounted, hidden or read-only: a sentence that says so, and nothing changed or forgotten.

The plugin runs as a process in a mount namespace of its own, in which that was done.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from topology import Host, Pod

ROOT = Path(__file__).parents[2]
HIDDEN = {
    "no /proc": "mount -t tmpfs tmpfs /proc",
    "no /proc/sys": "mount -t tmpfs tmpfs /proc/sys",
    "processes alone": "mount -t proc -o subset=pid proc /proc",
    "/proc/sys read-only": "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys",
    "no /sys": "mount -t tmpfs tmpfs /sys",
}
# Of each: the codes of ADD, STATUS and DEL, 0 where it succeeds, and words of their messages.
ANSWERS = {
    "no /proc": ((5, 5, 5), "/proc/self/environ cannot be read"),
    "no /proc/sys": ((105, 50, 5), "something hides it"),
    "processes alone": ((105, 50, 5), "something hides it"),
    "/proc/sys read-only": ((105, 50, 0), "/proc/sys is mounted read-only"),
    "no /sys": ((0, 0, 0), ""),
}


def call(what: str, host: Host, command: str, pod: Pod, **keys: Any) -> dict[str, Any]:
    """What the program answers; empty for nothing."""
    request = host.request(command, pod, host.conf(**keys))
    script = f'{HIDDEN[what]} && exec "$@"'
    alone = ["unshare", "--mount", "--propagation=private", "sh", "-euc", script, "sh", sys.executable, "-m", "ctl"]
    environ = {**request.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(alone, env=environ, input=request.stdin, capture_output=True, check=False)
    assert done.stderr == b""
    answer: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    assert (done.returncode != 0) == ("code" in answer)
    return answer


@pytest.mark.parametrize("what", HIDDEN)
def test_what_is_hidden_is_said(host: Host, make_pod: Callable[[], Pod], what: str) -> None:
    old, new = make_pod(), make_pod()
    host.ok("ADD", old)
    before = host.picture(old, new)
    (of_add, of_status, of_del), words = ANSWERS[what]
    for command, code in (("STATUS", of_status), ("ADD", of_add)):
        answer = call(what, host, command, new)
        assert answer.get("code", 0) == code, answer
        assert words in answer.get("msg", "")
    if of_add:
        assert host.picture(old, new) == before
    answer = call(what, host, "DEL", old)
    assert answer.get("code", 0) == of_del, answer
    if of_del:
        assert "run: mount -t proc proc /proc" in answer["msg"]
        assert (old.links(), host.record(old).exists()) == ({"hpn0"}, True)
    for pod in (old, new):
        host.ok("DEL", pod)
        assert pod.links() == set()
    assert os.listdir(host.state / "attachments/rail0") == []
