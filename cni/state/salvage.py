"""What can still be read of a damaged record: where its pod's namespace may be.

This is something to look by, and no proof: whoever damaged the record may have written it.
"""

import json
import os
import re

from cni.protocol.spec import Key
from cni.state.pod import Identity

_NETNS = re.compile(rb'"netns":"(/[^"\\\\]{1,4095})"')
_IDENTITY = re.compile(rb'"identity":({[^{}]{1,200}})')
_SOFTWARE = b'"software":{'  # in a plan of cni/kinds/host_device
_LONGEST = 1 << 20  # bytes


def namespace(damaged: str, key: Key) -> tuple[str, Identity]:
    """The path and the identity of the namespace that a damaged record names.

    An empty path and zeros where they cannot be read, or where the record does not name the attachment ``key``.
    """
    try:
        text = _read(damaged)
        netns, identity = _NETNS.search(text), _IDENTITY.search(text)
        # guard below: legible-key (and f)
        if netns and identity and f'"container_id":"{key.container_id}","ifname":"{key.ifname}"'.encode() in text:
            return os.fsdecode(netns[1]), Identity.from_json(json.loads(identity[1]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return "", Identity(0, 0)


def is_the_hosts(damaged: str) -> bool:
    """Whether the interface that a damaged record describes was the host's before, and is made of software."""
    try:
        return _SOFTWARE in _read(damaged)
    except OSError:
        return False


def _read(damaged: str) -> bytes:
    fd = os.open(damaged, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return os.read(fd, _LONGEST)
    finally:
        os.close(fd)
