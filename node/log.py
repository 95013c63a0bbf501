"""What hpn node says: a line for systemd's journal when something changes, and none while nothing does."""

import sys
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from base.table import printable_lines

_NAMED: Final = 8  # devices that one line names


class Topics:
    """What was said last of each topic, and which topics are problems: things that cannot be done now."""

    def __init__(self) -> None:
        self._said = dict[str, tuple[str, ...]]()
        self._problems = set[str]()

    def say_new(self, topic: str, *sentences: str, is_problem: bool = False) -> None:
        """Say what was not said when the topic came up last."""
        before = self._said.get(topic, ())
        self._said[topic] = sentences
        (self._problems.add if is_problem else self._problems.discard)(topic)
        for sentence in sentences:
            if sentence not in before:
                say(sentence)

    def problem(self, topic: str, sentence: str) -> None:
        """The same of something that cannot be done now."""
        self.say_new(topic, sentence, is_problem=True)

    def solved(self, topic: str) -> None:
        """If there was a problem, there is none any more."""
        if topic in self._problems:
            self.forget(topic)

    def forget(self, topic: str) -> None:
        """Whatever is said of the topic next is new."""
        self._problems.discard(topic)
        self._said.pop(topic, None)

    @property
    def problems(self) -> Collection[str]:
        """The topics of which there is a problem, each by its first word."""
        return {topic.partition(" ")[0] for topic in self._problems}


def say(sentence: str) -> None:
    """Write a line for systemd's journal."""
    with suppress(OSError):  # nobody may read stderr any more, and a message is no reason to stop
        sys.stderr.write(printable_lines(f"hpn node: {sentence}\n"))
        sys.stderr.flush()


def some(devices: Collection[str]) -> str:
    """Devices for people."""
    named = sorted(devices)
    if len(named) > _NAMED:
        return f"{', '.join(named[:_NAMED])} and {len(named) - _NAMED} more"
    return ", ".join(named) or "no device"


def cause(error: OSError) -> str:
    """Why the system refused, for people, and of which file where it says so."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"
