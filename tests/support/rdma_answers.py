"""The kernel's answers about RDMA devices and their resources, in the format of drivers/infiniband/core/nldev.c."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from base.kernel.netlink import attr, attributes, read_u32, text, u32

NLDEV = 5 << 10
GET, QP_GET, CQ_GET, MR_GET = (NLDEV + number for number in (1, 10, 12, 13))
# The attributes of a list and of its entries; of an entry, those that precede the owner: RES_LQPN, RES_CQE, RES_MRLEN.
LISTS = {QP_GET: (19, 20, 21), CQ_GET: (35, 36, 37), MR_GET: (40, 41, 45)}
PID, KERN_NAME = 28, 29
NESTED = 0x8000  # NLA_F_NESTED

# A thread, the name of a part of the kernel, or None for neither.
Owner = int | str | None


def entry(number: int, owner: Owner) -> bytes:
    """A resource's attributes."""
    named = attr(KERN_NAME, text(owner)) if isinstance(owner, str) else b"" if owner is None else attr(PID, u32(owner))
    return attr(number, u32(7)) + named


@dataclass
class Answers:
    """A socket that answers dumps.

    - ``devices``: for each device, its resources by the message's type.
    - ``refused``: devices whose driver does not answer.
    - ``after``: called after each dump.
    """

    devices: Mapping[str, Mapping[int, list[Owner]]]
    refused: set[str] = field(default_factory=set)
    after: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        handles = {number: attr(1, u32(number)) + attr(2, text(name)) for number, name in enumerate(self.devices, 4)}
        if kind == GET:
            yield from handles.values()
            return
        number = read_u32(attributes(body)[1])
        name = list(self.devices)[number - 4]
        if name in self.refused:
            raise OSError(5, "Input/output error")
        table, one, first = LISTS[kind]
        owners = self.devices[name].get(kind, [])
        # The kernel ends a message where its buffer ends.
        for part in (owners[:2], owners[2:]):
            if part:
                entries = b"".join(attr(one | NESTED, entry(first, owner)) for owner in part)
                yield handles[number] + attr(table, entries)
        self.after()
