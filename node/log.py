"""The log of hpn node: one line for systemd's journal per change."""

import sys
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from base.table import abridged, printable_lines

_NAMED: Final = 8  # devices that one line names


class Topics:
    """The last sentences logged on each topic, and the topics that are problems: what hpn node cannot do now."""

    def __init__(self) -> None:
        self._last = dict[str, tuple[str, ...]]()
        self._problems = set[str]()

    def report(self, topic: str, *sentences: str, is_problem: bool = False) -> None:
        """Log the sentences that are new since the topic's last report."""
        before = self._last.get(topic, ())
        self._last[topic] = sentences
        (self._problems.add if is_problem else self._problems.discard)(topic)
        for sentence in sentences:
            if sentence not in before:
                log(sentence)

    def problem(self, topic: str, sentence: str) -> None:
        """Log a problem, unless the topic's last report was the same."""
        self.report(topic, sentence, is_problem=True)

    def solved(self, topic: str) -> None:
        """End the topic's problem, if there is one."""
        if topic in self._problems:
            self.forget(topic)

    def forget(self, topic: str) -> None:
        """Log the topic's next report even if it repeats the last one."""
        self._problems.discard(topic)
        self._last.pop(topic, None)

    @property
    def problems(self) -> Collection[str]:
        """The first word of each topic that is a problem."""
        return {topic.partition(" ")[0] for topic in self._problems}


def log(sentence: str) -> None:
    """Write a line for systemd's journal."""
    with suppress(OSError):  # the reader of stderr may be gone, which must not stop the daemon
        sys.stderr.write(printable_lines(f"hpn node: {sentence}\n"))
        sys.stderr.flush()


def some(devices: Collection[str]) -> str:
    """The devices as text, at most eight by name."""
    return abridged(sorted(devices), _NAMED) or "no device"


def cause(error: OSError) -> str:
    """The system's reason for the error, with the file where the error has one."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"
