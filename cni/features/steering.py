"""The processors for received packets (``rps``) and for a device's interrupts (``irqAffinity``).

Both settings belong to the device, and go home with it.  So the record has the former values, and undo restores them
once the device is on the host.  The settings of a link that is made for the pod end with the link.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Final

from base.kernel import cpus, syscalls, sysfs
from base.kernel.links import Link
from base.protocol.errors import CheckFailed, InvalidConfig, LinkUnavailable
from base.protocol.spec import Json
from base.state.journal import Entry
from base.state.pod import Pod
from base.state.record import Record

if TYPE_CHECKING:
    from cni.models import Common

NUMA: Final = "numa"


def claim(attach: "Common", entry: Entry, record: Record, pod: Pod, link: Link) -> Record:
    """Write the record with the settings to disk: each queue's mask, each interrupt's processor, and the values
    ``before``.  Raises LinkUnavailable, OSError, IoFailure."""
    address = str(record.link.get("device") or record.link.get("pci") or "")
    steering: Json = {}
    if attach.rps:
        mask = cpus.mask(_chosen("rps", attach.rps, address))
        with _sysfs(pod) as root:
            queues = cpus.steering(link.name, root)
        steering["rps"] = {name: {"value": mask, "before": before} for name, before in queues.items()}
    if attach.irq_affinity:
        steering["irqs"] = _interrupts(_chosen("irqAffinity", attach.irq_affinity, address), address)
    record = replace(record, steering=steering)
    entry.save(record)
    return record


def make(record: Record, pod: Pod, link: Link) -> Record:
    """Apply the record's settings.  Returns the record with the values as the kernel spells them.  Raises
    LinkUnavailable, OSError."""
    steering: Json = {}
    if queues := record.steering.get("rps"):
        with _sysfs(pod) as root:
            masks = {name: str(queue["value"]) for name, queue in queues.items()}
            with _refusing("rps"):
                cpus.steer(link.name, masks, root)
            steering["rps"] = _as_now(queues, cpus.steering(link.name, root))
    if irqs := record.steering.get("irqs"):
        with _refusing("irqAffinity"):
            for number, irq in irqs.items():
                cpus.set_affinity(int(number), str(irq["value"]))
        steering["irqs"] = _as_now(irqs, {number: cpus.affinity(int(number)) for number in irqs})
    return replace(record, steering=steering)


def put_back(record: Record) -> None:
    """Restore the former values of a device that is home, except those changed since.  A value that cannot be restored
    now, because the device is absent or the kernel refuses it, is given up: no DEL fails for it."""
    with suppress(OSError), _sysfs() as root:
        for name in _at_home(record, root):
            for queue, mask in _before(record, "rps", cpus.steering(name, root)).items():
                with suppress(OSError):  # a refused value does not prevent the others
                    cpus.steer(name, {queue: mask}, root)
    put_back_interrupts(record, cpus.vectors(record.device))


def put_back_interrupts(record: Record, numbers: Iterable[int]) -> None:
    """Restore these interrupts, which are the device's now; another device may have got the former numbers."""
    for number in numbers:
        with suppress(OSError):
            for value in _before(record, "irqs", {str(number): cpus.affinity(number)}).values():
                cpus.set_affinity(number, value)


def _at_home(record: Record, root: Path) -> tuple[str, ...]:
    """Return the names of the device's interfaces on the host; none for a link that was made for the pod."""
    if record.device:
        device = sysfs.device(record.device, root)
        return device.netdevs if device else ()
    name, software = (record.link.get("home") or {}).get("name", ""), record.link.get("software") or {}
    # It may have come home with its index in the pod (cni/kinds/host_device.py).
    indexes = {str(software.get(where)) for where in ("at_home", "in_pod")}
    is_it = name and sysfs.line(root / "class/net" / name / "ifindex") in indexes
    return (name,) if record.of_this_boot and is_it else ()


def status(attach: "Common") -> None:
    """Raise InvalidConfig for processors that this machine does not have."""
    here = cpus.possible()
    for key, text in (("rps", attach.rps), ("irqAffinity", attach.irq_affinity)):
        if text and text != NUMA and (missing := set(cpus.parse(text)).difference(here)):
            raise InvalidConfig(
                f"{key} {text!r}: this node has no processor {cpus.spell(missing)}, only {cpus.spell(here)}; correct it"
            )


def check(record: Record, pod: Pod, link: Link) -> None:
    """Raise CheckFailed unless masks and interrupts are as ADD left them."""
    if queues := record.steering.get("rps"):
        with _sysfs(pod) as root:
            _compare("rps of {} of " + link.name, queues, cpus.steering(link.name, root))
    for number, irq in record.steering.get("irqs", {}).items():
        try:
            now = cpus.affinity(int(number))
        except OSError as e:
            raise CheckFailed(f"interrupt {number} of {link.name} cannot be read any more: {e.strerror}") from e
        _compare("the affinity of interrupt {} of " + link.name, {number: irq}, {number: now})


@contextmanager
def _sysfs(pod: Pod | None = None) -> Iterator[Path]:
    """Open the sysfs of the pod's namespace, or of ours, without a mount point.  Raises OSError."""
    with syscalls.mounted_sysfs(pod.fd if pod else None, writable=True) as root:
        yield Path(f"/proc/self/fd/{root}")


def _chosen(key: str, text: str, address: str) -> tuple[int, ...]:
    """Return the processors that a value means.  Raises LinkUnavailable."""
    if text != NUMA:
        return cpus.parse(text)
    if found := cpus.near(address):
        return found
    raise LinkUnavailable(
        f"{key} 'numa': the interface has no PCI device whose NUMA node is known; write a list of processors: 0-3,8"
    )


def _interrupts(chosen: tuple[int, ...], address: str) -> Json:
    """Distribute the interrupts over the processors in turn.  Raises LinkUnavailable, OSError."""
    numbers = cpus.vectors(address)
    if not numbers:
        raise LinkUnavailable(
            f"irqAffinity: {address or 'the device'} has no interrupts of its own; remove irqAffinity"
        )
    pairs = zip(numbers, cycle(chosen), strict=False)
    return {str(number): {"value": str(cpu), "before": cpus.affinity(number)} for number, cpu in pairs}


@contextmanager
def _refusing(key: str) -> Iterator[None]:
    """Turn the kernel's refusal of a value into LinkUnavailable."""
    try:
        yield
    except OSError as e:
        raise LinkUnavailable(
            f"{key}: the kernel refused it: {e.strerror}: {e.filename}; change {key}, or remove it"
        ) from e


def _as_now(settings: Mapping[str, Json], now: Mapping[str, str]) -> Json:
    return {name: {**setting, "value": now[name]} for name, setting in settings.items()}


def _before(record: Record, what: str, now: Mapping[str, str]) -> dict[str, str]:
    """Return the former values of settings that are still as ADD left them.  After an ADD that was killed, the kernel's
    spelling of the values is unknown, and all are returned."""
    settings = record.steering.get(what, {}).items()
    ours = (name for name, was in settings if name in now and (not record.complete or now[name] == was["value"]))
    return {name: str(record.steering[what][name]["before"]) for name in ours}


def _compare(what: str, settings: Mapping[str, Json], now: Mapping[str, str]) -> None:
    for name, setting in settings.items():
        if now.get(name) != setting["value"]:
            raise CheckFailed(f"{what.format(name)} is {now.get(name, 'not there')}, ADD left {setting['value']}")
