"""QEMU's monitor, spoken to from inside the guest: what a kernel cannot do to the machine that it runs on.

A NIC pulled, a cable, the power.  QMP: a JSON object a line, commands answered in order, events in between.
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
    """One at a time may be open."""

    def __init__(self) -> None:
        self._port = os.open(PORT, os.O_RDWR)
        self._unread = b""
        self._events: list[dict[str, Any]] = []
        # QEMU greets once in its life, and takes this once; who comes later is refused, which does no harm.
        self._ask("qmp_capabilities", {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._port)

    def command(self, name: str, /, **arguments: Any) -> Any:
        """What it returns."""
        answer = self._ask(name, arguments)
        assert "return" in answer, f"QMP {name} {arguments}: {answer['error']['desc']}"
        return answer["return"]

    def event(self, name: str, **data: Any) -> dict[str, Any]:
        """Wait for the event of that name, and with that data."""

        def wanted(event: dict[str, Any]) -> bool:
            return event["event"] == name and data.items() <= event.get("data", {}).items()

        while not any(map(wanted, self._events)):
            self._events.append(self._next("event"))
        event = next(filter(wanted, self._events))
        self._events.remove(event)
        return event

    def power_off(self) -> None:
        """As if the plug were pulled: QEMU ends, and nothing in the guest gets to write any more."""
        os.write(self._port, b'{"execute": "quit"}\n')
        # time: QEMU ends this process
        time.sleep(TIMEOUT)
        raise AssertionError("QEMU did not quit")

    def _ask(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        # Told apart from the answer to one who had the port before, and did not wait for it.
        number = time.monotonic_ns()
        os.write(self._port, json.dumps({"execute": name, "arguments": arguments, "id": number}).encode() + b"\n")
        while (answer := self._next("id"))["id"] != number:
            pass
        return answer

    def _next(self, key: str) -> dict[str, Any]:
        """The next message with that key; events on the way to it are kept."""
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
