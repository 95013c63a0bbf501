"""The keys of kind macvlan."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from cni.models import no_or_unicast_mac
from cni.models.child import Child, has_masters_mac


class Macvlan(Child):
    """https://www.cni.dev/plugins/current/main/macvlan/"""

    kind: Literal["macvlan"] = "macvlan"
    mode: Literal["bridge", "private", "vepa", "passthru"] = "bridge"
    """How interfaces over one master reach each other."""
    mac: Annotated[str, AfterValidator(no_or_unicast_mac)] | None = None
    """The interface's MAC.
    Default: random, locally administered
    Refused: 7: malformed, zero, multicast, with `passthru`"""
    bcqueuelen: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    """Length of the broadcast queue, in packets; 0 is the kernel's default."""

    @property
    def no_mac(self) -> str:
        return has_masters_mac(self.kind, self.mode) if self.mode == "passthru" else ""
