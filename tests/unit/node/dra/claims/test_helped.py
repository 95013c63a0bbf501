"""The driver and its helper processes: one connection, credentials that change, an API server that answers late, and
helpers that are killed."""

import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from support.dra_process import VF, DriverProcess
from support.node_dra import DraKubelet, dra_kubelet
from support.tls_server import Asked, Server, Told, api_server
from support.topology import until
from unit.node.dra.claims.test_prepare import UID, claim, config

from base.state import claims
from node.dra import api

UIDS = [UID.replace("0d", f"{number}d", 1) for number in range(6)]
KILLED = "the process that reads the claim ended with status -9; see the log of hpn node"


def asked(number: int) -> tuple[str, str, str]:
    return ("default", f"c{number}", UIDS[number])


def document(number: int, *configs: dict[str, Any]) -> dict[str, Any]:
    made = claim(*configs)
    made["metadata"] |= {"name": f"c{number}", "uid": UIDS[number]}
    made["status"]["allocation"]["devices"]["results"][0]["device"] = f"vf{number}"
    return made


class Claims:
    """The answers of the API server; those to names in ``late`` wait for ``goes_on``."""

    def __init__(self, server: Server) -> None:
        self.server, self.late, self.goes_on = server, set[str](), Event()
        self.configs = list[dict[str, Any]]()
        server.route = self._route

    def _route(self, request: Asked) -> Told:
        name = request.path.partition("/resourceclaims/")[2].partition("/")[0]
        if name in self.late:
            self.goes_on.wait(60)
        return Told(200, document(int(name.removeprefix("c")), *self.configs))

    @property
    def peers(self) -> set[tuple[str, int]]:
        """The connections so far."""
        return {one.peer for one in self.server.asked}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Claims]:
    monkeypatch.setattr(claims, "FOLDER", f"{tmp_path}/claims")
    (tmp_path / "api").mkdir()
    with api_server(tmp_path / "api") as (server, _):
        made = Claims(server)
        yield made
        made.goes_on.set()


@pytest.fixture
def driver(tmp_path: Path, made: Claims) -> Iterator[DriverProcess]:
    with DriverProcess(tmp_path, tmp_path / "api/kubeconfig") as one:
        one.has({f"vf{number}": {**VF, "id": f"0000:3b:00.{number}"} for number in range(6)})
        yield one
    assert not one.is_running


@pytest.fixture
def kubelet(driver: DriverProcess) -> Iterator[DraKubelet]:
    with dra_kubelet(driver.socket) as one:
        yield one


def test_one_process_and_one_connection(driver: DriverProcess, kubelet: DraKubelet, made: Claims) -> None:
    """For the claims and their statuses; nothing of them is left in the driver."""
    made.configs = [config(attach="none")]
    pids, held = set[int](), set[int]()
    for number in (0, 1, 2, 3, 4, 5):
        assert not kubelet.prepare(asked(number))[UIDS[number]].error
        until(lambda number=number: sum(one.method == "PATCH" for one in made.server.asked) > number)  # type: ignore[misc]
        assert kubelet.unprepare(asked(number)) == {UIDS[number]: ""}
        pids.update(driver.helpers())
        if number > 2:  # from then on it watches the claims
            held.add(len(os.listdir(f"/proc/{driver.process.pid}/fd")))
    assert (len(pids), len(held), len(made.peers)) == (1, 1, 1)


