"""The DRA driver at kubelet: it prepares claims, gives them up, and reports the health of its devices.

The services are those of Kubernetes (kubelet: pkg/apis/dra, dra-health, pluginregistration).  kubelet lists ours by
version, and takes the first that it knows.  Both versions of each have the same messages, except that a device of
dra/v1beta1 has no share_id: its clients ignore ours.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from grpclib.const import Handler

from base.child_process import Child
from base.grpc import Stream, unary, watched
from base.kubelet import dra_pb2 as dra
from base.kubelet import drahealth_pb2 as health
from base.kubelet import pluginregistration_pb2 as registration
from base.protocol.errors import CniError, RecordUnreadable
from base.state import claims, durable, gates
from base.state.claims import Claim, Device
from base.table import printable
from node.dra import DRIVER
from node.dra.claims import cdi, choice, prepare
from node.dra.claims.parameters import Refused
from node.dra.claims.prepare import Asked, Find
from node.dra.claims.status import Status
from node.kubelet import sockets
from node.log import cause, log

SERVICES: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
_PACKAGE: Final = "/k8s.io.kubelet.pkg.apis.dra"
_AT_ONCE: Final = 4  # child processes that read claims
_KNOWN: Final = 4096  # configurations of devices that the driver remembers
# Seconds: kubelet waits 45.  So long after its call no more of its claims are read, and one takes api.PATIENCE at most.
_LATEST: Final = 20
_MOST: Final = 42  # for one child process
# Seconds for which kubelet believes a report of health.  A report follows each change, and the end of the stream ends
# all of them, so no report is sent again.
_VALID: Final = 10 * 366 * 86400
_LONGEST: Final = 1024  # characters of a message on health

# The state of a device: pool, name, and why it is unhealthy; empty if it is healthy.
State = tuple[str, str, str]


class Driver:
    """Serves at ``socket_path`` while it is open."""

    def __init__(
        self,
        socket_path: Path,
        find: Find,
        states: Callable[[], Iterable[State]],
        registered: Callable[[], None],
        status: Status,
        kubeconfig: str = "",
    ) -> None:
        """Calls ``registered`` when kubelet has accepted the driver."""
        self._endpoint = sockets.Endpoint(socket_path)
        self._find, self._states, self._registered, self._kubeconfig = find, states, registered, kubeconfig
        # kubelet's directory is above that of the sockets.
        self._status, self._kubelet = status, f"{socket_path.parent.parent}"
        self._watchers = set[asyncio.Event]()
        self._children = asyncio.Semaphore(_AT_ONCE)
        self._logged = ""
        _sweep_earlier_boots()
        self.sweep()
        for claim in claims.all_claims():
            status.watch(claim)

    def open(self) -> None:
        """Make the socket to which kubelet connects, and replace the previous one.  Raises Unusable, OSError."""
        self._endpoint.open(self._methods())

    def changed(self) -> None:
        """Send kubelet the present health."""
        for watcher in self._watchers:
            watcher.set()

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
        if not status.plugin_registered:
            self._log_once(
                f"kubelet refuses the driver {DRIVER}: {' '.join(status.error.split())}; no pod gets a claim prepared "
                "until that is corrected, and kubelet tries again by itself"
            )
            return registration.RegistrationStatusResponse()
        if self._logged:
            self._log_once(f"kubelet has accepted the driver {DRIVER}")
        self._registered()
        return registration.RegistrationStatusResponse()

    # Claims

    async def _prepare(self, request: dra.NodePrepareResourcesRequest) -> dra.NodePrepareResourcesResponse:
        # kubelet names each claim once.
        asked = list({one.uid: Asked(one.uid, one.namespace, one.name) for one in request.claims}.values())
        latest = time.monotonic() + _LATEST
        async with self._children:
            decided = await _decided(self._kubeconfig, asked, self._find, latest)
        answer = dra.NodePrepareResourcesResponse()
        for one in asked:
            try:
                self.sweep()
                claim = _claim(decided, one)
                async with choice.alone(_new(claim)):
                    devices = self._keep(claim)
            except (Refused, OSError) as e:
                why = f"{cause(e)}; kubelet tries again" if isinstance(e, OSError) else str(e)
                _log_refused(one, why)
                answer.claims[one.uid].error = printable(why)  # a claim's JSON may have half a surrogate pair
            else:
                answer.claims[one.uid].devices.extend(devices)
        return answer

    def _keep(self, claim: Claim) -> Sequence[dra.Device]:
        """Put the claim on disk, then its CDI file, and return the answer.  The caller holds its new devices' locks.
        Raises Refused."""
        before, new = _prepared(claim.uid), _new(claim)
        for device in new:
            # Again, because the child process decided by an older state.
            found = self._find(device.pool, device.device)
            if not found or (found.problem and not device.admin):
                raise Refused(
                    f"device {device.id} ({device.pool}/{device.device}): {found.problem if found else _GONE}"
                )
        try:
            choice.refuse_taken(claim, new)
            prepare.refuse_same_names(claim, claims.prepared(claim.uid))
        except CniError as e:
            raise Refused("; ".join(filter(None, (e.msg, e.details)))) from e
        except OSError as e:
            raise Refused(f"{cause(e)}; its devices may be other pods'") from e
        claim, is_new = replace(claim, kubelet=self._kubelet), not before
        try:
            claims.save(claim)
            cdi.write(claim)
            self._status.watch(claim)
            _settle_gates(claim, is_new=is_new)
        except CniError as e:
            raise Refused(e.msg) from e
        except OSError as e:
            raise Refused(f"{cause(e)}; make room, or mount it for writing, on this node") from e
        return [_answer(claim, number) for number in range(len(claim.devices))]

    def _unprepare(self, request: dra.NodeUnprepareResourcesRequest) -> dra.NodeUnprepareResourcesResponse:
        answer = dra.NodeUnprepareResourcesResponse()
        for one in request.claims:
            error = ""
            try:
                _give_up(one.uid)
            except CniError as e:
                error = e.msg
            except OSError as e:
                error = f"{cause(e)}; it must be writable on this node"
            if error:
                _log_refused(Asked(one.uid, one.namespace, one.name), error)
            answer.claims[one.uid].error = error
        self.sweep()
        return answer

    def sweep(self) -> None:
        """Remove what is left of ended claims whose attachments have ended too; what fails is tried again."""
        with suppress(CniError, OSError):
            for claim in claims.all_claims():
                if claim.ended:
                    with suppress(CniError, OSError):
                        _give_up(claim.uid)

    def renew(self, granted: Callable[[Device], Mapping[str, Any]]) -> None:
        """Write the claims anew whose devices have other members ``granted`` now.  Raises CniError, OSError.

        An RDMA device that moves to a pod, or whose driver is loaded again, gets other numbers.  A runtime reads a
        claim's CDI file for each container that it makes.
        """
        for claim in claims.all_claims():
            now = tuple(replace(one, **granted(one)) for one in claim.devices)
            if now != claim.devices:
                claims.save(renewed := replace(claim, devices=now))
                cdi.write(renewed)

    # Health

    async def _watch(self, stream: Stream) -> None:
        """Send the health of all devices now and after each change; a slow peer gets only the newest list."""
        watcher, sent = asyncio.Event(), None
        self._watchers.add(watcher)
        try:
            while True:
                watcher.clear()
                if (states := [*self._states()]) != sent:  # most events concern no device of a slice
                    await stream.send_message(health.NodeWatchResourcesResponse(devices=map(_health, states)))
                    sent = states
                await watcher.wait()
        finally:
            self._watchers.discard(watcher)

    def _log_once(self, sentence: str) -> None:
        if self._logged != sentence:
            self._logged = sentence
            log(sentence)


_GONE: Final = (
    "it is none of this node's devices now; kubelet tries again; if that stays after a boot, delete the pod, and its "
    "successor gets another device"
)


def _report(sentence: str) -> None:
    log(f"{DRIVER}: {sentence}")


def _log_refused(asked: Asked, why: str) -> None:
    log(f"{asked.title}: {why}")


async def _decided(kubeconfig: str, asked: Sequence[Asked], find: Find, latest: float) -> Mapping[str, Claim | str]:
    """What a child process decides, by UID: the claim, or why it cannot be prepared.  The child waits for the API
    server, and what it imports ends with it.  After ``latest`` (of the monotonic clock) it reads no more claims."""
    loop = asyncio.get_running_loop()
    try:
        child = Child(partial(_decide, kubeconfig, asked, find, latest))
    except OSError as e:
        return {one.uid: f"no process can be started on this node: {e.strerror}" for one in asked}
    ended = asyncio.Event()
    loop.add_reader(child.fd, ended.set)
    try:
        await ended.wait()
    except asyncio.CancelledError:
        loop.remove_reader(child.fd)
        child.end()
        raise
    loop.remove_reader(child.fd)
    answer: Mapping[str, Claim | str]
    try:
        answer, accepted = child.answer()
    except (OSError, EOFError) as e:
        return {one.uid: f"the process that reads the claim {e}; see the log of hpn node" for one in asked}
    # Most nodes have few configurations; a node with more begins anew.
    prepare.accepted = accepted if len(accepted) <= _KNOWN else {}
    return answer


def _decide(
    kubeconfig: str, asked: Sequence[Asked], find: Find, latest: float
) -> tuple[Mapping[str, Claim | str], Mapping[bytes, str]]:
    """The decisions, and the configurations that are accepted by now (prepare.accepted)."""
    signal.alarm(_MOST)
    found = dict[str, Claim | str]()
    try:
        from node.dra import api  # noqa: PLC0415  # for the child only

        server = api.opened(kubeconfig)
    except (CniError, OSError) as e:
        why = cause(e) if isinstance(e, OSError) else e.msg
        return {one.uid: why for one in asked}, prepare.accepted
    for one in asked:
        if time.monotonic() > latest:
            found[one.uid] = f"{one.title} was not read: {server.url} answers too slowly; kubelet tries again"
            continue
        try:
            found[one.uid] = prepare.decide(one, server.claim(one.namespace, one.name), find, _prepared(one.uid))
        except Refused as e:
            found[one.uid] = str(e)
        except CniError as e:
            found[one.uid] = e.msg
        except OSError as e:
            found[one.uid] = f"{one.title} was not read: {cause(e)}; kubelet tries again"
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            found[one.uid] = f"{one.title} is not as the API server makes it: {type(e).__name__}: {e}"
    return found, prepare.accepted


def _prepared(uid: str) -> Claim | None:
    with suppress(CniError):
        return claims.load(uid)
    return None


def _new(claim: Claim) -> list[Device]:
    """The claim's devices that this boot has not prepared for it yet."""
    before = _prepared(claim.uid)
    return [device for device in claim.devices if not (before and device in before.devices)]


