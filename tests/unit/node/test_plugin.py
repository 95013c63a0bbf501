"""The device plugin, called by grpcio as kubelet calls it."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import grpc
import pytest
from support.node_kubelet import Kubelet, kubelet
from support.topology import until

from node.kubelet import plugin as plugins
from node.kubelet.plugin import Plugin
from node.kubelet.sockets import Unusable
from node.model import MOST, Grant
from node.offer.answers import AllocateRefused


class Source:
    """Answers that a test sets."""

    def __init__(self) -> None:
        self.listed: Sequence[tuple[str, bool, tuple[int, ...]]] = [("0000:3b:00.2", True, (0,)), ("b", False, ())]

    def units(self) -> Sequence[tuple[str, bool, tuple[int, ...]]]:
        return self.listed

    def grant(self, ids: Sequence[str]) -> Grant:
        if "gone" in ids:
            raise AllocateRefused("this node does not have 'gone' now; delete the pod")
        return Grant({"PCIDEVICE_A_B": ",".join(ids)}, nodes=("/dev/infiniband/uverbs0",), cdi=("hpn.io/net=a",))

    def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:  # noqa: ARG002
        return list(available)[: size // (size != 99)]


class Running:
    """A plugin whose loop runs in a thread; ``do`` calls something there."""

    def __init__(self, path: Path) -> None:
        self.loop, self.source, self.said = asyncio.new_event_loop(), Source(), list[str]()
        self.plugin = Plugin("rdma/hca", path, self.loop, self.source, self.said.append)
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.do(self.plugin.open)

    def do(self, call: Callable[[], None]) -> None:
        async def made() -> None:
            call()

        asyncio.run_coroutine_threadsafe(made(), self.loop).result(60)

    def end(self) -> None:
        self.do(self.plugin.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        asyncio.set_event_loop(self.loop)  # end open connections, as asyncio.run does
        asyncio.runners._cancel_all_tasks(self.loop)  # type: ignore[attr-defined]
        asyncio.set_event_loop(None)
        self.loop.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    one = Running(tmp_path / "hpn-rdma_hca.sock")
    yield one
    one.end()
    assert not any(tmp_path.iterdir())


@pytest.fixture
def asked(running: Running) -> Iterator[Kubelet]:
    with kubelet(running.plugin.socket_path) as one:
        yield one


def test_registration(running: Running, asked: Kubelet) -> None:
    info = asked.info()
    assert (info.type, info.name, info.endpoint) == ("DevicePlugin", "rdma/hca", str(running.plugin.socket_path))
    assert list(info.supported_versions) == ["v1beta1"]
    asked.notify()
    assert running.said == []


def test_a_kubelet_that_does_not_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_SILENT", 0.01)
    one = Running(tmp_path / "hpn-rdma_hca.sock")
    try:
        until(lambda: one.said)
        assert one.said[0].startswith(
            f"rdma/hca: kubelet has not called {one.plugin.socket_path} for 0.01 s: it does not"
        )
        with kubelet(one.plugin.socket_path) as late:
            late.info()
            late.notify()
        assert one.said[1:] == ["kubelet has accepted rdma/hca"]
    finally:
        one.end()


def test_a_refusal_is_said_once(running: Running, asked: Kubelet) -> None:
    for _ in range(3):
        asked.notify("invalid\nname")
    assert running.said == [
        (
            "kubelet refuses rdma/hca: invalid name; no pod gets the resource until that is corrected, and kubelet "
            "tries again by itself"
        )
    ]
    asked.notify()
    assert running.said[1:] == ["kubelet has accepted rdma/hca"]


def test_options(asked: Kubelet) -> None:
    assert asked.options().get_preferred_allocation_available
    assert not asked.options().pre_start_required


def test_the_list_and_its_changes(running: Running, asked: Kubelet) -> None:
    stream = asked.watch()
    first, second = next(stream).devices
    assert (first.ID, first.health, [node.ID for node in first.topology.nodes]) == ("0000:3b:00.2", "Healthy", [0])
    assert (second.ID, second.health, second.HasField("topology")) == ("b", "Unhealthy", False)
    running.source.listed = [(f"0000:3b:{i:05x}", True, (i % 2,)) for i in range(3000)]
    running.do(running.plugin.changed)
    assert [device.ID for device in next(stream).devices] == [one for one, _, _ in running.source.listed]
    running.source.listed = []
    running.do(running.plugin.changed)
    assert list(next(stream).devices) == []


def test_allocate(running: Running, asked: Kubelet) -> None:
    given = asked.allocate("x", "y")
    assert dict(given.envs) == {"PCIDEVICE_A_B": "x,y"}
    node = "/dev/infiniband/uverbs0"
    assert [(d.host_path, d.container_path, d.permissions) for d in given.devices] == [(node, node, "rw")]
    assert [one.name for one in given.cdi_devices] == ["hpn.io/net=a"]
    with pytest.raises(grpc.RpcError) as e:
        asked.allocate("gone")
    assert e.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert e.value.details() == "this node does not have 'gone' now; delete the pod"
    assert running.said == [e.value.details()]


def test_preferred(running: Running, asked: Kubelet) -> None:
    assert asked.prefer(["a", "b", "c"], [], 2) == ["a", "b"]
    assert asked.prefer(["a"], [], 99) == []
    assert asked.prefer(["a"], [], 99) == []
    assert running.said == [
        "rdma/hca: no advice on devices: ZeroDivisionError: integer division or modulo by zero; please report this"
    ]


def test_kubelet_names_all_that_there_can_be(running: Running, asked: Kubelet) -> None:
    """The largest number of IDs, each both available and required in the answer."""
    ids = [f"0000:3b:00.{hca}-{number}" for hca in range(8) for number in range(MOST // 8)]
    running.source.listed = [(one, True, (0,)) for one in ids]
    running.do(running.plugin.changed)
    assert asked.prefer(ids, ids, len(ids)) == ids
    running.source.listed = []
    running.do(running.plugin.changed)
    assert asked.prefer(ids, ids, 2) == ids[:2]


def test_what_nobody_can_read(running: Running, asked: Kubelet) -> None:
    """It is the peer's fault, and no reason for an error report."""
    for method in ("v1beta1.DevicePlugin/Allocate", "pluginregistration.Registration/NotifyRegistrationStatus"):
        with pytest.raises(grpc.RpcError, match=r"the message is not of type (v1beta1.Alloc|pluginregistration.Reg)"):
            asked._channel.unary_unary(f"/{method}")(b"\xff\xff", timeout=60)
    assert running.said == []


