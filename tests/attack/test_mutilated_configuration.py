"""Run every command with random configurations; a failure names the configuration."""

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import drawn
import pytest
from attack.mutation import mutants
from support.disks import mounted
from support.elapsed import Elapsed
from support.shipped import FILES, plugins, requests, texts
from support.topology import Host, Pod

from base.state import policy

SLOW = 10.0  # seconds that no call takes
COMMANDS = ("STATUS", "ADD", "CHECK", "DEL", "GC")


@pytest.fixture
def log(host: Host, node_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A log below the only allowed directory, and the state in memory, because the disk is slow."""
    folder = host.tmp_path / "allowed"
    node_file.write_text(json.dumps({"allowedPaths": {key: [str(folder)] for key in policy.DEFAULTS}}))
    folder.mkdir()
    with mounted(host.tmp_path / "memory", "256m") as memory:
        host.state = memory / "state"
        yield folder / "log"


def shown() -> Iterator[dict[str, Any]]:
    """The project's own example configurations, with the host's master so that some of them work."""
    for plugin in itertools.chain(*map(plugins, texts().values()), *map(requests, FILES)):
        if plugin["type"] == "hpn":
            yield plugin | ({"master": "rail0"} if "master" in plugin else {})


@pytest.fixture
def nowhere(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a separate working directory, because other tests create files in the checkout."""
    folder = host.tmp_path / "nowhere"
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.mark.usefixtures("nowhere")
def test_mutilated_configurations(host: Host, pod: Pod, log: Path) -> None:
    """No command prints a traceback, waits or creates files elsewhere, and DEL undoes everything."""
    bases = [*shown(), host.conf(logFile=str(log), logLevel="debug"), host.conf(policyRouting=True), host.conf()]
    outside, added, count = surroundings(host), 0, drawn.count(5_000, "mutilations")
    for n, stdin in enumerate(itertools.islice(mutants(drawn.seed(), bases, host.state), count)):
        said = f"number {n}: {stdin[:2000]!r}"
        added += survived(host, pod, stdin, said)
        if n % 250 == 249 or n == count - 1:
            assert (pod.links(), surroundings(host) - outside) == (set(), set()), said
    assert added > count / 50, "hardly any was one that ADD takes"
    assert {json.loads(line)["command"] for line in log.read_bytes().splitlines()} == set(COMMANDS)


def survived(host: Host, pod: Pod, stdin: bytes, said: str) -> bool:
    """Run all commands with the configuration; return True if ADD succeeded."""
    result: dict[str, Any] = {}
    for command in COMMANDS:
        asked = json.dumps(json.loads(stdin) | {"prevResult": result}).encode() if result else stdin
        elapsed = Elapsed()
        reply = host.run(host.request(command, pod, asked))
        assert elapsed.seconds() < SLOW, (command, said)
        answer = json.loads(reply.stdout) if reply.stdout else {}
        assert answer.get("code") != 999, (command, reply, said)
        assert bool(reply.exit_code) == ("code" in answer), (command, reply, said)
        if command == "ADD" and reply.exit_code == 0:
            result = answer
        if command == "DEL" and result:
            assert reply.exit_code == 0, (reply, said)
    left = list(host.state.glob("**/attachments/*/*"))
    assert not left, (left, said)
    return bool(result)


def surroundings(host: Host) -> set[str]:
    """The paths outside the state directory."""
    folders = [Path("/"), Path.cwd(), host.tmp_path.parent, host.tmp_path, host.tmp_path / "allowed"]
    folders += [Path(at) for at, _, _ in os.walk("/etc")]
    names = {f"{folder}/{name}" for folder in folders for name in os.listdir(folder)}
    return names - {str(host.state), f"{host.tmp_path}/allowed/log"}
