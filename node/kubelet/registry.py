"""All servers at kubelet: a device plugin for each offered resource, and drivers."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from node.health.status import Health, HealthKey
from node.kubelet.allocations import Allocations
from node.kubelet.directory import AGAIN, Directory, Taken
from node.kubelet.plugin import Plugin
from node.kubelet.served import Served
from node.log import Topics, cause, log
from node.model import Offer


class Hosted(Protocol):
    """A server at a socket of kubelet's directory."""

    def open(self) -> None: ...

    def close(self) -> None: ...


class Registry:
    """A plugin for each offered resource.  ``served`` holds their offers and health, ``allocations`` the latest
    ones."""

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Directory, topics: Topics) -> None:
        self._loop, self._directory, self._topics = loop, directory, topics
        self.served = dict[str, Served]()
        self.allocations = Allocations()
        self._plugins = dict[str, Plugin]()
        self._drivers = dict[str, Hosted]()
        self._open = set[str]()

    def offer(self, name: str, offer: Offer) -> None:
        """Offer the resource, or replace its offer; the next ``update`` notifies kubelet."""
        if name in self.served:
            self.served[name].offer = offer
            return
        self.served[name] = served = Served(offer, self.allocations)
        self._plugins[name] = Plugin(name, self._directory.socket(name), self._loop, served, log)

    def host(self, name: str, driver: Hosted) -> None:
        """Open and close the driver's socket, which is that of ``name``, with those of the plugins."""
        self._drivers[name] = driver

    def hosts(self, name: str) -> bool:
        """Whether a driver has that name."""
        return name in self._drivers

    def dismiss(self, name: str) -> None:
        """Close the driver; kubelet notices at once."""
        self._open.discard(name)
        self._topics.forget(f"socket {name}")
        self._drivers.pop(name).close()

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
        stands = {name for name in self._open if self._directory.socket(name).is_socket()}
        servers: dict[str, Hosted] = {**self._plugins, **self._drivers}
        missing = [name for name in servers if name not in stands]
        others = self._directory.others() if missing else {}
        failed = [name for name in missing if name in others or not self._open_one(name, servers[name])]
        for name in failed:
            if name in others:
                what, remedy = "device plugin that offers it", ", or the resource from a file"
                if name in self._drivers:
                    what, remedy = "driver with that name", ""
                self._topics.problem(
                    f"socket {name}",
                    f"{name}: {others[name]} is another {what}, so hpn node does not, until that one ends; remove the "
                    f"node from its DaemonSet{remedy}",
                )
        return not failed

    def close(self) -> None:
        """Remove all sockets, so that kubelet notices at once."""
        for server in (*self._plugins.values(), *self._drivers.values()):
            server.close()

    def _open_one(self, name: str, plugin: Hosted) -> bool:
        path = self._directory.socket(name)
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
        f"{path}: {cause(error)}; kubelet gets no resource until it can be written, which is tried every {AGAIN:g} s; "
        "make room, or mount it for writing (in a DaemonSet without readOnly)"
    )
