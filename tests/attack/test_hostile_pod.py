"""A pod with root and CAP_NET_ADMIN in its namespace attacks its own attachment, as in hostile.py.

Its own ADD may fail.  No call exceeds its promised time, DEL succeeds and leaves nothing behind, and other pods do not
wait for it.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.elapsed import Elapsed, children
from support.links_lock import held_for
from support.namespaces import are_in_user_namespaces, with_both
from support.topology import Host, Pod, until

from agent import connection
from base.kernel import budget, neighbors, netns

HOSTILE = Path(__file__).with_name("hostile.py")
ITS_ROOT = Path(__file__).with_name("as_its_root.py")
ROOT = Path(__file__).parents[2]
BOUND = 10.0  # seconds for waits and work, from docs/user/security.md
ROUNDS = 5

# The attack of the pod, and additional keys of the configuration.
ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "unicasts": ("unicast {pid}", {}),
    "unicasts, and rules to be made": ("unicast {pid}", {"policyRouting": True}),
    "multicasts": ("multicast", {}),
    "announcements": ("announcements", {}),
    "links": ("links 200", {}),
    "routes": ("routes 20000", {"policyRouting": True}),
    "rules": ("rules 1000", {"policyRouting": True}),
    "renames": ("renames", {}),
    "decoys": ("decoys", {}),
    "down and up": ("updown", {}),
    "other MACs": ("macs", {}),
    "removals": ("removals", {}),
    "altnames": ("altnames", {}),
    "addresses": ("addresses", {}),
}
# These attacks leave the pod's own interface alone, so ADD succeeds.
HARMLESS = list(ATTACKS)[:7]


@pytest.fixture(autouse=True)
def awake() -> Iterator[None]:
    """End a call that hangs, and fail the test."""

    def hangs(*_: object) -> None:
        raise TimeoutError("it hangs")

    signal.signal(signal.SIGALRM, hangs)
    yield
    signal.alarm(0)


@contextmanager
def attacking(pod: Pod, attack: str) -> Iterator[None]:
    """Run the attack in the pod for the duration of the context."""
    as_root = [sys.executable, str(ITS_ROOT), pod.path]
    inside = as_root if are_in_user_namespaces() else ["ip", "netns", "exec", pod.name, sys.executable]
    argv = [*inside, str(HOSTILE), *attack.format(pid=os.getpid()).split()]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield
            assert process.poll() is None, "it is over already"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def timed(host: Host, command: str, pod: Pod, conf: dict[str, Any]) -> int:
    """Run a command, assert its time, and return its exit status."""
    signal.alarm(120)
    elapsed = Elapsed()
    reply = host.call(command, pod, conf)
    took = elapsed.seconds()
    signal.alarm(0)
    assert took < BOUND, f"{command} took {took:.1f} s: {reply}"
    return reply.exit_code


@with_both
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_call_is_long_and_nothing_is_left(host: Host, make_pod: Callable[[], Pod], attack: str) -> None:
    pod, other = make_pod(), make_pod()
    what, keys = ATTACKS[attack]
    conf = host.conf(**keys)
    with attacking(pod, what):
        for _ in range(ROUNDS):
            failed = timed(host, "ADD", pod, conf)
            assert not (failed and attack in HARMLESS)
            assert timed(host, "DEL", pod, conf) == 0
            assert timed(host, "ADD", other, conf) == 0
            assert timed(host, "DEL", other, conf) == 0
    assert timed(host, "DEL", pod, conf) == 0
    assert not [link for link in pod.ip("-d", "link") if link.get("linkinfo", {}).get("info_kind") == "macvlan"]
    assert not host.state_files()


def test_nobody_pays_for_the_lock_that_another_has(
    host: Host, make_pod: Callable[[], Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All calls succeed although the kernel's lock of links is held for longer than a pod may delay them."""
    monkeypatch.setattr(budget, "REQUEST", 1.0)
    monkeypatch.setattr(budget, "UNDOING", 0.6)
    monkeypatch.setattr(neighbors, "_SILENCE", 0.05)
    pods = [make_pod() for _ in range(8)]
    with held_for(1.4, pause=0.01), ThreadPoolExecutor(len(pods)) as threads:
        for command in ("ADD", "DEL"):
            for reply in threads.map(lambda pod, it=command: host.call(it, pod), pods):
                assert (reply.exit_code, reply.log) == (0, ()), reply.stdout
    assert not host.leases()
    assert not host.state_files()


def test_answers_to_every_probe(host: Host, make_pod: Callable[[], Pod]) -> None:
    """An ADD with a probe fails after some tries.  ADD succeeds without a probe, or after the attack."""
    pod, other = make_pod(), make_pod()
    # The attacker is a process, which needs a processor within that time; its answer ends the wait.
    probing = host.conf(ipam={"type": "hpn-ipam", "ranges": [[{"subnet": "10.56.0.0/24"}]], "probe": 4})
    assert timed(host, "ADD", pod, host.conf()) == 0
    with attacking(pod, "spoofs"):
        assert timed(host, "ADD", other, probing) != 0
        assert timed(host, "DEL", other, probing) == 0
        assert timed(host, "ADD", other, host.conf()) == 0
        assert timed(host, "DEL", other, host.conf()) == 0
    assert timed(host, "ADD", other, probing) == 0
    assert timed(host, "DEL", other, probing) == 0
    assert timed(host, "DEL", pod, host.conf()) == 0


