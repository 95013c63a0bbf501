"""Limits of locked memory (RLIMIT_MEMLOCK), as the device file, a DeviceClass and the policy file write them; pure."""

from typing import Any, Final

UNLIMITED, KEEP = "unlimited", "keep"
# Bytes, "unlimited", or "keep" for the limit that the runtime gives.
Limit = int | str
_DIGITS: Final = 18  # which the hook reads (packaging/launcher/hook.c)


def why_refused(value: Any) -> str:
    """A clause why the value is not a limit, with the remedy; empty for a limit."""
    if value in (UNLIMITED, KEEP) or (type(value) is int and 0 < value < 10**_DIGITS):
        return ""
    return f"is not a limit of locked memory; write {UNLIMITED}, {KEEP}, or bytes as digits without quotes"


def smaller(one: Limit, other: Limit) -> Limit:
    """The limit that allows less; ``keep`` raises nothing, so it is the smallest."""
    return min(one, other, key=_size)


def _size(limit: Limit) -> float:
    return {UNLIMITED: float("inf"), KEEP: 0.0}[limit] if isinstance(limit, str) else limit
