"""What of the machine would keep a container from using what it is given, said before a pod finds out."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cni.kernel import budget, rdma_netlink
from node.model import Offer, Sharing, Verbs, devices_of
from node.needs import RDMA_CM, module


def sentences(offers: Sequence[Offer], root: Path = Path("/")) -> tuple[str, ...]:
    """What a person should do about RDMA on this machine before pods use these offers."""
    budget.begin()
    is_exclusive = False
    with suppress(OSError):  # then it cannot be said
        is_exclusive = bool(rdma_netlink.is_exclusive())
    return told(offers, is_exclusive=is_exclusive, has_rdma_cm=os.path.exists(f"{root}{RDMA_CM}"))


def told(offers: Sequence[Offer], *, is_exclusive: bool, has_rdma_cm: bool) -> tuple[str, ...]:
    """The sentences, by whether RDMA devices are in one namespace each, and whether rdma_cm has its node; pure."""
    with_rdma = [offer for offer in offers if offer.resource.verbs is not Verbs.NONE and _has_rdma(offer)]
    shared = [offer for offer in with_rdma if offer.resource.sharing is Sharing.SHARED]
    found = []
    if is_exclusive and shared:
        found.append(
            f"{_names(shared)}: RDMA is in exclusive mode, so only pods with the host's network can open the devices; "
            "run rdma system set netns shared, while no pod is there, or give pods VFs"
        )
    if not has_rdma_cm and with_rdma:
        found.append(
            f"{_names(with_rdma)}: {RDMA_CM} is missing, and containers are refused without it; "
            f"load {module(RDMA_CM)}: modprobe {module(RDMA_CM)}"
        )
    return tuple(found)


def _has_rdma(offer: Offer) -> bool:
    return any(device.rdma for device in devices_of(offer.units))


def _names(offers: Sequence[Offer]) -> str:
    return ", ".join(offer.resource.full_name for offer in offers)
