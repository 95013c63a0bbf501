"""Shows in a claim's status which interface and addresses its devices have (KEP-4817).

The gates of prepared claims have the data.  Their directories are watched, so nothing is polled: when ADD opens a gate,
a helper process writes the status.  An attachment stands whether or not its claim's status can be written.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from base.kernel import events
from base.protocol.errors import CniError, Unreachable
from base.protocol.spec import Json
from base.state import claims
from base.state.claims import Claim
from node.background import Background
from node.log import Topics

# All times are in seconds.
REST: Final = 0.2  # from a gate's opening to the write: a pod's other interfaces follow
AGAIN: Final = 5.0  # from a failed write to the next; twice as long after each further failure, up to LONGEST
LONGEST: Final = 300.0
_MOST: Final = 60  # for one write
TOPIC: Final = "dra status"

# Why the status of some claims could not be written, and their UIDs.
Outcome = tuple[str, list[str]]
# Writes the status of these claims.  Raises ChildProcessError if the process that writes it ended, and OSError if none
# could be started.
Write = Callable[[Sequence[Claim]], Coroutine[Any, Any, Outcome]]


class Status:
    """Writes the status of claims until ``close``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, topics: Topics, write: Write) -> None:
        self._loop, self._topics, self._write = loop, topics, write
        self._fd = -1  # of the watches, while there can be any
        self._again: asyncio.TimerHandle | None = None
        self._uids = dict[int, str]()  # by the watch's number
        self._due = set[str]()
        self._background = Background(loop, self._start)
        self._task: asyncio.Task[Outcome] | None = None
        self._failures = 0

    def watch(self, claim: Claim) -> None:
        """Write the claim's status when its gates open, and now if one is open."""
        folder = os.path.dirname(claims.gate(claim.uid, 0))
        try:
            Path(folder).mkdir(0o755, exist_ok=True)
            mask = events.IN_MOVED_TO | events.IN_DELETE_SELF
            if self._fd < 0:
                self._fd = events.open_directories()
                self._loop.add_reader(self._fd, self._read)
            self._uids[events.watch_directory(self._fd, folder, mask)] = claim.uid
            if os.listdir(folder):
                self._request(claim.uid)
        except OSError as e:
            # No pod has to wait for that.
            self._topics.report(TOPIC, f"{claim.title} does not show its interfaces: watching {folder}: {e.strerror}")
            self._again = self._again or self._loop.call_later(LONGEST, self._watch_again)

    def close(self) -> None:
        """Stop; what is not written yet is written at the next start."""
        if self._again:
            self._again.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
        self._background.close()
        if self._task:
            self._task.cancel()

    def _watch_again(self) -> None:
        self._again = None
        watched = set(self._uids.values())
        for claim in claims.all_claims():
            if claim.uid not in watched:
                self.watch(claim)

    def _read(self) -> None:
        for number, mask, _ in events.read_directories(self._fd):
            if number < 0:  # the kernel's queue was full
                for uid in [*self._uids.values()]:
                    self._request(uid)
            elif mask & (events.IN_DELETE_SELF | events.IN_IGNORED):
                self._due.discard(self._uids.pop(number, ""))
            elif number in self._uids:
                self._request(self._uids[number])

    def _request(self, uid: str) -> None:
        self._due.add(uid)
        if not self._task:  # its end requests the next
            self._background.after(REST)

    def _start(self) -> None:
        due = [claim for claim in claims.all_claims() if claim.uid in self._due]
        self._due.clear()
        if due:
            self._task = self._loop.create_task(self._write(due))
            self._task.add_done_callback(partial(self._finish, [claim.uid for claim in due]))

    def _finish(self, uids: list[str], task: asyncio.Task[Outcome]) -> None:
        self._task = None
        try:
            self._finished(task.result())
        except asyncio.CancelledError:
            return  # by close
        except ChildProcessError as e:
            self._finished((f"the process that writes it {e}", uids))
        except OSError as e:
            self._finished((f"no process can be started: {e.strerror}", uids))

    def _finished(self, outcome: Outcome) -> None:
        why, left = outcome
        self._failures = self._failures + 1 if why else 0
        self._due.update(left)
        if why:
            self._topics.problem(TOPIC, f"claims do not show the interfaces of their devices: {why}")
            self._background.after(min(AGAIN * 2 ** (self._failures - 1), LONGEST))
        else:
            self._topics.solved(TOPIC)
            if self._due:
                self._background.after(REST)


def write(kubeconfig: str, due: Sequence[Claim]) -> Outcome:
    """Write the status of these claims at the API server.  For a child process."""
    from node.dra import api  # noqa: PLC0415  # for the child only

    signal.alarm(_MOST)
    try:
        server = api.kept(kubeconfig)
    except CniError as e:
        return e.msg, [claim.uid for claim in due]
    why, left = "", list[str]()
    for number, claim in enumerate(due):
        try:
            server.patch_claim_status(claim.namespace, claim.name, claim.uid, entries(claim))
        except Unreachable as e:  # the others would wait as long
            return e.msg, [*left, *(one.uid for one in due[number:])]
        except CniError as e:
            why = e.msg
            left.append(claim.uid)
    return why, left


def entries(claim: Claim) -> list[Json]:
    """The claim's ``status.devices``: those behind open gates."""
    found = list[Json]()
    for number in {claim.first_of_request(n) for n in range(len(claim.devices))}:
        with suppress(OSError, ValueError, LookupError, TypeError):
            text = Path(claims.gate(claim.uid, number)).read_text()
            request = json.loads(text.partition("\n")[0])["requests"][0]
            of_request = [one for one in claim.devices if one.request == claim.devices[number].request]
            for device, shown in zip(of_request, request["devices"], strict=True):
                if "networkData" in shown:
                    about = {name: shown[name] for name in ("driver", "networkData")}
                    made = {**about, "pool": device.pool, "device": device.device}
                    if device.share:
                        made["shareID"] = device.share
                    found.append(made)
    return found
