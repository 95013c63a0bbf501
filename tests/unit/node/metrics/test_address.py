"""The addresses where metrics may be served."""

import socket
from pathlib import Path

import pytest

from node.flags import Wrong, parse
from node.kubelet.sockets import Unusable
from node.metrics.address import Address


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("unix:/run/hpn/metrics.sock", Address(path="/run/hpn/metrics.sock")),
        ("127.0.0.1:9617", Address(host="127.0.0.1", port=9617)),
        ("127.1.2.3:1", Address(host="127.1.2.3", port=1)),
        ("[::1]:65535", Address(host="::1", port=65535)),
        ("localhost:9617", Address(host="127.0.0.1", port=9617)),
    ],
)
def test_an_address(text: str, meant: Address) -> None:
    assert parse(["--metrics", text]).metrics == meant


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0.0.0.0:9617", "0.0.0.0 is not a loopback address"),
        ("[::]:9617", ":: is not a loopback address"),
        ("10.0.0.1:9617", "10.0.0.1 is not a loopback address"),
        ("[::ffff:10.0.0.1]:9617", "::ffff:a00:1 is not a loopback address"),
        (":9617", "':9617' is not an address and port"),
        ("9617", "'9617' is not an address and port"),
        ("::1:9617", "'::1:9617' is not an address and port"),
        ("node1:9617", "'node1:9617' is not an address and port"),
        ("127.0.0.1", "'127.0.0.1' is not an address and port"),
        ("127.0.0.1:", "port '' is not a number"),
        ("127.0.0.1:0", "port '0' is not a number"),
        ("127.0.0.1:65536", "port '65536' is not a number"),
        ("127.0.0.1:\u0661", "port '\u0661' is not a number"),
        ("unix:metrics.sock", "'metrics.sock' is not an absolute path"),
        ("unix:", "'' is not an absolute path"),
        ("unix:/run/", "'/run/' is not an absolute path"),
        (f"unix:/{'x' * 100}", f"'/{'x' * 100}' is longer than 100 bytes"),
    ],
)
def test_no_address(text: str, says: str) -> None:
    with pytest.raises(Wrong) as refused:
        parse(["--metrics", text])
    assert str(refused.value).startswith(f"argument --metrics: {says}")
    assert "write unix:/run/hpn/metrics.sock, 127.0.0.1:9617" in str(refused.value)


def test_a_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(Unusable, match=f"{path} exists and is not a socket; choose another path"):
        Address(path=str(path)).listen()
    assert path.read_text() == "mine"


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_anothers_socket_is_not_taken(tmp_path: Path, kind: socket.SocketKind) -> None:
    path = tmp_path / "another.sock"
    with socket.socket(socket.AF_UNIX, kind) as theirs:
        theirs.bind(str(path))
        if kind != socket.SOCK_DGRAM:
            theirs.listen(0)
        before = path.lstat().st_ino
        for _ in range(3):  # until its queue is full
            with pytest.raises(Unusable, match=f"another process listens at {path}; choose another path"):
                Address(path=str(path)).listen()
        assert path.lstat().st_ino == before


def test_a_socket_that_somebody_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with Address(path=str(path)).listen(), socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
