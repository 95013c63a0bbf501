"""hpn node: offers the node's devices to kubelet."""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from base.child_process import Child
from base.table import printable_lines
from node import flags
from node.blocks import Blocks, rounds
from node.daemon import Daemon
from node.flags import Flags
from node.kubelet.directory import Taken
from node.log import say
from node.model import Refused, Settings

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
        sys.stdout.write(flags.usage() if asked.help else f"hpn {version}\n")
        return 0
    if asked.check or asked.dry_run:
        return _check(asked, asked.check) if asked.check else _dry_run(asked)
    try:
        asyncio.run(_serve(asked, version))
    except Refused as e:
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
    from node.provision import apply  # noqa: PLC0415  # the daemon needs none of it

    try:
        text, status = apply.dry_run(read(asked))
    except (Refused, OSError) as e:
        say(f"{e}")
        return apply.UNREADABLE
    sys.stdout.write(printable_lines(text))
    return status


async def _serve(asked: Flags, version: str) -> None:
    """Raises Refused, Taken, OSError."""
    # The name in ps, top and systemctl.  It would be ld-hpn.so.2, the loader that started it (packaging/launcher).
    Path("/proc/self/comm").write_text("hpn-node")
    loop = asyncio.get_running_loop()
    ended = _ended(loop)
    daemon = Daemon(loop, asked.kubelet / "plugins_registry", partial(read, asked))
    metrics, blocks = None, Blocks(loop, partial(rounds, asked.kubeconfig))
    try:
        if asked.metrics:
            from node.metrics.service import Metrics  # noqa: PLC0415  # most nodes go without

            metrics = Metrics(loop, daemon, blocks, asked.metrics, version)
        loop.add_signal_handler(signal.SIGHUP, daemon.reload)
        # Nothing that exists now is garbage, and a look through it would be the longest work there is.
        gc.collect()
        gc.freeze()
        daemon.when_shown(partial(notify, "READY=1"))
        await ended
        notify("STOPPING=1")
    finally:
        daemon.close()  # first: it must not wait until the process that makes a page has ended
        blocks.close()
        if metrics:
            metrics.close()


def _ended(loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """Done at SIGTERM or SIGINT, or when a call of the loop's has failed: then the program ends by that exception."""
    ended: asyncio.Future[None] = loop.create_future()

    def end(error: BaseException | None = None) -> None:
        if not ended.done():
            ended.set_exception(error) if error else ended.set_result(None)

    def fail(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "handle" in context:  # guard: a-call-fails = False
            end(context.get("exception"))
        # Anything else is of one connection, which asyncio has ended.

    loop.set_exception_handler(fail)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # until there is what could be read anew
    return ended


def notify(state: str) -> None:
    """Tell systemd (man 3 sd_notify), if it is what started us."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.sendto(state.encode(), f"\0{where[1:]}" if where.startswith("@") else where)


def read(asked: Flags) -> Settings:
    """The settings of the file that is asked for, else of the first that is there of the default ones.

    For a process with one thread.  Raises Refused, OSError.
    """
    child = Child(lambda: _read(asked))
    try:
        answer = child.answer()
    except ChildProcessError as e:
        raise Refused(f"reading the configuration {e}; see the lines above") from e
    if isinstance(answer, Settings):
        return answer
    raise Refused(str(answer))


def _read(asked: Flags) -> Settings | str:
    """The settings, or why there are none."""
    from node import config  # noqa: PLC0415  # for the process that ends

    path = asked.config or next((path for path in config.DEFAULTS if path.exists()), None)
    if path is None:
        return _nowhere(config.DEFAULTS)
    try:
        return config.read(path, prefix=asked.prefix, cdi=asked.cdi)
    except config.Refused as e:
        return "; ".join(filter(None, (e.msg, e.details)))


def _nowhere(defaults: tuple[Path, ...]) -> str:
    where = ", ".join(map(str, defaults))
    return f"there is no configuration: none of {where} is there; write one (docs/user/node.md), or name it by --config"
