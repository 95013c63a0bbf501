"""Parts of the API server's objects, which may have any form: users, and other programs, write them."""

from typing import Any

from base.protocol.spec import Json


def inside(body: Json, *keys: str) -> Json:
    """Return the object at the end of these keys; an empty one if there is none."""
    found: Any = body
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
