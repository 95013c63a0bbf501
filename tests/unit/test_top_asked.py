"""What hpn top shows of all that it reads, and what it is compared with: by pod, device and port."""

from ctl.traffic.counted import Totals
from ctl.traffic.sampling import Seen


def seen(tx: int, *owner: str) -> Seen:
    namespace, pod = owner or ("", "")
    return Seen("ACTIVE", (namespace, pod), Totals(0, tx))


def test_a_pod_without_a_namespace() -> None:
    """As podman names them."""
    assert (seen(0, "", "web").pod, seen(0, "ns", "web").pod, seen(0).pod) == ("web", "ns/web", "")
