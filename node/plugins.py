"""The plugins of all resources, and their sockets in kubelet's directory."""

from collections.abc import Mapping
from pathlib import Path

from node.directory import AGAIN, Directory, Taken
from node.health import Health
from node.kubelet.plugin import Plugin
from node.loop import Loop
from node.model import Offer
from node.saying import Topics, cause, say
from node.serving import Judged, Served


class Plugins:
    """A plugin for each resource that is offered; ``served`` has what each of them tells kubelet."""

    def __init__(self, loop: Loop, directory: Directory, topics: Topics) -> None:
        self._loop, self._directory, self._topics = loop, directory, topics
        self.served = dict[str, Served]()
        self._plugins = dict[str, Plugin]()
        self._open = set[str]()

    def offer(self, name: str, offer: Offer) -> None:
        """Offer the resource, in the place of what was offered of it; kubelet hears of it by ``tell``."""
        if name in self.served:
            self.served[name].offer = offer
            return
        self.served[name] = served = Served(offer)
        self._plugins[name] = Plugin(name, self._directory.socket(name), self._loop, served, say)

    def remove(self, name: str) -> None:
        """Offer the resource no more; kubelet knows at once."""
        del self.served[name]
        self._open.discard(name)
        self._topics.forget(f"socket {name}")
        self._plugins.pop(name).close()

    def tell(self, health: Mapping[Judged, Health]) -> None:
        """Tell kubelet what is new of the resources, now that their devices' health is this."""
        for name, served in self.served.items():
            if served.update(health):
                self._plugins[name].changed()

    def open(self) -> bool:
        """Have a socket for each resource in kubelet's directory, if that is there; False if that has to be tried
        again after AGAIN seconds."""
        path = self._directory.path
        try:
            if not self._directory.claim():
                self._topics.problem(
                    "kubelet", f"{path} is not there, so no kubelet has run here; it will be seen when it is"
                )
                return True
        except (Taken, OSError) as e:
            self._topics.problem("kubelet", f"{e}" if isinstance(e, Taken) else _cannot_write(path, e))
            return False
        self._topics.solved("kubelet")
        failed = [name for name, plugin in self._plugins.items() if not self._open_one(name, plugin)]
        return not failed

    def close(self) -> None:
        """Remove all sockets, so that kubelet knows at once."""
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
        self._topics.say_new(f"socket {name}", f"serves {name} at {path}")
        return True


def _cannot_write(path: Path, error: OSError) -> str:
    return (
        f"{path}: {cause(error)}; kubelet hears of nothing until it can be written, which is tried every "
        f"{AGAIN:g} s: make room, or mount it for writing (in a DaemonSet without readOnly)"
    )
