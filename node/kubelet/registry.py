"""All resources of the node: a plugin for each, and their sockets in kubelet's directory."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from node.health.status import Health
from node.kubelet.directory import AGAIN, Directory, Taken
from node.kubelet.plugin import HealthKey, Plugin, Served
from node.log import Topics, cause, log
from node.model import Offer


class Registry:
    """A plugin for each offered resource; ``served`` holds their offers and health."""

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Directory, topics: Topics) -> None:
        self._loop, self._directory, self._topics = loop, directory, topics
        self.served = dict[str, Served]()
        self._plugins = dict[str, Plugin]()
        self._open = set[str]()

    def offer(self, name: str, offer: Offer) -> None:
        """Offer the resource, or replace its offer; the next ``update`` notifies kubelet."""
        if name in self.served:
            self.served[name].offer = offer
            return
        self.served[name] = served = Served(offer)
        self._plugins[name] = Plugin(name, self._directory.socket(name), self._loop, served, log)

    def remove(self, name: str) -> None:
        """Withdraw the resource; kubelet notices at once."""
        del self.served[name]
        self._open.discard(name)
        self._topics.forget(f"socket {name}")
        self._plugins.pop(name).close()

    def update(self, health: Mapping[HealthKey, Health]) -> None:
        """Notify kubelet of each resource with units that changed by this health."""
        for name, served in self.served.items():
            if served.update(health):
                self._plugins[name].changed()

    def open(self) -> bool:
        """Make the missing sockets, if kubelet's directory exists.

        Return False if the caller must try again after AGAIN seconds.
        """
        path = self._directory.path
        try:
            if not self._directory.claim():
                self._topics.problem(
                    "kubelet", f"{path} does not exist, so no kubelet has run here; hpn node waits for it"
                )
                return True
        except (Taken, OSError) as e:
            self._topics.problem("kubelet", f"{e}" if isinstance(e, Taken) else _cannot_write(path, e))
            return False
        self._topics.solved("kubelet")
        failed = [name for name, plugin in self._plugins.items() if not self._open_one(name, plugin)]
        return not failed

    def close(self) -> None:
        """Remove all sockets, so that kubelet notices at once."""
        for plugin in self._plugins.values():
            plugin.close()

    def _open_one(self, name: str, plugin: Plugin) -> bool:
        path = self._directory.socket(name)
        if name in self._open and path.is_socket():
            return True
        if name in self._open:
            plugin.close()
        try:
            plugin.open()
        except OSError as e:
            self._open.discard(name)
            self._topics.problem(f"socket {name}", f"{name}: {_cannot_write(path, e)}")
            return False
        self._open.add(name)
        self._topics.report(f"socket {name}", f"serves {name} at {path}")
        return True


def _cannot_write(path: Path, error: OSError) -> str:
    return (
        f"{path}: {cause(error)}; kubelet gets no resource until it can be written, which is tried every {AGAIN:g} s: "
        "make room, or mount it for writing (in a DaemonSet without readOnly)"
    )
