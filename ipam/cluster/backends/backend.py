"""The store that the nodes share, opened: which kind a configuration says, where and as whom the policy file does.

Imported by whoever asks the store, and so by no command that finds room in the node's own blocks.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from base.protocol.errors import doing
from base.state import node
from ipam.cluster import Documents, Machine

# Of each kind of store the module that has it.  There, ``opened`` takes what the policy file says of the store and the
# node's name, if it says one, and returns the store with this node's name in it.
KINDS: Final = {"kubernetes": "ipam.cluster.backends.kubernetes", "etcd": "ipam.cluster.backends.etcd"}
Opened = Callable[[Mapping[str, Any], str], tuple[Documents, str]]


# The kinds that know of each node which machine it is.
_KNOWING: Final = frozenset({"kubernetes"})
# man 5 machine-id.
MACHINE_ID = "/etc/machine-id"


@dataclass(frozen=True)
class Shared:
    """A store, and what this node is called there.  ``host`` is which machine it is, where the store does not know."""

    documents: Documents
    node: str
    host: str = ""

    def machine(self) -> Machine:
        """What the store knows of this node, and which machine it is: two that have one name by mistake must not take
        each other's blocks for their own.  Raises Unreachable, StoreRefused."""
        known = self.documents.machine(self.node)
        return replace(known, uid=known.uid or self.host)


def opened(kind: str, kubeconfig: str = "") -> Shared:
    """The store of that kind; nothing is asked of it yet.  ``kubeconfig``, if it is given, says as whom the API server
    is asked, and not the policy file.

    Raises InvalidConfig for what the policy file says of it, and StoreRefused if there is no credential.
    """
    about, name = node.store(kind, KINDS)
    if kubeconfig and kind in _KNOWING:
        about = {**about, "kubeconfig": kubeconfig}
    module_opened: Opened = import_module(KINDS[kind]).opened
    with doing(f"opening the store that the cluster's nodes share ({kind})"):
        return Shared(*module_opened(about, name), "" if kind in _KNOWING else _host())


def _host() -> str:
    """Which machine this is; empty if it does not say.  Not the text itself, which is nobody else's to know."""
    try:
        text = Path(MACHINE_ID).read_text().strip()
    except (OSError, ValueError):
        return ""
    return hashlib.sha256(f"hpn-cni {text}".encode()).hexdigest()[:32] if text else ""
