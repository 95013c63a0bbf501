"""The DRA driver at kubelet: it prepares claims, gives them up, and reports the health of its devices.

The services are those of Kubernetes (kubelet: pkg/apis/dra, dra-health, pluginregistration).  kubelet lists ours by
version, and takes the first that it knows.  Both versions of each have the same messages, except that a device of
dra/v1beta1 has no share_id: its clients ignore ours.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from grpclib.const import Handler

from base.grpc import Stream, unary, watched
from base.kubelet import dra_pb2 as dra
from base.kubelet import drahealth_pb2 as health
from base.kubelet import pluginregistration_pb2 as registration
from base.protocol.errors import CniError
from base.state import claims
from base.state.claims import Claim, ClaimedDevice
from base.table import printable
from node.dra import DRIVER
from node.dra.claims import cdi, choice, deciding, kept, prepare
from node.dra.claims.devices import Devices, State
from node.dra.claims.parameters import Refused
from node.dra.claims.prepare import Asked
from node.dra.claims.status import Status
from node.dra.helpers import Helpers
from node.kubelet import sockets
from node.kubelet.service import Shell
from node.log import cause, log

SERVICES: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
_PACKAGE: Final = "/k8s.io.kubelet.pkg.apis.dra"
_AT_ONCE: Final = 4  # calls whose claims are read and decided
# Seconds: kubelet waits 45.  So long after its call no more of its claims are read, and one takes api.PATIENCE at most.
_LATEST: Final = 20
# Seconds for which kubelet believes a report of health.  A report follows each change, and the end of the stream ends
# all of them, so no report is sent again.
_VALID: Final = 10 * 366 * 86400
_LONGEST: Final = 1024  # characters of a message on health


class Driver:
    """Serves at ``socket_path`` while it is open."""

    def __init__(
        self,
        socket_path: Path,
        devices: Devices,
        status: Status,
        helpers: Helpers,
        registered: Callable[[], None],
        kubeconfig: str = "",
    ) -> None:
        """Calls ``registered`` when kubelet has accepted the driver."""
        self._endpoint = sockets.Endpoint(socket_path)
        self._devices, self._registered, self._kubeconfig = devices, registered, kubeconfig
        self._helpers = helpers
        # kubelet's directory is above that of the sockets.
        self._status, self._kubelet = status, f"{socket_path.parent.parent}"
        self._shell = Shell(f"the driver {DRIVER}", "a claim prepared", log)
        self._turns = asyncio.Semaphore(_AT_ONCE)
        kept.sweep_earlier_boots()
        kept.sweep()
        for claim in claims.all_claims():
            status.watch(claim)

    def open(self) -> None:
        """Make the socket to which kubelet connects, and replace the previous one.  Raises Unusable, OSError."""
        self._endpoint.open(self._methods())

    def changed(self) -> None:
        """Send kubelet the present health."""
        self._shell.changed()

    def close(self) -> None:
        """Remove the socket, so that kubelet notices at once.  Prepared claims stay, and ``open`` may follow."""
        self._endpoint.close()

    def _methods(self) -> Mapping[str, Handler]:
        methods = {
            "/pluginregistration.Registration/GetInfo": unary(registration.InfoRequest, self._get_info, _report),
            "/pluginregistration.Registration/NotifyRegistrationStatus": unary(
                registration.RegistrationStatus, self._note_status, _report
            ),
        }
        for version in ("v1", "v1beta1"):
            plugin = f"{_PACKAGE}.{version}.DRAPlugin"
            methods[f"{plugin}/NodePrepareResources"] = unary(dra.NodePrepareResourcesRequest, self._prepare, _report)
            methods[f"{plugin}/NodeUnprepareResources"] = unary(
                dra.NodeUnprepareResourcesRequest, self._unprepare, _report
            )
        for version in ("v1", "v1alpha1"):
            methods[f"/{version}.DRAResourceHealth/NodeWatchResources"] = watched(
                health.NodeWatchResourcesRequest, self._watch
            )
        return methods

    # Registration

    def _get_info(self, _: registration.InfoRequest) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self._endpoint.path), supported_versions=SERVICES
        )

    def _note_status(self, status: registration.RegistrationStatus) -> registration.RegistrationStatusResponse:
        answer = self._shell.note(status)
        if status.plugin_registered:
            self._registered()
        return answer

    # Claims

    async def _prepare(self, request: dra.NodePrepareResourcesRequest) -> dra.NodePrepareResourcesResponse:
        # kubelet names each claim once.
        asked = list({one.uid: Asked(one.uid, one.namespace, one.name) for one in request.claims}.values())
        latest = time.monotonic() + _LATEST
        async with self._turns:
            decided = await deciding.decided(self._helpers, self._kubeconfig, asked, self._devices.find, latest)
        answer = dra.NodePrepareResourcesResponse()
        for one in asked:
            try:
                kept.sweep()
                claim = _claim(decided, one)
                await self._keep(claim)
            except (Refused, OSError) as e:
                why = f"{cause(e)}; kubelet tries again" if isinstance(e, OSError) else str(e)
                _log_refused(one, why)
                answer.claims[one.uid].error = printable(why)  # a claim's JSON may have half a surrogate pair
            else:
                answer.claims[one.uid].devices.extend(_answer(claim, number) for number in range(len(claim.devices)))
        return answer

    async def _keep(self, claim: Claim) -> None:
        """Refuse the claim if it cannot have its devices now, and keep it.  Raises Refused."""
        new = kept.new(claim)
        async with choice.alone(new):
            self._refuse_ill(new)
            try:
                choice.refuse_taken(claim, new)
                prepare.refuse_same_names(claim, claims.prepared(claim.uid))
            except CniError as e:
                raise Refused("; ".join(filter(None, (e.msg, e.details)))) from e
            except OSError as e:
                raise Refused(f"{cause(e)}; its devices may be other pods'") from e
            kept.keep(replace(claim, kubelet=self._kubelet), self._status)

    def _refuse_ill(self, devices: Sequence[ClaimedDevice]) -> None:
        """Refuse a device that no pod may have now: it was decided by an older state."""
        for device in devices:
            found = self._devices.find(device.pool, device.device)
            if not found or (found.problem and not device.admin):
                why = found.problem if found else _GONE
                raise Refused(f"device {device.id} ({device.pool}/{device.device}): {why}")

    def _unprepare(self, request: dra.NodeUnprepareResourcesRequest) -> dra.NodeUnprepareResourcesResponse:
        answer = dra.NodeUnprepareResourcesResponse()
        for one in request.claims:
            error = ""
            try:
                kept.give_up(one.uid)
            except CniError as e:
                error = e.msg
            except OSError as e:
                error = f"{cause(e)}; it must be writable on this node"
            if error:
                _log_refused(Asked(one.uid, one.namespace, one.name), error)
            answer.claims[one.uid].error = error
        kept.sweep()
        return answer

    # Health

    async def _watch(self, stream: Stream) -> None:
        """Send the health of all devices now and after each change; a slow peer gets only the newest list."""
        sent = None
        with self._shell.watcher() as watcher:
            while True:
                watcher.clear()
                if (states := [*self._devices.states()]) != sent:  # most events concern no device of a slice
                    await stream.send_message(health.NodeWatchResourcesResponse(devices=map(_health, states)))
                    sent = states
                await watcher.wait()


_GONE: Final = (
    "it is none of this node's devices now; kubelet tries again; if that stays after a boot, delete the pod, and its "
    "successor gets another device"
)


def _report(sentence: str) -> None:
    log(f"{DRIVER}: {sentence}")


def _log_refused(asked: Asked, why: str) -> None:
    log(f"{asked.title}: {why}")


def _claim(decided: Mapping[str, Any], asked: Asked) -> Claim:
    found = decided.get(asked.uid)
    if isinstance(found, Claim):
        return found
    raise Refused(found or f"{asked.title} was not read; see the log of hpn node")


def _answer(claim: Claim, number: int) -> dra.Device:
    device = claim.devices[number]
    return dra.Device(
        request_names=[device.request.partition("/")[0]],
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=[cdi.name(claim.uid, number)],
        share_id=device.share or None,
    )


def _health(state: State) -> health.DeviceHealth:
    pool, name, why = state
    return health.DeviceHealth(
        device=health.DeviceIdentifier(pool_name=pool, device_name=name),
        health=health.UNHEALTHY if why else health.HEALTHY,
        last_updated_time=int(time.time()),
        health_check_timeout_seconds=_VALID,
        message=why[:_LONGEST],
    )
