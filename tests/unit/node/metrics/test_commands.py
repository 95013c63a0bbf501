"""CNI commands report their end to hpn node, which counts them."""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.node_loop import turn

from base.protocol import report
from base.protocol.spec import Request
from cni import main
from ipam import main as ipam
from node.metrics.commands import BOUNDS, Tally, receive


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def hears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket at the path where commands send their reports."""
    monkeypatch.setattr(report, "SOCKET", f"{tmp_path}/c.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"{tmp_path}/c.sock")
        sock.setblocking(False)
        yield sock


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}/state")


def request(command: str, conf: Any = None, **environ: str) -> Request:
    basis = {"cniVersion": "1.1.0", "name": "n", "type": "hpn"}
    variables = {"CNI_COMMAND": command, "CNI_CONTAINERID": "c", "CNI_IFNAME": "hpn0", "CNI_NETNS": "/nowhere"}
    stdin = conf if isinstance(conf, bytes) else json.dumps(basis | (conf or {})).encode()
    return Request(variables | {"CNI_PATH": "/nowhere"} | environ, stdin)


IPAM = {"ipam": {"type": "hpn-ipam"}}


@pytest.mark.parametrize(
    ("command", "conf", "said"),
    [
        ("DEL", {}, "DEL macvlan 0"),
        ("DEL", {"deviceID": "0000:3b:00.2"}, "DEL sriov 0"),
        ("DEL", {"kind": "ipvlan", "master": "eth1"}, "DEL ipvlan 0"),
        ("ADD", {"kind": "ipvlan", "master": "eth1"}, "ADD ipvlan 4"),
        ("ADD", {"kind": "veth"}, "ADD - 7"),
        ("ADD", {"kind": ["macvlan"]}, "ADD - 7"),
        ("CHECK", {"cniVersion": "9.9.9"}, "CHECK macvlan 1"),
        ("ADD", b"{", "ADD - 6"),
    ],
)
def test_a_command_tells(tmp_path: Path, hears: socket.socket, command: str, conf: Any, said: str) -> None:
    reply = main.run(request(command, conf), {})
    words = hears.recv(200).decode().split()
    assert " ".join(words[1:4]) == said, reply
    assert (words[0], int(words[4]) < 10_000_000, len(words)) == ("1", True, 5)
    assert reply.code == (json.loads(reply.stdout)["code"] if reply.exit_code else 0)
    with pytest.raises(BlockingIOError):  # one report per command
        hears.recv(200)


def test_a_kind_that_multus_has_stripped_is_unknown(tmp_path: Path, hears: socket.socket) -> None:
    # With a refused version, so that the command does not read the machine's own state.
    conf = {"cniVersion": "9.9.9", "name": "n", "type": "hpn", **IPAM}
    main.run(request("STATUS", json.dumps(conf).encode()), {})
    assert hears.recv(200).startswith(b"1 STATUS - 1 ")


def test_hpn_ipam_tells_of_itself(tmp_path: Path, hears: socket.socket) -> None:
    ipam.run(request("CHECK", {"ipam": {"type": "hpn-ipam", "dataDir": f"{tmp_path}/ipam"}}))
    assert hears.recv(200).startswith(b"1 CHECK - ")


def test_nobody_is_told_of_version_and_of_what_is_no_command(tmp_path: Path, hears: socket.socket) -> None:
    for command in ("VERSION", "ADDD", ""):
        main.run(request(command), {})
    with pytest.raises(BlockingIOError):
        hears.recv(200)


def test_a_full_queue_is_not_waited_for(tmp_path: Path, hears: socket.socket) -> None:
    replies = {main.run(request("DEL"), {}).exit_code for _ in range(2000)}
    assert replies == {0}


def test_who_listens_counts(tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tally = tmp_path / "node" / "c.sock", Tally()
    path.parent.mkdir(mode=0o700)
    path.write_text("left by one that was killed")
    commands = receive(loop, tally, path)
    monkeypatch.setattr(report, "SOCKET", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    for command in ("DEL", "DEL", "ADD"):
        main.run(request(command), {})
        turn(loop)
    assert tally.ended == {("DEL", "macvlan", "0"): 2, ("ADD", "macvlan", "4"): 1} | {
        key: 1 for key in tally.ended if key[0] == "ADD"
    }
    assert sum(tally.durations["DEL", "macvlan"].counts) == 2
    commands.close()
    assert not path.exists()
    assert main.run(request("DEL"), {}).exit_code == 0


def test_a_directory_that_others_can_use_is_refused(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(Exception, match=r"chmod 700"):
        receive(loop, Tally(), tmp_path / "c.sock")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"1 ADD macvlan 0 12",
        b"1 ADD macvlan 0 12\n\n",
        b"2 ADD macvlan 0 12\n",
        b"1 VERSION macvlan 0 12\n",
        b"1 ADD  0 12\n",
        b"1 ADD Macvlan 0 12\n",
        b'1 ADD a"b 0 12\n',
        b"1 ADD macvlan 00 12\n",
        b"1 ADD macvlan 1000 12\n",
        b"1 ADD macvlan -1 12\n",
        b"1 ADD macvlan 0 1.5\n",
        b"1 ADD macvlan 0 nan\n",
        "1 ADD macvlan 0 \u0661\n".encode(),
        b"1 ADD abcdefghijklmnopq 0 12\n",
    ],
)
def test_what_no_command_tells_is_not_counted(line: bytes) -> None:
    tally = Tally()
    assert tally.count(b"1 ADD host-device 104 12\n")
    assert not tally.count(line)
    assert dict(tally.ended) == {("ADD", "host-device", "104"): 1}


def test_it_does_not_grow_without_end() -> None:
    tally = Tally()
    for number in range(2000):
        letters = "".join(chr(97 + int(digit)) for digit in str(number))
        tally.count(f"1 ADD {letters} 0 1\n".encode())
    assert len(tally.ended) == len(tally.durations) == 1000
    assert tally.count(b"1 ADD a 0 1\n")


def test_durations() -> None:
    tally = Tally()
    for microseconds in (0, 5_000, 5_001, 10_000_000, 10_000_001):
        assert tally.count(b"1 ADD - 0 %d\n" % microseconds)
    durations = tally.durations["ADD", ""]
    assert durations.counts == [2, 1, *[0] * (len(BOUNDS) - 3), 1, 1]
    assert durations.seconds == pytest.approx(20.010002)