def _claim(decided: Mapping[str, Any], asked: Asked) -> Claim:
    found = decided.get(asked.uid)
    if isinstance(found, Claim):
        return found
    raise Refused(found or f"{asked.title} was not read; see the log of hpn node")


def _settle_gates(claim: Claim, *, is_new: bool) -> None:
    """Open the gates of requests that await no interface.  Of a new claim close the others: files of an earlier boot
    may be left."""
    for number, device in enumerate(claim.devices):
        if (is_new or not device.is_awaited) and claim.first_of_request(number) == number:
            gates.settle(claim, number)


def _answer(claim: Claim, number: int) -> dra.Device:
    device = claim.devices[number]
    return dra.Device(
        request_names=[device.request.partition("/")[0]],
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=[cdi.name(claim.uid, number)],
        share_id=device.share or None,
    )


def _give_up(uid: str) -> None:
    """Remove the claim, unless an attachment uses it: then only note that it has ended.  Raises CniError, OSError."""
    try:
        claim = claims.load(uid)
    except RecordUnreadable:
        claim = Claim(uid, "", "", (), ())  # enough to be marked, for sweep
    if any(gates.records(uid)):
        if claim and not claim.ended:
            claims.save(replace(claim, ended=True))
        return
    cdi.remove(uid)
    claims.forget(uid)


def _sweep_earlier_boots() -> None:
    """Remove the claims of earlier boots, which a /run on a disk keeps.  kubelet names only those that it needs."""
    for _, claim in claims.listed(claims.FOLDER):
        if claim and claim.boot != durable.boot_id():
            with suppress(CniError, OSError):
                _give_up(claim.uid)


def _health(state: State) -> health.DeviceHealth:
    pool, name, why = state
    return health.DeviceHealth(
        device=health.DeviceIdentifier(pool_name=pool, device_name=name),
        health=health.UNHEALTHY if why else health.HEALTHY,
        last_updated_time=int(time.time()),
        health_check_timeout_seconds=_VALID,
        message=why[:_LONGEST],
    )
