"""Open the backend of a configuration; the policy file holds its address and this node's credential.

Only commands that send requests import this module.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from base.protocol.errors import doing
from base.state import policy
from ipam.cluster import Documents, Machine

# The module of each backend.  Its ``opened`` takes the policy file's keys for the backend and its nodeName, if any, and
# returns the backend and this node's name in it.
KINDS: Final = {"kubernetes": "ipam.cluster.backends.kubernetes", "etcd": "ipam.cluster.backends.etcd"}
Opened = Callable[[Mapping[str, Any], str], tuple[Documents, str]]


# The backends that record each node's machine.
_KNOWING: Final = frozenset({"kubernetes"})
# man 5 machine-id.
MACHINE_ID = "/etc/machine-id"


@dataclass(frozen=True)
class Backend:
    """A backend, and this node's name there.

    ``host`` identifies this machine where only nodes themselves report it; empty where the backend records machines.
    """

    documents: Documents
    node: str
    host: str = ""

    def machine(self) -> Machine:
        """Return this machine, which lives now.

        By the UID, two machines with the same name keep their blocks apart.  Raises Unreachable, BackendRefused.
        """
        # The last report of this name may be another machine's.
        uid = self.host or self.documents.machine_uid(self.node)
        return Machine(self.node, uid, self.documents.now())


def opened(kind: str, kubeconfig: str = "") -> Backend:
    """Return the backend of that kind, without a request.  ``kubeconfig`` replaces the policy file's credential.

    Raises InvalidConfig for wrong keys in the policy file, and BackendRefused without a credential.
    """
    about, name = policy.backend(kind)
    if kubeconfig and kind in _KNOWING:
        about = {**about, "kubeconfig": kubeconfig}
    module_opened: Opened = import_module(KINDS[kind]).opened
    with doing(f"opening the backend that the cluster's nodes share ({kind})"):
        return Backend(*module_opened(about, name), "" if kind in _KNOWING else _host())


def _host() -> str:
    """Return a digest of the machine's ID, which is confidential; empty without one."""
    try:
        text = Path(MACHINE_ID).read_text().strip()
    except (OSError, ValueError):
        return ""
    return hashlib.sha256(f"hpn-cni {text}".encode()).hexdigest()[:32] if text else ""
