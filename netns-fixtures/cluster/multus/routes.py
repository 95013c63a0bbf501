"""default-route: the default routes that a pod requests over one of its interfaces."""

import subprocess
from collections.abc import Sequence
from typing import Any

_DEFAULT = {4: "0.0.0.0/0", 6: "::0/0"}


class RoutesFailed(Exception):
    """``ip`` could not add a route."""


def give(netns: str, ifname: str, gateways: Sequence[str]) -> None:
    """Add default routes, unless there are some already.

    Multus intends to remove those of the pod's interfaces first, but 4.3.0 does not: its netlink library no longer
    shows a default route in the form that Multus searches for.  Raises RoutesFailed.
    """
    for gateway in gateways:
        words = ["ip", "route", "add", "default", "via", gateway, "dev", ifname]
        done = subprocess.run(["nsenter", f"--net={netns}", *words], capture_output=True, text=True, check=False)
        if done.returncode and "File exists" not in done.stderr:
            raise RoutesFailed(f"{' '.join(words)}: {done.stderr.strip()}")


def moved(result: dict[str, Any], gateways: Sequence[str]) -> dict[str, Any]:
    """The result to store afterwards: with those default routes, and no others."""
    kept = [route for route in result.get("routes") or [] if route.get("dst") not in _DEFAULT.values()]
    new = [{"dst": _DEFAULT[6 if ":" in gateway else 4], "gw": gateway} for gateway in gateways]
    return result | {"routes": kept + new}
