"""DNS settings from a resolv.conf(5)."""

import json

from base.protocol.errors import InvalidConfig
from base.protocol.location import is_absolute
from base.protocol.spec import Json
from base.state import node

_LIMIT = 1 << 16


def dns(path: str) -> Json:
    """A result's dns from a resolv.conf(5).  Raises InvalidConfig, also if the node does not allow the path."""
    label = "ipam.resolvConf"
    if not is_absolute(path):
        raise InvalidConfig(f"{label} {json.dumps(path)} must be an absolute path")
    place = node.place(label, path, node.allowed_paths("resolvConf"))
    try:
        lines = place.read(_LIMIT).decode().splitlines()
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise InvalidConfig(f"{label} {json.dumps(path)} cannot be read ({why}); correct or remove it") from e
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
