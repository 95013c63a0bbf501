"""What each service for kubelet has: its registration, the peers that watch it, and a log without repetition."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from base.kubelet import pluginregistration_pb2 as registration


class Shell:
    """The shell of a service.  ``log`` takes sentences, which name the service by ``title``."""

    def __init__(self, title: str, lost: str, log: Callable[[str], None]) -> None:
        """``lost``: what no pod gets while kubelet refuses the service."""
        self._title, self._lost, self._log = title, lost, log
        self._watchers = set[asyncio.Event]()
        self._logged = ""

    def note(self, status: registration.RegistrationStatus) -> registration.RegistrationStatusResponse:
        """Log kubelet's answer to the registration."""
        if not status.plugin_registered:
            self.log_once(
                f"kubelet refuses {self._title}: {' '.join(status.error.split())}; no pod gets {self._lost} until that "
                "is corrected, and kubelet tries again by itself"
            )
        elif self._logged:
            self.log_once(f"kubelet has accepted {self._title}")
        return registration.RegistrationStatusResponse()

    @property
    def is_watched(self) -> bool:
        """Whether a peer watches."""
        return bool(self._watchers)

    @contextmanager
    def watcher(self) -> Iterator[asyncio.Event]:
        """A peer watches until the end.  The event is set at each change, and the peer clears it."""
        watcher = asyncio.Event()
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def changed(self) -> None:
        """Notify all peers that watch."""
        for watcher in self._watchers:
            watcher.set()

    def log_once(self, sentence: str) -> None:
        """Log the sentence, unless it was the last one."""
        if self._logged != sentence:
            self._logged = sentence
            self._log(sentence)