@with_both
def test_answers_to_every_solicitation(host: Host, make_pod: Callable[[], Pod]) -> None:
    """An ADD with duplicate detection fails, names the address and leaves nothing.  ADD succeeds without detection."""
    pod, other = make_pod(), make_pod()
    off = host.conf(dad="off")
    assert timed(host, "ADD", pod, off) == 0
    with attacking(pod, "claims"):
        before = host.picture(other)
        # The attacker is a process, which needs a processor within that time.
        error = host.refused("ADD", other, host.conf(dadTime=1000))
        assert (error["code"], "fd00:56::3" in error["msg"]) == (104, True)
        assert host.picture(other) == before
        assert timed(host, "ADD", other, off) == 0
        assert timed(host, "DEL", other, off) == 0
    assert timed(host, "ADD", other, host.conf()) == 0
    assert timed(host, "DEL", other, host.conf()) == 0
    assert timed(host, "DEL", pod, off) == 0


class Agent:
    """An agent: the binary's with its launcher, if there is a binary, else one from the source."""

    VERSION = "0123456789abcdef"
    SERVE = f"""
import socket, sys
from agent import main, workers
workers.serve(socket.socket(fileno=int(sys.argv[1])), {VERSION!r}, main.answer)
"""

    def __init__(self, path: Path) -> None:
        self.path, self.binary = str(path), os.environ.get("HPN_BINARY", "")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            if self.binary:
                argv, fds = [self.binary, "agent", "--socket", self.path], list[int]()
            else:
                listener.bind(self.path)
                listener.listen(100)
                argv, fds = [sys.executable, "-c", self.SERVE, str(listener.fileno())], [listener.fileno()]
            environ = os.environ | {"HPN_PROGRAM_DIR": str(path.parent / "program")}
            self.process = subprocess.Popen(argv, pass_fds=fds, cwd=ROOT, env=environ)
        until(path.exists)

    def call(self, host: Host, command: str, pod: Pod, conf: dict[str, Any]) -> int:
        """Run a command through the agent, assert its time, and return its exit status."""
        request, elapsed = host.request(command, pod, conf), Elapsed(*children(self.process.pid))
        status = (self._launched if self.binary else self._sent)(dict(request.environ), request.stdin, pod)
        took = elapsed.seconds()
        assert took < BOUND, f"{command} took {took:.1f} s"
        return status

    def _launched(self, environ: dict[str, str], stdin: bytes, _pod: Pod) -> int:
        # Without a directory to unpack into, only the agent can answer.
        environ |= {"HPN_AGENT": self.path, "HPN_PROGRAM_DIR": "/proc/nowhere"}
        done = subprocess.run([self.binary], env=environ, input=stdin, capture_output=True, check=False, timeout=60)
        return done.returncode

    def _sent(self, environ: dict[str, str], stdin: bytes, pod: Pod) -> int:
        variables = b"".join(f"{k}={v}\0".encode() for k, v in environ.items())
        head = connection.HEADER.pack(connection.MAGIC, self.VERSION.encode(), 0, len(variables), len(stdin))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, netns.hold_open(pod.path) as fd:
            sock.settimeout(60)
            sock.connect(self.path)
            with netns.run_in(fd, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)) as inside:
                socket.send_fds(sock, [head + variables + stdin], [fd, inside.fileno()])
            answer = b""
            while more := sock.recv(65536):
                answer += more
        assert answer[:1] == connection.TAKEN
        return int.from_bytes(answer[1:5], sys.byteorder)

    def terminated(self) -> int:
        """Send SIGTERM, and return the exit status."""
        self.process.terminate()
        return self.process.wait(60)


@pytest.mark.own_process
@with_both
@pytest.mark.parametrize("attack", ["unicast 0", "multicast", "announcements"])
def test_the_agent_is_there_for_others_and_ends(
    host: Host, make_pod: Callable[[], Pod], tmp_path: Path, attack: str
) -> None:
    pod, other, agent = make_pod(), make_pod(), Agent(tmp_path / "sock")
    try:
        with attacking(pod, attack):
            for _ in range(2 * ROUNDS):
                assert agent.call(host, "ADD", pod, host.conf()) == 0
                assert agent.call(host, "ADD", other, host.conf()) == 0
                assert agent.call(host, "DEL", pod, host.conf()) == 0
                assert agent.call(host, "DEL", other, host.conf()) == 0
            assert agent.terminated() == 0
    finally:
        agent.process.kill()
        agent.process.wait()
    assert not host.leases()
    assert not host.state_files()