@pytest.mark.parametrize("names_a_file", [False, True])
def test_a_credential_that_changes(kubelet: DraKubelet, made: Claims, tmp_path: Path, *, names_a_file: bool) -> None:
    """A request has the token of its moment, and a kubeconfig that has gone, or names another server, counts at
    once."""
    kubeconfig, token = tmp_path / "api/kubeconfig", tmp_path / "api/token"
    text = json.loads(kubeconfig.read_text())

    def write(words: str) -> None:
        token.write_text(words)
        text["users"][0]["user"] = {"tokenFile": "token"} if names_a_file else {"token": words}
        new = kubeconfig.with_suffix(".new")
        new.write_text(json.dumps(text))
        if not names_a_file or not kubeconfig.exists() or "tokenFile" not in kubeconfig.read_text():
            new.rename(kubeconfig)

    for number, words in enumerate(("one", "two", "three")):
        write(words)
        assert not kubelet.prepare(asked(number))[UIDS[number]].error
        assert made.server.asked[-1].headers["Authorization"] == f"Bearer {words}"
    kubeconfig.rename(tmp_path / "away")
    assert f"there is no kubeconfig at {kubeconfig}" in kubelet.prepare(asked(3))[UIDS[3]].error
    text["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    write("four")
    assert "https://127.0.0.1:1 gives no answer to GET" in kubelet.prepare(asked(3))[UIDS[3]].error
    (tmp_path / "away").rename(kubeconfig)
    assert not kubelet.prepare(asked(3))[UIDS[3]].error


def test_an_end_of_the_connection(kubelet: DraKubelet, made: Claims) -> None:
    """The API server closes it after each answer, as its load balancer may: no claim notices."""
    route = made.server.route
    assert route
    made.server.route = lambda request: Told(200, route(request).body, {"Connection": "close"})
    for number in range(4):
        assert not kubelet.prepare(asked(number))[UIDS[number]].error
    assert len(made.peers) == 4


def test_a_late_answer_delays_its_claim_only(driver: DriverProcess, kubelet: DraKubelet, made: Claims) -> None:
    """Three calls wait, as many as may beside another."""
    made.late = {"c0", "c1", "c2"}
    calls = [kubelet.begin(asked(number)) for number in range(3)]
    until(lambda: len(made.server.asked) == 3)
    for number in (3, 4, 5):
        assert not kubelet.prepare(asked(number))[UIDS[number]].error
    assert not any(one.done() for one in calls)
    assert len(driver.helpers()) == 4
    made.goes_on.set()
    assert [one.result() for one in calls]


def test_one_that_is_killed_while_it_waits(driver: DriverProcess, kubelet: DraKubelet, made: Claims) -> None:
    """As for lack of memory.  Its claim gets a sentence, and kubelet tries again; another call goes on."""
    made.late = {"c0"}
    call = kubelet.begin(asked(0))
    until(lambda: made.server.asked)
    (victim,) = driver.helpers()
    assert not kubelet.prepare(asked(1))[UIDS[1]].error
    os.kill(victim, signal.SIGKILL)
    until(call.done)
    assert KILLED.encode() in call.result()
    made.late.clear()
    assert not kubelet.prepare(asked(0))[UIDS[0]].error


def test_one_that_is_killed_between_its_pieces(driver: DriverProcess, kubelet: DraKubelet, made: Claims) -> None:
    for number in range(4):
        assert not kubelet.prepare(asked(number))[UIDS[number]].error
        driver.kill_helpers()
    assert len(made.peers) == 4
    assert not kubelet.prepare(asked(4))[UIDS[4]].error
    assert len(driver.helpers()) == 1


def test_one_that_is_killed_while_it_writes_a_status(driver: DriverProcess, kubelet: DraKubelet, made: Claims) -> None:
    made.configs = [config(attach="none")]
    route = made.server.route
    assert route

    def kill(request: Asked) -> Told:
        if request.method == "PATCH":
            made.server.route = route
            driver.kill_helpers()
        return route(request)

    made.server.route = kill
    assert not kubelet.prepare(asked(0))[UIDS[0]].error
    what = "claims do not show the interfaces of their devices: the process that writes it ended with status -9"
    until(lambda: any(what in line for line in driver.said))
    until(lambda: sum(one.method == "PATCH" for one in made.server.asked) == 2)


def test_one_that_lacks_memory(driver: DriverProcess, kubelet: DraKubelet, made: Claims) -> None:
    """It ends with its piece, whose claim has a sentence, and the next one has what it needs."""
    assert not kubelet.prepare(asked(0))[UIDS[0]].error
    (victim,) = driver.helpers()
    resource.prlimit(victim, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    padding = {"metadata": {"uid": UIDS[1], "annotations": {"x": "y" * (8 << 20)}}}
    route, made.server.route = made.server.route, lambda _: Told(200, padding)
    error = kubelet.prepare(asked(1))[UIDS[1]].error
    assert "the process that reads the claim ended with status 1" in error
    made.server.route = route
    assert not kubelet.prepare(asked(1))[UIDS[1]].error


def test_a_driver_that_is_killed(tmp_path: Path, made: Claims) -> None:
    """Nothing of it stays, also no helper that waits."""
    made.late = {"c0"}
    driver = DriverProcess(tmp_path, tmp_path / "api/kubeconfig")
    driver.__enter__()
    with dra_kubelet(driver.socket) as kubelet:
        call = kubelet.begin(asked(0))
        until(lambda: made.server.asked)
        (helper,) = driver.helpers()
        driver.process.kill()
        until(call.done)
    driver.end()
    until(lambda: not Path(f"/proc/{helper}/fd").exists() or _is_dead(helper))


def _is_dead(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"


def test_a_connection_is_kept_for_one_credential(tmp_path: Path, made: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_kept", None)
    kubeconfig = tmp_path / "api/kubeconfig"
    first = api.kept(f"{kubeconfig}")
    assert first.claim("default", "c0")
    assert api.kept(f"{kubeconfig}") is first
    # time: the stamp of the file has nanoseconds
    time.sleep(0.01)
    kubeconfig.write_text(kubeconfig.read_text())
    again = api.kept(f"{kubeconfig}")
    assert again is not first
    for one in (first, again):
        one.close()