def test_the_socket_is_new_if_nobody_comes_back(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_AWAY", 0.2)
    path = running.plugin.socket_path

    def inode() -> int:
        return path.stat().st_ino

    old = path.with_name("old")
    os.link(path, old)
    before = inode()
    with kubelet(path) as one, kubelet(path) as another:
        stream, other = one.watch(), another.watch()
        next(stream)
        next(other)
        stream.cancel()
        # time: nothing is to happen
        threading.Event().wait(0.5)
        assert inode() == before
        other.cancel()
        until(lambda: inode() != before)
        old.unlink()
    with kubelet(path) as one:
        stream = one.watch()
        assert next(stream).devices
        before = inode()
        # time: nothing is to happen
        threading.Event().wait(0.5)
        assert inode() == before


def test_a_new_socket_is_tried_for_until_it_can_be_made(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old socket serves meanwhile."""
    monkeypatch.setattr(plugins, "_AWAY", 0.2)
    path = running.plugin.socket_path
    in_the_way = path.with_name(f".{path.name}")
    in_the_way.mkdir()
    old = path.with_name("old")
    os.link(path, old)
    before = path.stat().st_ino
    with kubelet(path) as one:
        stream = one.watch()
        next(stream)
        stream.cancel()
        until(lambda: running.said)
        assert one.info().name == "rdma/hca"
    in_the_way.rmdir()
    until(lambda: path.stat().st_ino != before)
    old.unlink()
    with kubelet(path) as one:
        assert next(one.watch()).devices
    assert len(running.said) == 1


def test_the_socket_stays_if_one_comes_back(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_AWAY", 3600.0)
    before = running.plugin.socket_path.stat().st_ctime_ns
    with kubelet(running.plugin.socket_path) as one:
        first = one.watch()
        next(first)
        first.cancel()
        until(lambda: running.plugin._renewal)
        second = one.watch()
        next(second)
        assert running.plugin._renewal is None
        assert running.plugin.socket_path.stat().st_ctime_ns == before
        second.cancel()


def test_closed(tmp_path: Path) -> None:
    """kubelet's stream ends at once, and another program's socket at the same path stays."""
    running = Running(tmp_path / "p.sock")
    with kubelet(tmp_path / "p.sock") as one:
        stream = one.watch()
        next(stream)
        (tmp_path / "p.sock").rename(tmp_path / "q.sock")
        (tmp_path / "p.sock").touch()
        running.end()
        with pytest.raises(grpc.RpcError):
            next(stream)
    assert (tmp_path / "p.sock").exists()


def test_it_takes_the_place_of_a_dead_one(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "p.sock"))
    running = Running(tmp_path / "p.sock")
    with kubelet(tmp_path / "p.sock") as one:
        assert one.info().name == "rdma/hca"
    assert (tmp_path / "p.sock").stat().st_mode & 0o777 == 0o600
    running.end()


@pytest.mark.parametrize("trouble", ["missing", "open", "long"])
def test_no_place_for_a_socket(tmp_path: Path, trouble: str) -> None:
    folder = tmp_path / "d"
    if trouble == "open":
        folder.mkdir()
        folder.chmod(0o777)
    name = "x" * 108 if trouble == "long" else "p.sock"
    if trouble == "long":
        folder.mkdir()
    loop = asyncio.new_event_loop()
    with pytest.raises(OSError) as e:  # noqa: PT011
        Plugin("rdma/hca", folder / name, loop, Source(), print).open()
    assert isinstance(e.value, Unusable) == (trouble == "open")
    assert trouble != "open" or f"chmod go-w {folder}" in str(e.value)
    assert not folder.exists() or not any(folder.iterdir())
    loop.close()
