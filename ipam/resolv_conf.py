"""resolv.conf(5)."""

import json
from pathlib import Path

from cni.errors import InvalidConfig
from cni.spec import Json


def dns(path: str) -> Json:
    """A resolv.conf(5) as a result's dns.  Raises InvalidConfig."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, ValueError) as e:
        raise InvalidConfig(f"ipam.resolvConf {json.dumps(path)} cannot be read ({e}); correct or remove it") from e
    found: Json = {}
    for line in lines:
        match line.split():
            case ["nameserver", server, *_]:
                found.setdefault("nameservers", []).append(server)
            case ["domain", domain, *_]:
                found["domain"] = domain
            case ["search" | "options" as keyword, *words]:
                found.setdefault(keyword, []).extend(words)
            case _:
                pass  # a comment, or an option that has no place in a result
    return found
