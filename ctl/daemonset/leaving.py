"""hpn daemonset leave: remove hpn from a node that the DaemonSet has left.

kubelet keeps a directory for each pod that is bound to its node, from before it pulls the images until the pod is
deleted.  The directories survive reboots, and times without kubelet or the API server.  A replaced pod has none for
seconds, and a pod of a deleted DaemonSet for ever.

Rejected: the pod's end (SIGTERM, preStop), which is the same at a rollout.  A Helm hook: kustomize has none, and it
reaches no node that is off.  The API server's answer: it needs a credential, and the chart's removal removes that too.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ctl.installation import command, files, layout, state

ABSENT: Final = 600.0
_PACE: Final = 5.0
# The volume of the DaemonSet's pods (packaging/kubernetes/daemonset.yaml).
_VOLUME: Final = "volumes/kubernetes.io~empty-dir/hpn-mode"


def leave(kubelet: Path, absent: float) -> list[str]:
    """Uninstall if the DaemonSet has no pod here for ``absent`` seconds, and no pod needs hpn.

    Return a line for each step, or the reason why hpn stays; none if the DaemonSet is here.  Raises CniError.
    """
    end = time.monotonic() + absent
    while (why := _stays(kubelet)) is None and time.monotonic() < end:
        time.sleep(min(_PACE, absent))
    return _uninstall(kubelet) if why is None else why


def is_here(kubelet: Path) -> bool:
    """Whether kubelet has a pod of the DaemonSet in this directory."""
    return next(_pods(kubelet, _VOLUME), None) is not None


def _uninstall(kubelet: Path) -> list[str]:
    root = Path("/")
    if held := state.holders(root):
        return [f"hpn stays until these pods end: {'; '.join(command.first(held))}"]
    with files.exclusive(root):
        # A pod that comes after this waits for the lock, and installs again.
        if (why := _stays(kubelet)) is not None:
            return why
        # Not this process's own unit, which ends with it.
        return command.remove(root, layout.units())


def _stays(kubelet: Path) -> list[str] | None:
    """Why hpn stays, without a line for the usual reason; None if kubelet has only pods of others here."""
    if is_here(kubelet):
        return []
    # After a reboot of a node without a disk, kubelet has no pods until it has asked the API server.
    if not next(_pods(kubelet, "."), None):
        return [f"hpn stays: {kubelet}/pods has no pod"]
    return None


def _pods(kubelet: Path, inside: str) -> Iterator[Path]:
    """Those of kubelet's directories of pods that have this path inside."""
    return (one for one in kubelet.glob("pods/*") if (one / inside).exists())
