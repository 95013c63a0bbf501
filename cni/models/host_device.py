"""The keys of kind host-device."""

# ruff: noqa: N815  # keys are spelled as in JSON

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, model_validator

from cni.models import interface_name, no_or_unicast_mac
from cni.models.device import Device

# Exactly one of these keys must name the device.
_NAMES = ("device", "hwaddr", "kernelpath", "deviceID")


def _below_sys_devices(path: str) -> str:
    if path and (not path.startswith("/sys/devices/") or {".", ".."} & set(path.split("/"))):
        raise ValueError("must be a device's path below /sys/devices/; see: readlink -f /sys/class/net/eth1/device")
    return path.rstrip("/")


def _bus_address(text: str) -> str:
    if text and not (text[0].isalnum() and all(c.isalnum() or c in ":._-" for c in text)):
        raise ValueError("is not a bus address; write 0000:3b:00.2, or for the auxiliary bus mlx5_core.sf.4")
    return text


class HostDevice(Device):
    """https://www.cni.dev/plugins/current/main/host-device/"""

    device_keys: ClassVar[tuple[str, ...]] = ("deviceID", "pciBusID")
    no_mac: ClassVar[str] = (
        "host-device moves an interface as it is, with its MAC; remove mac, or chain the plugin tuning"
    )

    kind: Literal["host-device"] = "host-device"
    device: Annotated[str, AfterValidator(interface_name)] = ""
    """The interface's name.
    Refused: 101: not there; 109: another attachment's"""
    hwaddr: Annotated[str, AfterValidator(no_or_unicast_mac)] = ""
    """The interface's MAC; if several interfaces have it, the hardware.
    Refused: 7: malformed, several interfaces have it; 101, 109: as `device`"""
    kernelpath: Annotated[str, AfterValidator(_below_sys_devices)] = ""
    """The device's directory below `/sys/devices/`.
    Refused: 7: another path; 101, 109, 11: as `deviceID`"""
    deviceID: Annotated[str, AfterValidator(_bus_address)] = ""
    """The device's bus address; `pciBusID` is another name of this key.
    Refused: 7: malformed, a device with several interfaces; 101: no such device, no driver; 109: another attachment's;
    11: still in another namespace"""

    @model_validator(mode="after")
    def _names_one(self) -> "HostDevice":
        named = [f"{key} {value!r}" for key in _NAMES if (value := getattr(self, key))]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} each name a device; remove all but one")
        if not named:
            raise ValueError(
                "no key names a device; set device, hwaddr, kernelpath or pciBusID; Multus sets deviceID if the "
                "NetworkAttachmentDefinition has the annotation k8s.v1.cni.cncf.io/resourceName and the pod requests "
                "that resource"
            )
        return self
