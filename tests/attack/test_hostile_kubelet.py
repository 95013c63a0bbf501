"""A local user without privileges attacks the sockets between hpn node and kubelet."""

import os
import socket
from pathlib import Path

import pytest
from attack.user import NOBODY, nobody
from conftest import require
from google.protobuf.wrappers_pb2 import BytesValue
from support.grpc_server import serving

from base.grpc import Failed, call
from node.kubelet.sockets import Unusable, bind


@pytest.fixture(autouse=True)
def root() -> None:
    if os.geteuid() != 0:
        require("attack", "root, to be somebody else")


def test_another_user_asks_a_plugin(public: Path) -> None:
    """The server checks its peer's user, so it refuses another user even if its socket is writable for all."""
    with serving(public / "s.sock") as served:
        served.path.chmod(0o666)

        def ask() -> int:
            answered = 0
            for _ in range(200):
                with served.connect() as sock:
                    try:
                        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5))
                        answered += len(sock.recv(1))
                    except (ConnectionResetError, BrokenPipeError):
                        pass
            return answered

        with nobody(ask) as answered:
            assert answered == 0
        on = BytesValue(value=b"on")
        assert call(served.path, "/t.Test/Echo", on, BytesValue, timeout=60) == on


def test_another_users_kubelet_is_not_believed(public: Path) -> None:
    """The client rejects the socket of another user at kubelet's path."""
    path = public / "his" / "kubelet.sock"
    path.parent.mkdir(mode=0o777)
    path.parent.chmod(0o777)
    held = list[socket.socket]()

    def listen() -> None:
        held.append(socket.socket(socket.AF_UNIX))
        held[0].bind(str(path))
        held[0].listen()

    with (
        nobody(listen),
        pytest.raises(Failed, match=f"is served by user {NOBODY}, and only root's answers are trusted"),
    ):
        call(path, "/v1.PodResourcesLister/List", BytesValue(), BytesValue, timeout=60)


def test_a_socket_that_others_could_take_away(public: Path) -> None:
    (public / "open").mkdir()
    (public / "open").chmod(0o777)
    with pytest.raises(Unusable, match="chmod go-w"):
        bind(public / "open" / "p.sock")
    assert not any((public / "open").iterdir())
