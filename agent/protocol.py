"""The frames between launcher and agent (docs/protocol.md; packaging/launcher/launcher.c is the other end).

request   "HPN1", version, 1 if called hpn-ipam, length of environment, length of stdin; environment, stdin
answer    "T": taken, the work may be done from now on; or "R": another version's, the launcher does it itself
reply     exit code, length of stdout, length of stderr; stdout, stderr
"""

import struct
from dataclasses import dataclass
from typing import Final

from cni.protocol.spec import Reply, variables

MAGIC: Final = b"HPN1"
TAKEN, REFUSED = b"T", b"R"
ENVIRONMENT_MOST: Final = 1 << 20
STDIN_MOST: Final = 4 << 20

HEADER: Final = struct.Struct("=4s16sIII")
_REPLY: Final = struct.Struct("=III")


@dataclass(frozen=True)
class Header:
    """The fixed part of a request; ``version`` is the launcher's, 16 characters."""

    version: str
    ipam: bool
    environment: int
    stdin: int

    @property
    def end(self) -> int:
        """The size of the whole request."""
        return HEADER.size + self.environment + self.stdin


def header(data: bytes | bytearray) -> Header:
    """Decode a request's header.  Raises ValueError if no launcher would send it."""
    magic, version, ipam, environment, stdin = HEADER.unpack_from(data)
    # guard below: magic (magic), flag (ipam), environment (ENVIRONMENT_MOST), stdin (STDIN_MOST)
    if magic != MAGIC or ipam > 1 or environment > ENVIRONMENT_MOST or stdin > STDIN_MOST:
        raise ValueError("not a request")
    return Header(version.decode(errors="replace"), bool(ipam), environment, stdin)


def parts(header: Header, request: bytes) -> tuple[dict[str, str], bytes]:
    """The environment and the stdin of a whole request."""
    stdin = HEADER.size + header.environment
    return variables(request[HEADER.size : stdin]), request[stdin : header.end]


def reply(answer: Reply) -> bytes:
    """Encode a reply."""
    # A line may name an interface whose name is no text: escaped, as Python's stderr has it.
    log = "".join(f"{line}\n" for line in answer.log)
    out, err = answer.stdout.encode(), log.encode(errors="backslashreplace")
    return _REPLY.pack(answer.exit_code, len(out), len(err)) + out + err
