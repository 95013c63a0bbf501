"""The processes that do one piece of work after the other: their order and number, their ends, and what they hold."""

import asyncio
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from support.topology import until

from base.child_process import Child
from node.dra import helpers
from node.dra.helpers import Helpers

_DONE = list[object]()


def done(piece: object) -> list[object]:
    """The pieces of this process so far."""
    _DONE.append(piece)
    return _DONE


def passed(fifo: str, piece: object) -> object:
    """Wait until the test writes to this FIFO."""
    with open(fifo, "rb", buffering=0) as file:
        file.read(1)
    return piece


def held() -> list[tuple[str, bool]]:
    """The descriptors of this process but the standard ones: the path, and whether it is open for reading only."""
    found = list[tuple[str, bool]]()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own
            if int(name) > 2:
                how = fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE
                found.append((os.readlink(f"/proc/self/fd/{name}"), how == os.O_RDONLY))
    return found


def is_there(pid: int) -> bool:
    """Whether the process is there, also as a zombie."""
    return Path(f"/proc/{pid}").exists()


@asynccontextmanager
async def opened() -> AsyncIterator[Helpers]:
    made = Helpers(asyncio.get_running_loop())
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    def own() -> tuple[list[str], str]:
        return sorted(os.listdir("/proc/self/fd")), Path(f"/proc/self/task/{os.getpid()}/children").read_text()

    before = own()
    yield
    assert own() == before


async def fails(made: Helpers, work: Callable[[], object]) -> str:
    with pytest.raises(ChildProcessError) as failure:
        await made.do(work)
    return f"{failure.value}"


def test_one_process_for_one_piece_after_the_other() -> None:
    async def run() -> None:
        async with opened() as made:
            assert await made.do(partial(done, "a")) == ["a"]
            pid = await made.do(os.getpid)
            assert await made.do(partial(done, "b")) == ["a", "b"]
            assert pid == await made.do(os.getpid) != os.getpid()

    asyncio.run(run())


def test_answers_that_are_longer_than_a_sockets_buffer() -> None:
    async def run() -> None:
        async with opened() as made:
            assert await made.do(partial(bytes, 8 << 20)) == bytes(8 << 20)
            assert await made.do(partial(len, bytes(8 << 20))) == 8 << 20

    asyncio.run(run())


def test_no_piece_waits_for_another(tmp_path: Path) -> None:
    """Each gets its own answer, whatever the order of the ends."""

    async def run() -> None:
        async with opened() as made:
            tasks = dict[int, asyncio.Task[object]]()
            for number in range(3):
                fifo = tmp_path / f"{number}"
                os.mkfifo(fifo)
                tasks[os.open(fifo, os.O_RDWR)] = asyncio.create_task(made.do(partial(passed, str(fifo), number)))
            for number, (fd, task) in [*enumerate(tasks.items())][::-1]:
                assert await made.do(os.getpid)
                os.write(fd, b"x")
                assert await task == number
                os.close(fd)

    asyncio.run(run())


def test_without_work_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time begins anew with each piece."""

    async def run() -> None:
        async with opened() as made:
            pid = await made.do(os.getpid)
            (before,) = made._free.values()
            assert await made.do(os.getpid) == pid
            (after,) = made._free.values()
            assert before.cancelled()
            assert after.when() > before.when()
            monkeypatch.setattr(helpers, "IDLE", 0.1)
            await made.do(os.getpid)
            while is_there(pid):
                await asyncio.sleep(0.02)  # time: the loop ends it
            assert await made.do(os.getpid) != pid

    asyncio.run(run())


def test_after_many_pieces_another_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers, "MOST", 3)

    async def run() -> None:
        async with opened() as made:
            pids = [await made.do(os.getpid) for _ in range(7)]
            assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]
            assert not is_there(pids[0])

    asyncio.run(run())


def test_a_death_in_the_middle(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs its piece only, which is not done again."""
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)  # a helper holds no file of pytest's

    async def run() -> None:
        async with opened() as made:
            pid = await made.do(os.getpid)
            assert await fails(made, partial(os.kill, pid, signal.SIGKILL)) == "ended with status -9"
            assert not is_there(pid)
            assert await made.do(partial(done, "a")) == ["a"]
            assert await fails(made, partial(os._exit, 3)) == "ended with status 3"
            assert await fails(made, partial(int, "x")) == "ended with status 1"
            assert await made.do(partial(done, "b")) == ["b"]

    asyncio.run(run())
    assert "ValueError" in capfd.readouterr().err


