"""The process that reads frames from the wire: it has no rights but to read its sockets and to write to its parent."""

import gc
import json
import os
import select
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

from base.kernel.confinement import confine
from base.protocol.spec import Json
from hardware import neighbors
from node.lldp import lldpdu

PACE: Final = 1.0
"""Seconds between two readings of the sockets.  Meanwhile a flood fills their queues, and the kernel drops the rest."""
MESSAGE: Final = 16384
"""Bytes of a message to the parent, which names no more than one neighbor."""
_FRAMES: Final = 16  # of a socket at one reading; its queue holds fewer
_STANDARD: Final = 3  # stdin, stdout, stderr


def read(sockets: Sequence[socket.socket], parent: socket.socket) -> None:
    """Report the frames of each socket until the parent ends.  For a child process.

    A message is JSON: ``at``, the socket's number; and ``neighbor``, or ``refused`` (why a frame is not an LLDPDU), or
    ``down`` (the interface went down, or is gone).  Raises OSError if the process cannot give up its rights.
    """
    _close_all_but({one.fileno() for one in (*sockets, parent)})
    confine()
    gc.freeze()  # a collection would copy the memory shared with the parent
    gc.enable()
    poll = select.poll()
    for one in sockets:
        poll.register(one, select.POLLIN)
    poll.register(parent, 0)  # POLLHUP comes without being requested (man 2 poll)
    numbers, due = {one.fileno(): at for at, one in enumerate(sockets)}, 0.0
    while parent.fileno() not in (ready := dict(poll.poll())):
        # The first frame after a pause is read at once, and a timer never wakes the process without a frame.
        if (rest := due - time.monotonic()) > 0:
            time.sleep(rest)
        due = time.monotonic() + PACE
        for fd in ready:
            for message in _reports(sockets[numbers[fd]]):
                with suppress(BlockingIOError):
                    parent.send(json.dumps({"at": numbers[fd], **message}).encode(), socket.MSG_DONTWAIT)


def _reports(sock: socket.socket) -> Collection[Json]:
    """What the frames in the queue say: each neighbor once, and the last refusal."""
    found = dict[object, Json]()
    for _ in range(_FRAMES):
        try:
            heard = lldpdu.read(sock.recv(lldpdu.MOST + 1))
        except lldpdu.Malformed as e:
            found["refused"] = {"refused": f"{e}"}
        except BlockingIOError:
            break
        except OSError:  # ENETDOWN, once
            found["down"] = {"down": True}
        else:
            found[heard.identity] = {"neighbor": neighbors.document(heard)}
    return found.values()


def _close_all_but(kept: Collection[int]) -> None:
    """Close the files of the parent.  The pipe to it stays, whose end it waits for."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        with suppress(OSError):  # the listing's own descriptor
            if fd >= _STANDARD and fd not in kept and not os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:"):
                os.close(fd)
