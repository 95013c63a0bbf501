"""Encode a holding as lines of JSON in the file ``leases``, and decode them.  Pure.

    {"containerID":"...","ifname":"hpn0","addresses":["10.0.0.2/24"],"pod":"ns/p",...,"crc":"0a1b2c3d"}

A line is padded with spaces to a sector.  A longer lease continues in other lines, and each line names the next.  Only
the first line makes it a lease, so the others are on disk before it.

    {"containerID":"...",...,"next":7,"crc":"..."}       {"of":3,"addresses":["fd00::2/64"],...,"crc":"..."}
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface
from typing import Any, Final
from zlib import crc32

from base.protocol.spec import Json, Key
from ipam.stores import Owner, Sandbox, Terms
from ipam.stores.holdings import Holding, Kept, Lease, Lost

# A sector: a disk writes it whole or not at all.
LINE: Final = 512
BLANK: Final = b" " * (LINE - 1) + b"\n"
DIGEST: Final = 12

_SEAL: Final = b',"crc":"%08x"}'
_ROOM: Final = LINE - len(_SEAL % 0) - 1
_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode
_LINKS: Final = 32  # bytes for "of" and "next" where there are several lines
_TEXT: Final = 320  # the longest text that is for people only


class Unreadable(ValueError):
    """A line is neither blank nor as it was written."""


def digest(key: Key) -> bytes:
    return _hash(str(key))


def sticky_digest(name: str) -> bytes:
    """The digest of the addresses kept for a sticky name.  No key begins with a space."""
    return _hash(f" sticky {name}")


def digest_of(holding: Holding) -> bytes:
    """The digest under which the index finds a holding."""
    if isinstance(holding, Lease):
        return digest(holding.owner.key)
    if isinstance(holding, Lost):
        return holding.digest
    return sticky_digest(holding.sticky) if holding.sticky else _hash(f" cooling {holding.addresses[0].ip}")


@lru_cache(16)  # a call hashes the same key several times
def _hash(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=DIGEST).digest()


def encode(holding: Holding) -> Json:
    """The body of a holding's line; long text for people is truncated."""
    body = holding.to_json()
    return body | {name: _short(body[name]) for name in ("pod", "netns") if name in body}


def decode(body: Json) -> Holding:
    """The holding in a body.  Raises Unreadable."""
    try:
        if "unreadable" in body:
            ips = tuple(ip_address(address) for address in body["addresses"])
            return Lost(bytes.fromhex(body["key"]), ips, body["boot"], body["unreadable"])
        addresses = tuple(ip_interface(address) for address in body["addresses"])
        if "released" in body:
            released, cool, until = (int(body[name]) for name in ("released", "cool", "until"))
            why = body.get("mac", ""), body.get("boot", "")
            return Kept(addresses, body["pod"], released, cool, body["sticky"], until, *why)
        terms = Terms(body.get("cooldown", 0), body.get("sticky", ""), body.get("ttl", 0))
        key = Key(body["containerID"], body["ifname"])
        owner = Owner(key, body["pod"], body["netns"], sandbox(body), terms)
        return Lease(owner, addresses, body["boot"], body["time"])
    except (KeyError, TypeError, ValueError) as e:
        raise Unreadable(f"not a lease ({type(e).__name__}: {e})") from e


def sandbox(body: Json) -> Sandbox | None:
    """The namespace of a lease's body, None if it has none.  Raises Unreadable."""
    try:
        return Sandbox(**body["sandbox"]) if "sandbox" in body else None
    except TypeError as e:
        raise Unreadable(f"not a namespace ({e})") from e


def outline(body: Json) -> tuple[bytes, list[tuple[int, int]]]:
    """The digest and the addresses as (version, number); cheaper than ``decode``.  Raises Unreadable."""
    try:
        numbers = [_number(address.partition("/")[0]) for address in body.get("addresses", ())]
        if "containerID" in body:
            return digest(Key(body["containerID"], body["ifname"])), numbers
        if "unreadable" in body:
            return bytes.fromhex(body["key"]), numbers
        return digest_of(decode(body)), numbers
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise Unreadable(f"not a lease ({type(e).__name__}: {e})") from e


def to_line_if_it_fits(body: Json) -> bytes | None:
    """The body as a line; None if it does not fit."""
    text = _text(body)[:-1]
    return (text + _SEAL % crc32(text)).ljust(LINE - 1) + b"\n" if len(text) < _ROOM else None


def to_line(body: Json) -> bytes:
    """The body as a line.  Raises ValueError if it does not fit."""
    if data := to_line_if_it_fits(body):
        return data
    raise ValueError(f"it does not fit into a line: {body!r}")


def to_lines(parts: Sequence[Json], lines: Sequence[int]) -> list[bytes]:
    """The parts of a body as lines with these numbers.  Each names the next; all but the first name the first."""
    following = zip(lines, parts, [*lines[1:], 0], strict=True)
    return [
        to_line(({} if at == lines[0] else {"of": lines[0]}) | part | ({"next": after} if after else {}))
        for at, part, after in following
    ]


def from_line(data: bytes) -> Json | None:
    """The body of a line; None if it is blank.  Raises Unreadable."""
    if data == BLANK:
        return None
    text, _, end = data.rpartition(b',"crc":"')
    if len(data) != LINE or (_SEAL % crc32(text))[8:] != end.rstrip(b" \n"):
        # A file system returns zeros for a part that was never written.
        if not data.strip(b"\0 \n"):
            return None
        raise Unreadable("checksum does not match")
    try:
        body: Json = json.loads(text + b"}")
    except ValueError as e:
        raise Unreadable(f"not JSON ({e})") from e
    return body


def link(body: Json, name: str, otherwise: int) -> int:
    """The line number in "of" or "next".  Raises Unreadable."""
    at = body.get(name, otherwise)
    if type(at) is not int or at < 0:
        raise Unreadable(f"{name} {at!r} is not a line's number")
    return at


def split(body: Json) -> list[Json]:
    """Divide a body into parts that each fit into a line with "of" and "next"."""
    parts: list[Json] = [{}]
    for key, value in ((k, v) for k, values in body.items() for v in _each(values)):
        grown = joined([parts[-1], {key: value}])
        if len(_text(grown)) > _ROOM - _LINKS and parts[-1]:
            parts.append({key: value})
        else:
            parts[-1] = grown
    return parts


def joined(parts: list[Json]) -> Json:
    """The inverse of ``split``."""
    whole: Json = {}
    for part in parts:
        for key, value in part.items():
            whole[key] = whole[key] + value if isinstance(value, list) and key in whole else value
    return whole


def _each(value: Any) -> list[Any]:
    return [[item] for item in value] if isinstance(value, list) and value else [value]


def _text(body: Json) -> bytes:
    return _ENCODE(body).encode()


def _short(text: str) -> str:
    if len(text) <= _TEXT // 2 and text.isascii() and text.isprintable():
        return text  # the common case; escapes at most double the length
    while len(json.dumps(text)) > _TEXT:
        text = text[: len(text) * 3 // 4]
    return text


def _number(address: str) -> tuple[int, int]:
    if ":" in address:
        return 6, int(IPv6Address(address))
    return 4, int(IPv4Address(address))
