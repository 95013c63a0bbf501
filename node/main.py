"""The entry of hpn node, which offers the node's devices to kubelet."""

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from base.child_process import Child
from base.protocol.errors import CniError
from base.table import printable_lines
from node import flags
from node.blocks import Blocks, rounds
from node.daemon import Daemon
from node.flags import Flags
from node.kubelet.directory import AGAIN, Taken
from node.log import log
from node.model import ConfigRefused, Settings
from node.offer import hook

# EX_CONFIG of sysexits.h.  systemd's unit does not restart the program after it: first a person must correct the file.
REFUSED: Final = 78
# Seconds for a start: less than TimeoutStartSec of the unit, without the wait for devices after a boot.
PATIENCE: Final = 30.0


def main(arguments: Sequence[str], version: str, file: str = "") -> int:
    """Serve until SIGTERM or SIGINT; return the exit status.  ``file`` is the running program, if it is frozen."""
    try:
        asked = flags.parse(arguments)
    except flags.Wrong as e:
        log(f"{e}")
        return 2
    if asked.help or asked.version:
        sys.stdout.write(flags.usage() if asked.help else f"hpn {version}\n")
        return 0
    if asked.check or asked.classes or asked.dry_run:
        return _shown(asked)
    hook.LAUNCHER.found(asked.plugins, file)
    try:
        asyncio.run(_serve(asked, version))
    except ConfigRefused as e:
        log(f"{e}")
        return REFUSED
    except (Taken, OSError) as e:
        log(f"{e}")
        return 1
    return 0


def _shown(asked: Flags) -> int:
    if asked.check:
        return _check(asked, asked.check)
    return _classes(asked, asked.classes) if asked.classes else _dry_run(asked)


def _check(asked: Flags, file: Path) -> int:
    from node import check  # noqa: PLC0415  # the daemon needs none of it

    text, status = check.answer(file, prefix=asked.prefix, cdi=asked.cdi, as_json=asked.json)
    sys.stdout.write(printable_lines(text))
    return status


def _classes(asked: Flags, file: Path) -> int:
    from node.dra.slices import classes  # noqa: PLC0415  # the daemon needs none of it

    try:
        settings = _read(replace(asked, config=file))
    except (ConfigRefused, OSError) as e:
        log(f"{e}")
        return 2
    for sentence in settings.left_out:
        log(sentence)
    sys.stdout.write(classes.text(settings.resources))
    return 0


def _dry_run(asked: Flags) -> int:
    from node.provision import apply  # noqa: PLC0415  # the daemon needs none of it

    try:
        text, status = apply.dry_run(_read(asked))
    except (ConfigRefused, CniError, OSError) as e:
        log(f"{e}")
        return apply.UNREADABLE
    sys.stdout.write(printable_lines(text))
    return status


async def _serve(asked: Flags, version: str) -> None:
    """Raises ConfigRefused, Taken, OSError."""
    # The name in ps, top and systemctl; without this it is ld-hpn.so.2, the loader's (packaging/launcher).
    Path("/proc/self/comm").write_text("hpn-node")
    loop = asyncio.get_running_loop()
    ended = _ended(loop)
    daemon = await _begun(
        lambda: Daemon(loop, asked.kubelet / "plugins_registry", partial(_read, asked), asked.kubeconfig), ended
    )
    if not daemon:
        return await ended
    metrics, blocks = None, Blocks(loop, partial(rounds, kubeconfig=asked.kubeconfig) if asked.blocks else _none)
    try:
        # No later change of the handler: asyncio calls the one of the moment when it notices the signal.
        loop.add_signal_handler(signal.SIGHUP, daemon.reload)
        if not await _is_done(daemon.start(), ended):
            return await ended
        if asked.metrics:
            from node.metrics.service import Metrics  # noqa: PLC0415  # most nodes have no metrics

            metrics = Metrics(loop, daemon, blocks, asked.metrics, version)
        # All objects of now stay in use, and a collection of them would be the longest pause of the daemon.
        gc.collect()
        gc.freeze()
        daemon.when_shown(partial(notify, "READY=1"))
        await ended
        notify("STOPPING=1")
    finally:
        daemon.close()  # before metrics: kubelet must not wait for the process that makes a page
        blocks.close()
        if metrics:
            metrics.close()


async def _begun(begin: Callable[[], Daemon], ended: asyncio.Future[None]) -> Daemon | None:
    """The daemon, also if what prevents it passes within PATIENCE: another hpn node that ends, or the death of the
    reader of the configuration.  None if ``ended`` comes first.  Raises ConfigRefused, Taken, OSError."""
    until, said = time.monotonic() + PATIENCE, ""
    while True:
        try:
            return begin()
        except (Taken, ChildProcessError) as e:
            if time.monotonic() > until:
                raise
            if f"{e}" != said:
                log(said := f"{e}")
        if (await asyncio.wait({ended}, timeout=AGAIN))[0]:
            return None


async def _is_done(work: Coroutine[Any, Any, None], ended: asyncio.Future[None]) -> bool:
    """Do the work; return False if ``ended`` comes first, which ends the work.  Raises the work's exceptions."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.wait({task})
    return False


def _none(_: bool) -> None:  # noqa: FBT001
    """Do no round."""


def _ended(loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """A future that ends at SIGTERM or SIGINT, or with the exception of a failed callback of the loop."""
    ended: asyncio.Future[None] = loop.create_future()

    def end(error: BaseException | None = None) -> None:
        if not ended.done():
            ended.set_exception(error) if error else ended.set_result(None)

    def fail(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "handle" in context:
            end(context.get("exception"))
        # Other errors belong to one connection, which asyncio has closed.

    loop.set_exception_handler(fail)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # until there is a daemon
    return ended


def notify(state: str) -> None:
    """Notify systemd of the state (man 3 sd_notify), if systemd started this process."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(state.encode(), f"\0{where[1:]}" if where.startswith("@") else where)


def _read(asked: Flags) -> Settings:
    """Read the file of the command line, or the first default file that exists.  Raises ConfigRefused, OSError.

    A child process reads it, because pydantic and PyYAML would add 13 MB to a daemon that needs them for a moment.
    The calling process must have one thread.
    """
    child = Child(lambda: _read_here(asked))
    try:
        answer = child.answer()
    except ChildProcessError as e:
        # Not refused: the kernel may have killed it for memory.
        raise ChildProcessError(f"reading the configuration {e}; see the lines above") from e
    if isinstance(answer, Settings):
        return answer
    raise ConfigRefused(str(answer))


def _read_here(asked: Flags) -> Settings | str:
    """The settings, or the reason why there are none."""
    from node import config  # noqa: PLC0415  # for the child process

    path = asked.config or next((path for path in config.DEFAULTS if path.exists()), None)
    if path is None:
        where = ", ".join(map(str, config.DEFAULTS))
        return f"no configuration: none of {where} exists; write one (docs/user/node.md), or name it by --config"
    try:
        return config.read(path, prefix=asked.prefix, cdi=asked.cdi)
    except config.BadFile as e:
        return "; ".join(filter(None, (e.msg, e.details)))
