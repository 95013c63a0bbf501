"""hpn daemonset claims: refuse Helm's removal of the chart while pods have claims of hpn.

kubelet ends a pod with a claim only after the claim's driver has answered.  In the mode container the DaemonSet's pod
is that driver.  So the chart runs this before its removal.

Rejected: the DaemonSet's pods, which end in the same way at a rollout.  A policy of the API server, which sees no other
object than the removed one.
"""

from contextlib import closing
from pathlib import Path
from typing import Final

from base.protocol.errors import NotAvailable
from ctl.installation import command
from node.dra import api

# The credential that kubelet puts into a container.
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def refuse(account: Path = ACCOUNT) -> list[str]:
    """A line for the log.  Raises NotAvailable while pods have claims, BackendRefused, Unreachable, InvalidConfig."""
    with closing(api.opened(f"{account}")) as server:
        held = sorted(server.pods_with_claims())
    if held:
        raise NotAvailable(
            f"pods have claims of hpn, and kubelet cannot end them without it: {'; '.join(command.first(held))}.  "
            "Nothing was removed.  Delete these pods first; or add --no-hooks, and they end after the next install"
        )
    return ["no pod has a claim of hpn"]
