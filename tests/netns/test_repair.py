"""hpn repair finishes incomplete work despite kills and other commands, and leaves complete attachments alone."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from tempfile import NamedTemporaryFile

import pytest
from netns.operating import ran, said, started, told, words
from support.killing import killed_at, killed_in
from support.topology import Host, Pod, ip

from ctl.main import main

MakePod = Callable[[], Pod]
_NAMESPACE = {"policyRouting": True, "sysctl": {"net.core.somaxconn": "77"}}


def half_attached(host: Host, pod: Pod, step: int = 0) -> int:
    """Kill an ADD between the creation of its link and its end, at this step or a later one; return the step."""
    while killed_at(step, host.request("ADD", pod, host.conf())):
        if pod.link() and [a["state"] for a in told(host, "list") if a["containerID"] == pod.name] == ["half-attached"]:
            return step
        host.ok("DEL", pod)
        step += 1
    raise AssertionError("no step is between the link and the end")


def test_add_killed_at_every_step(host: Host, pod: Pod) -> None:
    """list and check report the incomplete attachment, and repair removes it completely."""
    conf, seen, step = host.conf(**_NAMESPACE), set[str](), 0
    untouched = pod.sysctl("core/somaxconn")
    while killed_at(step, host.request("ADD", pod, conf)):
        states = [a["state"] for a in told(host, "list")]
        assert told(host, "repair", "--dry-run") == told(host, "repair", "--dry-run")
        seen.update(states)
        if states == ["attached"]:  # killed on its way out
            assert told(host, "repair") == []
            host.ok("DEL", pod, conf)
        else:
            assert states in ([], ["half-attached"])
            said(host, "check", status=1 if states else 0)
            assert all(task["done"] for task in told(host, "repair"))
        assert pod.links() == set(), f"link left after step {step}"
        assert host.state_files() == set(), f"files left after step {step}"
        assert pod.sysctl("core/somaxconn") == untouched
        step += 1
    assert seen >= {"half-attached"}
    host.ok("DEL", pod, conf)
    assert step > 10


def test_del_killed_at_every_step(host: Host, pod: Pod) -> None:
    """A killed DEL has not begun and the attachment is intact, or repair finishes it."""
    conf, seen, step = host.conf(), set[str](), 0
    while True:
        host.ok("ADD", pod, conf)
        if not killed_at(step, host.request("DEL", pod, conf)):
            break
        states = [a["state"] for a in told(host, "list")]
        seen.update(states)
        tasks = told(host, "repair")
        assert [task["state"] for task in tasks] == [state for state in states if state != "attached"]
        if states == ["attached"]:
            said(host, "check")
            host.ok("DEL", pod, conf)
        assert pod.links() == set(), f"link left after step {step}"
        assert host.state_files() == set(), f"files left after step {step}"
        step += 1
    assert seen == {"attached", "half-detached"}


def test_repair_killed_at_every_step(host: Host, make_pod: MakePod) -> None:
    """A killed repair can be repeated, like DEL."""
    pod, living, step, first = make_pod(), make_pod(), 0, 0
    host.ok("ADD", living)
    before = living.link()
    while True:
        first = half_attached(host, pod, first)
        killed = killed_in(step, lambda: main(["hpn", *words(host, "repair")]))
        told(host, "repair")
        assert pod.links() == set(), f"link left after step {step}"
        assert [a["state"] for a in told(host, "list")] == ["attached"]
        assert len(host.leases()) == 2
        if not killed:
            break
        step += 1
    assert living.link() == before
    said(host, "check")
    assert step > 4


def test_dry_run_changes_nothing(host: Host, make_pod: MakePod) -> None:
    pod, dead = make_pod(), make_pod()
    half_attached(host, pod)
    host.ok("ADD", dead)
    dead.gone()
    before = host.picture(pod)["state"], pod.link()
    done = ran(host, "repair", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert sum(line.startswith("would undo hpn0 of ") for line in lines) == 2
    assert [line for line in lines if line.endswith("its ADD did not end, and nothing works on it")]
    assert (host.picture(pod)["state"], pod.link()) == before
    assert sorted(task["state"] for task in told(host, "repair")) == ["dead", "half-attached"]
    assert (pod.links(), host.state_files()) == (set(), set())


def test_two_at_once(host: Host, make_pod: MakePod) -> None:
    pods = [make_pod() for _ in range(4)]
    living = make_pod()
    host.ok("ADD", living)
    for pod in pods:
        half_attached(host, pod)
    with ExitStack() as stack:
        both = [stack.enter_context(started(host, "repair", "--json")) for _ in range(2)]
        ended = [(process.communicate(timeout=60), process.returncode) for process in both]
    steps = [step for (out, err), _ in ended for step in json.loads(out)["steps"] if not err]
    done = [step["containerID"] for step in steps if step["done"]]
    assert sorted(done) == sorted(pod.name for pod in pods), "each by one of them"
    assert all(pod.links() == set() for pod in pods)
    said(host, "check")
    assert [a["containerID"] for a in told(host, "list")] == [living.name]


def test_an_add_at_the_same_time(host: Host, pod: Pod) -> None:
    """repair leaves a running ADD alone, which has its record and holds the lock."""
    with host.meanwhile(pod, host.conf()) as reply:
        (listed,) = json.loads(ran(host, "list", "--json").stdout)["attachments"]
        assert listed["state"] == "attaching"
        done = ran(host, "repair", pod.name)
        assert (done.returncode, done.stdout) == (0, "no attachment is incomplete, and dead pods left nothing\n")
        done = ran(host, "check")
        assert (done.returncode, "attaching" in done.stdout) == (0, True)
    assert reply.result().exit_code == 0
    said(host, "check")
    host.ok("DEL", pod)


def test_an_add_of_the_same_key_waits_and_succeeds(host: Host, pod: Pod) -> None:
    half_attached(host, pod)
    with started(host, "repair") as process:
        reply = host.call("ADD", pod)
        process.communicate(timeout=60)
    assert (reply.exit_code, process.returncode) == (0, 0), reply
    said(host, "check")
    assert told(host, "repair") == []
    host.ok("DEL", pod)


def test_a_living_pods_lost_link_is_not_repairs(host: Host, pod: Pod) -> None:
    """repair leaves a living pod's complete attachment alone, and check reports its lost link."""
    host.ok("ADD", pod)
    pod.ip("link", "delete", "hpn0")
    before = host.picture(pod)
    (found,) = told(host, "check", status=1)
    assert (found["state"], found["code"]) == ("wrong", 107)
    assert told(host, "repair") == []
    assert told(host, "repair", "hpn0") == []
    assert host.picture(pod) == before
    host.ok("DEL", pod)


