"""Writes the node's labels: a child process asks the API server at each change, and once an hour.

A file beside kubelet's sockets keeps them over a boot.  So a value that is unknown keeps its last one.  If the device
file has no labels any more, the labels that an earlier process wrote are removed.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from base.child_process import Child
from base.protocol.errors import CniError
from base.state import durable
from node.background import Background
from node.log import Topics

TOPIC: Final = "labels"
# All times are in seconds.
REST: Final = 5.0  # from an event to the next look at /sys
AGAIN: Final = 5.0  # from a failed round to the next; twice as long after each further failure, up to EVERY
EVERY: Final = 3600.0  # between rounds, because other programs may remove labels
JITTER: Final = 0.2  # of AGAIN and EVERY


class Publisher:
    """Keeps the labels of this node current until ``close``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        topics: Topics,
        kubeconfig: str,
        file: Path,
        wanted: Callable[[], Mapping[str, str]],
    ) -> None:
        """``file`` keeps the labels.  ``wanted`` returns the present ones by name; an empty value is unknown."""
        self._loop, self._topics, self._kubeconfig = loop, topics, kubeconfig
        self._file, self._wanted = file, wanted
        self._background = Background(loop, self._begin)
        self._labels = _read(file)
        self._tried: Mapping[str, str] | None = None  # the labels of the last round
        self._due = 0.0  # when the next round of the same labels is, by the loop's clock
        self._failures = 0

    def changed(self) -> None:
        """Note that the labels may have changed."""
        self._background.after(REST)

    def close(self) -> None:
        """Stop; the labels stay."""
        self._background.close()

    def _begin(self) -> None:
        if self._background.is_at_work:
            self._background.after(REST)
            return
        found = self._wanted()
        labels = {name: known for name, value in found.items() if (known := value or self._labels.get(name, ""))}
        if not labels and not self._file.exists():
            return
        if labels == self._tried and (rest := self._due - self._loop.time()) > 0:
            self._background.after(rest)
            return
        self._tried = labels
        try:
            if labels != self._labels:
                durable.write(self._file, {"labels": labels}, makes=False)
            self._labels = labels
            self._background.start(partial(self._round, labels), self._finish)
        except (OSError, CniError) as e:
            self._failed(f"the node's labels stay as they are: {e.msg if isinstance(e, CniError) else e}")

    def _round(self, labels: Mapping[str, str]) -> str:
        """Do a round.  For a child process."""
        from node.labels.round import publish  # noqa: PLC0415  # for the child only

        return publish(self._kubeconfig, labels)

    def _finish(self, child: Child) -> None:
        try:
            problem = child.answer()
            if not problem and not self._labels:
                durable.remove(self._file)
        except (OSError, EOFError) as e:
            problem = f"the node's labels cannot be written: the process of the round {e}"
        except CniError as e:
            problem = e.msg
        if problem:
            self._failed(f"{problem}")
            return
        self._topics.solved(TOPIC)
        self._failures = 0
        if self._labels:
            self._again(EVERY)

    def _failed(self, why: str) -> None:
        self._topics.problem(TOPIC, why)
        self._failures += 1
        self._again(min(AGAIN * 2 ** min(self._failures - 1, 16), EVERY))

    def _again(self, seconds: float) -> None:
        """Schedule the next round of the same labels.  Those of many nodes do not coincide."""
        seconds *= random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311  # no secret
        self._due = self._loop.time() + seconds
        self._background.after(seconds)


def _read(file: Path) -> Mapping[str, str]:
    """The labels in the file; none if it is missing or unreadable."""
    try:
        return {str(name): str(value) for name, value in (durable.read(file) or {"labels": {}})["labels"].items()}
    except (CniError, LookupError, TypeError, AttributeError):
        return {}
