"""The keys of a device that moves into the pod."""

# ruff: noqa: N815  # keys are spelled as in JSON

from typing import Annotated

from pydantic import AfterValidator

from base.protocol.spec import Json
from cni.models import Common, processors


class Device(Common):
    """The keys that sriov and host-device share."""

    irqAffinity: Annotated[str, AfterValidator(processors)] = ""
    """The processors for the device's interrupts, in turn ([below](#rps-and-irqaffinity)):
    `numa`, those near the device, or a list, `0-3,8`.
    Default: unchanged
    Refused: 7: malformed, not of this machine; 101: no interrupts of its own, refused by the kernel"""

    @property
    def irq_affinity(self) -> str:
        return self.irqAffinity

    @property
    def of_the_interface(self) -> Json:
        return super().of_the_interface | ({"irqAffinity": self.irqAffinity} if self.irqAffinity else {})
