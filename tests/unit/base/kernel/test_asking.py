"""When an ADD requests addresses from its IPAM plugin, and whether the plugin may hold some after a failed ADD."""

import os
from collections.abc import Iterator
from ipaddress import ip_interface
from pathlib import Path

import pytest
from conftest import require

from base.protocol.errors import (
    CniError,
    DelegateError,
    DelegateFailed,
    DelegateNotRun,
    LinkUnavailable,
    PoolExhausted,
)
from base.protocol.result import Ip, Result
from base.protocol.spec import Request
from base.state import pod as pods
from base.state.pod import Pod
from cni.features.delegate import Ipam

GIVEN = Result(ips=(Ip(ip_interface("10.0.0.2/24")),))


@pytest.fixture
def pod() -> Iterator[Pod]:
    """This process's namespace."""
    if os.geteuid():
        require("unit", "root, to enter a network namespace")
    with pods.open_netns(Request({"CNI_NETNS": "/proc/self/ns/net"}, b"{}")) as pod:
        yield pod


@pytest.fixture
def add(tmp_path: Path) -> Request:
    return Request({"CNI_COMMAND": "ADD", "CNI_PATH": str(tmp_path), "PATH": os.environ["PATH"]}, b"{}")


class Ours:
    """An IPAM plugin as a function: its answers, one per call, and the requests that it received."""

    def __init__(self, *answers: Result | CniError) -> None:
        self.answers, self.seen = [*answers], list[Request]()

    def __call__(self, request: Request, _log: list[str]) -> Result:
        self.seen.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, CniError):
            raise answer
        return answer


def install(folder: Path, script: str) -> None:
    (folder / "plug").write_text(f"#!/bin/sh\ncat >/dev/null\n{script}\n")
    (folder / "plug").chmod(0o755)


def test_ours_gives_before_there_is_a_link(add: Request, pod: Pod) -> None:
    ours = Ours(GIVEN)
    ipam = Ipam("plug", add, {"plug": ours}, [])
    assert not ipam.may_hold
    ipam.ask_early(pod)
    assert (ipam.ask(), ipam.may_hold) == (GIVEN, True)
    assert [request.inside for request in ours.seen] == [(pod.fd, pod.rtnl.sock.fileno())]


def test_ours_refuses_before_there_is_a_link(add: Request, pod: Pod) -> None:
    ipam = Ipam("plug", add, {"plug": Ours(PoolExhausted("all held"))}, [])
    with pytest.raises(DelegateError) as e:
        ipam.ask_early(pod)
    assert (e.value.code, ipam.may_hold) == (103, False)


def test_ours_has_to_see_the_link(add: Request, pod: Pod) -> None:
    ours = Ours(LinkUnavailable("it decides"), GIVEN)
    ipam = Ipam("plug", add, {"plug": ours}, [])
    ipam.ask_early(pod)
    assert not ipam.may_hold
    assert (ipam.ask(), ipam.may_hold) == (GIVEN, True)
    assert len(ours.seen) == 2


def test_a_program_is_asked_when_the_link_is_there(add: Request, pod: Pod, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    install(tmp_path, f"""echo >>{asked}; echo '{{"ips": [{{"address": "10.0.0.2/24"}}]}}'""")
    ipam = Ipam("plug", add, {}, [])
    ipam.ask_early(pod)
    assert not asked.exists()
    assert (ipam.ask(), ipam.ask()) == (GIVEN, GIVEN)
    assert asked.read_text() == "\n"


@pytest.mark.parametrize(
    ("script", "mode", "error", "state"),
    [
        ("exit 7", 0o755, DelegateFailed, (True, False)),
        ("""echo '{"code": 133, "msg": "away"}'; exit 1""", 0o755, DelegateError, (True, True)),
        ("exit 7", 0o777, DelegateNotRun, (False, False)),
    ],
    ids=["without a document", "by an error", "not trusted"],
)
def test_a_program_that_failed_may_hold_an_address(
    add: Request, tmp_path: Path, script: str, mode: int, error: type[CniError], state: tuple[bool, bool]
) -> None:
    install(tmp_path, script)
    (tmp_path / "plug").chmod(mode)
    ipam = Ipam("plug", add, {}, [])
    with pytest.raises(error):
        ipam.ask()
    assert (ipam.may_hold, ipam.has_refused) == state


def test_no_plugin_gives_nothing(add: Request, pod: Pod) -> None:
    ipam = Ipam("", add, {"plug": Ours()}, [])
    ipam.ask_early(pod)
    assert (ipam.ask(), ipam.may_hold) == (Result(), False)
