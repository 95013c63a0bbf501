"""The keys of kind sriov."""

# ruff: noqa: N815  # keys are spelled as in JSON

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from base.protocol.spec import Json
from cni.models import interface_name, no_or_unicast_mac, port_guid
from cni.models.device import Device


def _lower(value: Any) -> Any:
    """Lower the case, because sriov-cni accepts 802.1Q, the standard's spelling."""
    return value.lower() if isinstance(value, str) else value


_Switch = Literal["on", "off"]
_Mbps = Annotated[int, Field(ge=0, le=2**32 - 1)]


class Sriov(Device):
    """https://github.com/k8snetworkplumbingwg/sriov-cni, docs/configuration-reference.md"""

    device_keys: ClassVar[tuple[str, ...]] = ("deviceID",)
    no_guid: ClassVar[str] = ""

    kind: Literal["sriov"] = "sriov"
    deviceID: str = ""
    """The VF's PCI address; `runtimeConfig.deviceID` overrides it.
    Refused: 7: not a VF (without `pfOnly`), with `pf`, with a host address, route or link; 109: attached; 11: in
    another namespace. 101: absent, no driver, master of another attachment, in a bridge, bond or VRF"""
    pf: Annotated[str, AfterValidator(interface_name)] = ""
    """Use any free VF of this PF's interface: one that is not attached, is down, and is not needed by the host.
    Refused: 101: no VFs, none free"""
    vf: Annotated[int, Field(ge=0)] | None = None
    """With `pf`, the VF's number; also `VF` of `CNI_ARGS`.
    Default: any
    Refused: 7: no such number; 7, 101, 109: as `deviceID`"""
    guid: Annotated[str, AfterValidator(port_guid)] | None = None
    """An InfiniBand VF's node and port GUID: `00:11:22:33:44:55:66:77` or `0011223344556677`.
    Default: unchanged
    Refused: 7: malformed, zero, all ones, of an Ethernet VF, of a PF"""
    pfOnly: bool = False
    """Attach the PF itself, named by `pf` or `deviceID`. A function without a PF is one too, as in a virtual machine.
    Refused: 7: with a VF's key; host addresses, routes or VLANs over it or a VF; 109: it or a VF is attached. 101:
    master of another attachment; in a bridge, bond or VRF"""
    mac: Annotated[str, AfterValidator(no_or_unicast_mac)] | None = None
    """The interface's MAC, set on the PF and in the VF.
    Default: unchanged
    Refused: 7: as for macvlan; the PF or another VF of it has it"""
    vlan: Annotated[int, Field(ge=0, le=4094)] | None = None
    """0 is none; also `VLAN` of `CNI_ARGS`.
    Default: unchanged"""
    vlanQoS: Annotated[int, Field(ge=0, le=7)] = 0
    """The VLAN's priority.
    Refused: 7: without a `vlan`"""
    vlanProto: Annotated[Literal["802.1q", "802.1ad"], BeforeValidator(_lower)] = "802.1q"
    """The VLAN's protocol, in any case.
    Refused: 7: without a `vlan`"""
    spoofchk: _Switch | None = None
    """Whether the NIC drops packets from another MAC.
    Default: unchanged"""
    trust: _Switch | None = None
    """Whether the VF may use what needs trust, such as promiscuous mode.
    Default: unchanged"""
    link_state: Literal["auto", "enable", "disable"] | None = None
    """The VF's link: the PF's, always up, always down.
    Default: unchanged"""
    min_tx_rate: _Mbps | None = None
    """Mbit/s; 0 is none.
    Default: unchanged; 0 with `max_tx_rate`
    Refused: 7: above `max_tx_rate`, above the PF's speed"""
    max_tx_rate: _Mbps | None = None
    """Mbit/s; 0 is none.
    Default: unchanged; 0 with `min_tx_rate`
    Refused: 7: above the PF's speed"""

    @model_validator(mode="after")
    def _consistent(self) -> "Sriov":
        if self.deviceID and self.pf:
            raise ValueError(f"deviceID {self.deviceID!r} and pf {self.pf!r} are both set; remove one")
        if not self.deviceID and not self.pf:
            raise ValueError(
                "deviceID is not set; Multus sets it if the NetworkAttachmentDefinition has the annotation "
                "k8s.v1.cni.cncf.io/resourceName and the pod requests that resource; or set pf, for any free VF of it"
            )
        if not self.pf and self.vf is not None:
            raise ValueError("vf needs pf, the PF's interface; set pf")
        if self.pfOnly and (of_a_vf := self.attributes().keys() | ({"vf"} if self.vf is not None else set())):
            raise ValueError(f"pfOnly moves the PF itself, which has no {', '.join(sorted(of_a_vf))}; remove one")
        if self.useInterfaceNetwork and not self.pfOnly:
            raise ValueError("useInterfaceNetwork takes the network of a whole PF; set pfOnly, or use kind host-device")
        for key, value, default in (("vlanQoS", self.vlanQoS, 0), ("vlanProto", self.vlanProto, "802.1q")):
            if value != default and not self.vlan:
                raise ValueError(f"{key} {value!r} needs a vlan other than 0; set vlan")
        if self.min_tx_rate and self.max_tx_rate and self.min_tx_rate > self.max_tx_rate:
            raise ValueError(f"min_tx_rate {self.min_tx_rate} is above max_tx_rate {self.max_tx_rate}; lower it")
        return self

    def attributes(self) -> Json:
        """The requested attributes of the VF, in the order in which the PF must get them."""
        wanted: Json = {}
        if self.vlan is not None:
            wanted["vlan"] = [self.vlan, self.vlanQoS, self.vlanProto]
        if self.min_tx_rate is not None or self.max_tx_rate is not None:
            wanted["rate"] = [self.min_tx_rate or 0, self.max_tx_rate or 0]
        for name in ("spoofchk", "trust"):
            if (value := getattr(self, name)) is not None:
                wanted[name] = value == "on"
        if self.link_state is not None:
            wanted["link_state"] = self.link_state
        return wanted
