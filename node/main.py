"""hpn node: offers the node's devices to kubelet."""

import gc
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from cni.protocol.printable import printable_lines
from node import flags, reading
from node.blocks import Blocks, rounds
from node.daemon import Daemon
from node.directory import Taken
from node.flags import Flags
from node.loop import Loop
from node.saying import say

# sysexits.h, EX_CONFIG: systemd's unit does not start it again until somebody has mended the file.
REFUSED: Final = 78


def main(arguments: Sequence[str], version: str) -> int:
    """Serve until SIGTERM or SIGINT; the exit status."""
    try:
        asked = flags.parse(arguments)
    except flags.Wrong as e:
        say(f"{e}")
        return 2
    if asked.help or asked.version:
        sys.stdout.write(flags.HELP if asked.help else f"hpn {version}\n")
        return 0
    if asked.check or asked.dry_run:
        return _check(asked, asked.check) if asked.check else _dry_run(asked)
    try:
        _serve(asked, version)
    except reading.Refused as e:
        say(f"{e}")
        return REFUSED
    except (Taken, OSError) as e:
        say(f"{e}")
        return 1
    return 0


def _check(asked: Flags, file: Path) -> int:
    from node import check  # noqa: PLC0415  # the daemon needs none of it

    text, status = check.answer(file, prefix=asked.prefix, cdi=asked.cdi, as_json=asked.json)
    sys.stdout.write(printable_lines(text))
    return status


def _dry_run(asked: Flags) -> int:
    from node.provision import dry_run  # noqa: PLC0415  # the daemon needs none of it

    try:
        text, status = dry_run.answer(reading.read(asked))
    except (reading.Refused, OSError) as e:
        say(f"{e}")
        return dry_run.UNREADABLE
    sys.stdout.write(printable_lines(text))
    return status


def _serve(asked: Flags, version: str) -> None:
    """Raises Refused, Taken, OSError."""
    # The name in ps, top and systemctl.  It would be ld-hpn.so.2, the loader that started it (packaging/launcher).
    Path("/proc/self/comm").write_text("hpn-node")
    loop = Loop()
    with _signals() as signals:
        daemon = Daemon(loop, asked.kubelet / "plugins_registry", partial(reading.read, asked))
        metrics, blocks = None, Blocks(loop, partial(rounds, asked.kubeconfig))
        try:
            if asked.metrics:
                from node.metrics.service import Metrics  # noqa: PLC0415  # most nodes go without

                metrics = Metrics(loop, daemon, blocks, asked.metrics, version)
            loop.watch(signals.fileno(), partial(_obey, signals, loop, daemon))
            # Nothing that exists now is garbage, and a look through it would be the longest work there is.
            gc.collect()
            gc.freeze()
            daemon.when_shown(partial(notify, "READY=1"))
            loop.run()
            notify("STOPPING=1")
        finally:
            daemon.close()  # first: it must not wait until the process that makes a page has ended
            blocks.close()
            if metrics:
                metrics.close()
            loop.close()


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket that has a byte for each SIGTERM, SIGINT and SIGHUP, its number."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)  # noqa: FBT003
        theirs.setblocking(False)  # noqa: FBT003
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        handlers = {
            number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }
        try:
            yield ours
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before)


def _obey(signals: socket.socket, loop: Loop, daemon: Daemon) -> None:
    numbers = signals.recv(4096)
    if {signal.SIGTERM, signal.SIGINT} & set(numbers):
        loop.stop()
    elif signal.SIGHUP in numbers:
        daemon.reload()


def notify(state: str) -> None:
    """Tell systemd (man 3 sd_notify), if it is what started us."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.sendto(state.encode(), f"\0{where[1:]}" if where.startswith("@") else where)
