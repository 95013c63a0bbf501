"""Record a network namespace's content, to compare it before and after."""

import json
import subprocess
from typing import Any

_FOR_EVER = 2**32 - 1


def network(netns: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a namespace's links with their addresses, and its routes; an empty name means the host.

    Values that change without a request are left out: the kernel's link-local addresses come with the carrier, and a
    finite lifetime counts down.
    """
    links, routes = _links_and_routes(netns)
    for link in links:
        link["addr_info"] = [a for a in link["addr_info"] if a["scope"] != "link"]
        for address in link["addr_info"]:
            for key in ("valid_life_time", "preferred_life_time"):
                address[key] = address[key] if address[key] in (0, _FOR_EVER) else "some seconds"
        link["flags"] = [f for f in link["flags"] if f not in ("LOWER_UP", "NO-CARRIER")]
        link["operstate"] = ""
        data = link.get("linkinfo", {}).get("info_data", {})
        for key in [k for k in data if k.endswith("_timer")]:
            del data[key]
    routes = [
        r | ({"expires": "in some seconds"} if "expires" in r else {})
        for r in routes
        if not r["dst"].startswith(("fe80", "ff00"))
    ]
    return links, sorted(routes, key=str)


def _links_and_routes(netns: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read links and routes in one process."""
    command = ["ip", *(["-n", netns] if netns else []), "-j", "-d", "-batch", "-"]
    done = subprocess.run(
        command, input="addr\nroute show table all\n", capture_output=True, text=True, check=True, timeout=60
    )
    links, routes = done.stdout.splitlines()
    return json.loads(links), json.loads(routes)
