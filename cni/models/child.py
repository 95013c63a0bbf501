"""The keys of a link over a master."""

# ruff: noqa: N815  # keys are spelled as in JSON

from typing import Annotated

from pydantic import AfterValidator, model_validator

from cni.models import Common, interface_name


class Child(Common):
    """The keys that macvlan, ipvlan and ipoib share."""

    master: Annotated[str, AfterValidator(interface_name)] = ""
    """The host's interface below this one.
    Default: that of the default route, IPv4's first
    Refused: 101: absent, down, not Ethernet (`lo`, a tunnel), no default route, in a bridge or bond. Also if it
    carries interfaces of another kind, or is the host's end of another pod's interface"""
    linkInContainer: bool = False
    """Search `master` in the pod."""

    @model_validator(mode="after")
    def _shares_rdma(self) -> "Child":
        if self.rdma.mode == "exclusive" or self.rdma.name:
            key = f"name {self.rdma.name!r}" if self.rdma.name else "mode 'exclusive'"
            raise ValueError(
                f"rdma.{key}: the RDMA device belongs to the master, and can be in one namespace only; set rdma.mode "
                "shared, or give the pod a VF, which has its own device"
            )
        if self.rdma.required and self.linkInContainer and not self.soft_roce:
            raise ValueError("rdma.required true: a master inside the pod (linkInContainer) has no RDMA; remove one")
        return self


def has_masters_mac(kind: str, mode: str) -> str:
    """Return the reason why the interface cannot have its own MAC, with the remedy."""
    return f"{kind} in mode {mode} has its master's MAC; remove mac or use mode bridge"