def test_a_death_while_it_is_free() -> None:
    async def run() -> None:
        async with opened() as made:
            pid = await made.do(os.getpid)
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert await made.do(os.getpid) != pid
            assert not is_there(pid)

    asyncio.run(run())


def test_a_piece_that_hangs() -> None:
    """Its alarm ends it, and no other piece."""

    async def run() -> None:
        async with opened() as made:
            pid = await made.do(os.getpid)
            assert await made.do(partial(signal.alarm, 600)) == 0
            assert await made.do(partial(signal.alarm, 0)) == 0
            assert await made.do(os.getpid) == pid
            assert await fails(made, partial(_hang, 1)) == "ended with status -14"
            assert await made.do(os.getpid) != pid

    asyncio.run(run())


def _hang(seconds: int) -> None:
    signal.alarm(seconds)
    # time: the alarm ends it
    time.sleep(60)


@pytest.mark.parametrize("piece", [os.getpid, partial(bytes, 8 << 20), partial(len, bytes(8 << 20))])
def test_one_that_is_stopped(piece: Callable[[], object]) -> None:
    """The loop does not wait for it.  Whoever gives up on the piece ends the process."""

    async def run() -> None:
        async with opened() as made:
            pid = await made.do(os.getpid)
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(made.do(piece), 0.2)  # time: no answer is to come
            assert not is_there(pid)
            assert await made.do(os.getpid) != pid

    asyncio.run(run())


def test_what_it_holds(tmp_path: Path) -> None:
    """A socket for its work, and a pipe that ends with it.  Of its parent's only files that are open for reading: the
    frozen program has its modules in one.  A lock of the parent's is free as soon as that has closed it."""
    file = tmp_path / "file"
    file.touch()
    pair = socket.socketpair()
    pipe = os.pipe()
    with file.open("rb"), file.open("r+b") as lock, pair[0], pair[1]:
        fcntl.flock(lock, fcntl.LOCK_EX)

        async def run() -> None:
            async with opened() as made:
                sibling = asyncio.create_task(made.do(partial(signal.sigtimedwait, [], 60)))
                await asyncio.sleep(0)  # time: the task begins
                found = await made.do(held)
                assert (f"{file}", True) in found
                others = [path for path, is_for_reading in found if not (path.startswith("/") and is_for_reading)]
                assert sorted(path.partition(":")[0] for path in others) == ["pipe", "socket"]
                lock.close()
                with file.open("r+b") as another:
                    fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
                sibling.cancel()

        asyncio.run(run())
    for fd in pipe:
        os.close(fd)


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    """Also in the middle of its work, and while another child of its parent lives."""
    pids, fifo = tmp_path / "pids", tmp_path / "fifo"
    os.mkfifo(fifo)

    async def begin() -> None:
        async with opened() as made:
            task = asyncio.create_task(made.do(partial(passed, str(fifo), "")))
            await asyncio.sleep(0)  # time: the task begins
            idle = await made.do(os.getpid)
            sibling = Child(partial(passed, str(fifo), ""))
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            assert f"{idle}" in children
            pids.with_suffix(".new").write_text(" ".join(children))
            pids.with_suffix(".new").rename(pids)
            await task
            sibling.end()

    parent = Child(lambda: asyncio.run(begin()))
    until(pids.exists)
    of_helpers = [*map(int, pids.read_text().split())]
    assert len(of_helpers) == 3
    parent.end()
    *_, sibling = of_helpers
    try:
        until(lambda: not any(map(is_running, of_helpers[:2])))
        assert is_running(sibling)
    finally:
        os.kill(sibling, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_where_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next piece tries again."""

    def fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    async def run() -> None:
        async with opened() as made:
            with monkeypatch.context() as patch:
                patch.setattr(os, "fork", fork)
                with pytest.raises(BlockingIOError):
                    await made.do(os.getpid)
            assert await made.do(os.getpid)

    asyncio.run(run())
