"""The keys of kind ipvlan."""

from typing import Literal

from cni.models.child import Child, has_masters_mac


class Ipvlan(Child):
    """https://www.cni.dev/plugins/current/main/ipvlan/"""

    kind: Literal["ipvlan"]
    mode: Literal["l2", "l3", "l3s"] = "l2"
    """The mode of all ipvlans over this master.
    Refused: 101: ipvlan attachments over this master have another mode"""

    @property
    def no_mac(self) -> str:
        return has_masters_mac(self.kind, self.mode)
