"""The keys of kind ipoib."""

# ruff: noqa: N815  # keys are spelled as in JSON

from contextlib import suppress
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BeforeValidator, model_validator

from base.protocol import written
from cni.models import interface_name
from cni.models.child import Child

_FULL_MEMBER: Final = 0x8000


def _partition(value: Any) -> int:
    """Return the partition's key with the bit of full membership, which Linux always sets (ipoib_ndo_init).  Raises
    ValueError."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = written.partition_key(value)
    if type(value) is not int or not 0 <= value <= 0xFFFF:
        raise ValueError('is not a partition key; write "0x8001", or a number below 65536')
    if value in (0, _FULL_MEMBER):
        raise ValueError("is the key of no partition; set a key of the fabric, or remove it for the master's")
    return value | _FULL_MEMBER


def _datagram(value: Any) -> Any:
    if value == "connected":
        # ipoib_set_mode, called by ipoib_changelink.
        raise ValueError(
            "is not supported: to set it on a child, Linux releases the lock of all interfaces and continues without "
            "it if another process takes it; set datagram"
        )
    return value


class Ipoib(Child):
    """https://github.com/Mellanox/ipoib-cni"""

    no_mac: ClassVar[str] = "an ipoib derives its address from its queue pair's number and its master's GID; remove mac"
    no_guid: ClassVar[str] = "an ipoib has its master's GUID; remove it, or use kind sriov, whose VFs have their own"

    kind: Literal["ipoib"]
    master: Annotated[str, AfterValidator(interface_name)] = ""
    """The host's IPoIB interface below this one, a PF's or a VF's.
    Default: none: it must be set
    Refused: 7: left out; 101: absent, down, no IPoIB interface (such as a bond of two), itself a child"""
    linkInContainer: bool = False
    """`true` is refused, because the master must be on the host.
    Refused: 7: `true`"""
    pkey: Annotated[int, BeforeValidator(_partition)] | None = None
    """The partition. The key's highest bit means full membership, which Linux always requests: `"0x0001"` means the
    same.
    Value: `"0x8001"`, `"32769"` or 32769
    Default: the master's
    Refused: 7: not a key; 0x0000 and 0x8000, which no partition has; 101: not in the table of the master's port"""
    mode: Annotated[Literal["datagram"], BeforeValidator(_datagram)] = "datagram"
    """The mode of its queue pairs.
    Refused: 7: `connected`, which Linux sets on a child without the necessary lock"""
    umcast: bool = False
    """Ignore multicast groups that programs join by verbs."""

    @model_validator(mode="after")
    def _over_infiniband(self) -> "Ipoib":
        if not self.master:
            raise ValueError(
                "master is not set; name an IPoIB interface of the host, such as ib0, because that of the default "
                "route is rarely one"
            )
        if self.linkInContainer:
            raise ValueError("linkInContainer true: kind ipoib needs an interface of the host; remove it")
        if self.soft_roce:
            raise ValueError("rdma.mode 'rxe': InfiniBand has no RoCE; set rdma.mode auto")
        return self
