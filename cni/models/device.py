"""The keys of a device that moves into the pod."""

# ruff: noqa: N815  # keys are spelled as in JSON

from typing import Annotated

from pydantic import AfterValidator, model_validator

from base.protocol.spec import Json
from cni.models import Common, processors


class Device(Common):
    """The keys that sriov and host-device share."""

    irqAffinity: Annotated[str, AfterValidator(processors)] = ""
    """The processors for the device's interrupts, in turn ([below](#rps-and-irqaffinity)):
    `numa`, those near the device, or a list, `0-3,8`.
    Default: unchanged
    Refused: 7: malformed, not of this machine; 101: no interrupts of its own, refused by the kernel"""

    useInterfaceNetwork: bool = False
    """Take the interface's addresses, routes and rules from the host into the pod; DEL gives them back
    ([below](#useinterfacenetwork)).
    Refused: 7: [these](#useinterfacenetwork)"""

    @property
    def irq_affinity(self) -> str:
        return self.irqAffinity

    @property
    def of_the_interface(self) -> Json:
        asked = {"irqAffinity": self.irqAffinity, "useInterfaceNetwork": self.useInterfaceNetwork}
        return super().of_the_interface | {key: value for key, value in asked.items() if value}

    @model_validator(mode="after")
    def _one_source_of_rules(self) -> "Device":
        if self.useInterfaceNetwork and self.source_routing:
            other = "policyRouting" if self.policyRouting else "multiRail"
            raise ValueError(f"useInterfaceNetwork takes the host's rules, and {other} makes others; remove one")
        return self
