"""The DRA driver alone, as a process: it forks, so it must not share a process with grpcio's threads.

Devices and their health are in a file, which the driver's ``find`` reads at each call: device -> members of Found.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from support.daemons import Daemon
from support.topology import until

from base.state import claims
from node.dra.claims import cdi, kept, status
from node.dra.claims.driver import Driver
from node.dra.claims.prepare import Found
from node.dra.claims.status import Status
from node.dra.helpers import Helpers
from node.log import Topics

ROOT = Path(__file__).parents[2]
POOL = "node1/pci-0000-3b-00-0"
VF: dict[str, Any] = {
    "id": "0000:3b:00.2",
    "kind": "vf",
    "resource": "example.com/rail0",
    "attributes": {"kind": {"string": "vf"}},
}


class DriverProcess(Daemon):
    """A driver that runs until its ``with`` ends."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        super().__init__()
        self.folder, self.kubeconfig = folder, kubeconfig
        self.socket, self.claims, self.cdi = folder / "hpn.sock", folder / "claims", folder / "cdi"
        self.devices = folder / "devices.json"
        self.has({"vf2": VF})

    def has(self, devices: dict[str, Any]) -> None:
        """Set the node's devices; a running driver reports their health, and renews its claims."""
        new = self.devices.with_suffix(".new")
        new.write_text(json.dumps(devices))
        new.replace(self.devices)
        if self.is_running:
            self.process.send_signal(signal.SIGUSR1)

    @property
    def is_running(self) -> bool:
        return bool(getattr(self, "process", None)) and self.process.poll() is None

    def helpers(self) -> list[int]:
        """The processes that work for the driver, without zombies."""
        pid = self.process.pid
        children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return [one for one in children if _state(one) not in "ZX"]

    def kill_helpers(self) -> None:
        for one in self.helpers():
            os.kill(one, signal.SIGKILL)
        until(lambda: not self.helpers())

    def __enter__(self) -> Self:
        names = ("socket", "claims", "cdi", "devices", "kubeconfig")
        words = [sys.executable, "-m", "support.dra_process", *(str(getattr(self, name)) for name in names)]
        environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        self.start(["env", *(f"{k}={environ[k]}" for k in ("PYTHONPATH",)), *words], ROOT)
        until(self.socket.is_socket)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.end() == 0, "\n".join(self.said)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


def main(socket: str, claims_folder: str, cdi_folder: str, devices: str, kubeconfig: str) -> None:
    folder = Path(socket).parent
    claims.FOLDER, cdi.FOLDER = claims_folder, cdi_folder  # type: ignore[misc]
    os.environ["HPN_STATE_DIR"] = f"{folder}/state"

    def read() -> dict[str, Any]:
        return dict(json.loads(Path(devices).read_text()))

    def find(pool: str, device: str) -> Found | None:
        one = read().get(device) if pool == POOL else None
        return Found(**{**one, "nodes": tuple(one.get("nodes", ()))}) if one else None

    def states() -> Iterable[tuple[str, str, str]]:
        return [(POOL, name, one.get("problem", "")) for name, one in read().items()]

    def granted(device: claims.ClaimedDevice) -> dict[str, Any]:
        nodes = tuple(read().get(device.device, {}).get("nodes", ()))
        return {"nodes": nodes} if nodes else {}

    async def serve() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        helpers = Helpers(loop)
        written = Status(loop, Topics(), lambda due: helpers.do(partial(status.write, kubeconfig, due)))
        devices = SimpleNamespace(find=find, states=states)
        driver = Driver(Path(socket), devices, written, helpers, lambda: None, kubeconfig)
        loop.add_signal_handler(signal.SIGTERM, ended.set)

        def changed() -> None:
            kept.renew(granted)
            driver.changed()

        loop.add_signal_handler(signal.SIGUSR1, changed)
        driver.open()
        await ended.wait()
        driver.close()
        written.close()
        helpers.close()

    asyncio.run(serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
