"""The form of a refused request, and keys that such requests share."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from support.topology import Host, Pod

# Prepares host and pod before the request; its result extends the environment.
Setup = Callable[[Host, Pod, ExitStack], dict[str, str] | None]


@dataclass(frozen=True)
class Bad:
    """A bad request and its answer: ``says`` lists words of the message, ``details`` a part of the error's details."""

    why: str
    code: int
    says: tuple[str, ...]
    keys: Mapping[str, Any] | bytes = field(default_factory=dict)
    environ: Mapping[str, Any] = field(default_factory=dict)
    command: str = "ADD"
    setup: Setup | None = None
    details: str = ""


def ipam(**keys: Any) -> dict[str, Any]:
    return {"ipam": {"type": "hpn-ipam"} | keys}


def subnet(**keys: Any) -> dict[str, Any]:
    return ipam(subnet="10.56.0.0/24", **keys)


def ranges(*sets: list[dict[str, Any]]) -> dict[str, Any]:
    return ipam(ranges=list(sets))


def runtime(**keys: Any) -> dict[str, Any]:
    return {"runtimeConfig": keys}


def cni_args(**keys: Any) -> dict[str, Any]:
    return {"args": {"cni": keys}}


SCRIPT = {"ipam": {"type": "script"}}
V4 = {"subnet": "10.56.0.0/24"}
