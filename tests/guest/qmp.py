"""QEMU's monitor, used inside the guest for actions that a kernel cannot do to its own machine.

Examples: unplug a NIC, pull a cable, cut the power.  QMP sends one JSON object per line; it answers commands in order
and sends events in between.
"""

import json
import os
import select
import time
from types import TracebackType
from typing import Any, Self

PORT = "/dev/vport0p2"
TIMEOUT = 60.0


class Monitor:
    """A connection to the monitor; only one may be open at a time."""

    def __init__(self) -> None:
        self._port = os.open(PORT, os.O_RDWR)
        self._unread = b""
        self._events: list[dict[str, Any]] = []
        # QEMU greets once in its life and accepts this once; it refuses later attempts, which does no harm.
        self._ask("qmp_capabilities", {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._port)

    def command(self, name: str, /, **arguments: Any) -> Any:
        """Run the command, and return its result."""
        answer = self._ask(name, arguments)
        assert "return" in answer, f"QMP {name} {arguments}: {answer['error']['desc']}"
        return answer["return"]

    def event(self, name: str, **data: Any) -> dict[str, Any]:
        """Wait for the event with that name and data."""

        def wanted(event: dict[str, Any]) -> bool:
            return event["event"] == name and data.items() <= event.get("data", {}).items()

        while not any(map(wanted, self._events)):
            self._events.append(self._next("event"))
        event = next(filter(wanted, self._events))
        self._events.remove(event)
        return event

    def power_off(self) -> None:
        """Cut the power: QEMU ends, and the guest cannot write any more."""
        os.write(self._port, b'{"execute": "quit"}\n')
        # time: QEMU ends this process
        time.sleep(TIMEOUT)
        raise AssertionError("QEMU did not quit")

    def _ask(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        # The id distinguishes this answer from one to an earlier user of the port that did not wait for it.
        number = time.monotonic_ns()
        os.write(self._port, json.dumps({"execute": name, "arguments": arguments, "id": number}).encode() + b"\n")
        while (answer := self._next("id"))["id"] != number:
            pass
        return answer

    def _next(self, key: str) -> dict[str, Any]:
        """The next message with that key; store the events that arrive before it."""
        while True:
            message = json.loads(self._line())
            if key in message:
                return dict(message)
            if "event" in message:
                self._events.append(message)

    def _line(self) -> bytes:
        deadline = time.monotonic() + TIMEOUT
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._port], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"QEMU said nothing for {TIMEOUT} s"
            self._unread += os.read(self._port, 65536)
        line, _, self._unread = self._unread.partition(b"\n")
        return line
