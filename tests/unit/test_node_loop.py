"""The loop calls back for what it was told to, and sleeps otherwise."""

import gc
import os
import time
from collections.abc import Iterator

import pytest

from node.loop import Alarm, Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    one = Loop()
    yield one
    one.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_a_descriptor_that_is_readable(loop: Loop, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    heard = list[bytes]()
    loop.watch(reader, lambda: heard.append(os.read(reader, 9)))
    loop.turn(0)
    assert heard == []
    os.write(writer, b"x")
    loop.turn(0)
    assert heard == [b"x"]
    loop.unwatch(reader)
    os.write(writer, b"y")
    loop.turn(0)
    assert heard == [b"x"]


def test_a_descriptor_that_takes_more(loop: Loop, pipe: tuple[int, int]) -> None:
    _, writer = pipe
    calls = list[str]()
    loop.watch(writer, lambda: calls.append("readable"), lambda: calls.append("writable"))
    loop.turn(0)
    loop.watch(writer, lambda: calls.append("readable"))
    loop.turn(0)
    assert calls == ["writable"]


def test_times_come_in_order(loop: Loop) -> None:
    calls = list[str]()
    loop.after(0.02, loop.stop)
    loop.after(0.01, lambda: calls.append("second"))
    loop.after(0.005, lambda: calls.append("never")).cancel()
    loop.after(0, lambda: calls.append("first"))
    loop.run()
    assert calls == ["first", "second"]


def test_what_is_cancelled_takes_no_memory(loop: Loop) -> None:
    """An event may put off an hour's alarm thousands of times."""
    calls = list[str]()
    for _ in range(1000):
        loop.after(3600, loop.stop).cancel()
    loop.after(0.01, lambda: calls.append("last"))
    loop.after(0.02, loop.stop)
    # Not isinstance: other tests may have left a weak reference to what is gone.
    assert len([one for one in gc.get_objects() if type(one) is Alarm]) < 200
    loop.run()
    assert calls == ["last"]


def test_it_sleeps(loop: Loop, pipe: tuple[int, int]) -> None:
    loop.watch(pipe[0], loop.stop)
    before, began = time.thread_time(), time.monotonic()
    loop.after(0.2, loop.stop)
    loop.run()
    assert time.monotonic() - began >= 0.2
    # time: of this thread's processor, and a loop that spins has all of it
    assert time.thread_time() - before < 0.1