@pytest.fixture
def eth9(host: Host) -> str:
    ip("link", "add", "eth9", "address", "02:00:00:00:09:01", "mtu", "1400", "type", "veth", "peer", "name", "far9")
    return "eth9"


@contextmanager
def holding(pod: Pod, how: str) -> Iterator[int]:
    """Run a process that keeps the namespace from outside, by a descriptor or by a mount of its own."""
    with ExitStack() as stack:
        command = ["sh", "-c", "echo; exec sleep 600"]
        fds = list[int]()
        if how == "mount":
            # Use another place than its path: the kernel removes a mount together with the file below it.
            place = str(stack.enter_context(NamedTemporaryFile()).name)
            mounts = f"mount --bind {pod.path} {place} && {command[-1]}"
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounts]
        else:
            fds.append(os.open(pod.path, os.O_RDONLY))
            stack.callback(os.close, fds[0])
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=fds))
        stack.callback(process.kill)
        assert process.stdout
        assert process.stdout.readline()
        yield process.pid


@pytest.mark.parametrize("holds", ["descriptor", "mount"])
def test_a_dead_pods_interface_in_a_namespace_that_lives_on(host: Host, pod: Pod, eth9: str, holds: str) -> None:
    """inspect finds the interface of a dead pod in a namespace that still exists, and repair brings it home."""
    conf = host.conf(kind="host-device", master=..., device=eth9)
    host.ok("ADD", pod, conf)
    with holding(pod, holds) as process:
        pod.gone()
        (found,) = told(host, "inspect", eth9)
        assert (found["state"], found["now"]["where"], found["now"]["name"]) == ("dead", "elsewhere", "hpn0")
        assert f"process {process} " in found["now"]["words"]
        (step,) = told(host, "repair")
        assert (step["done"], step["state"]) == (True, "dead")
        (home,) = (link for link in ip("link") if link["ifname"] == eth9)
        assert (home["mtu"], home["address"]) == (1400, "02:00:00:00:09:01")
    assert host.state_files() == set()
