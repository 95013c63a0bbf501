"""The keys that the configurations of all kinds share, and types of keys that several kinds have.

Each kind has its model in a separate module beside this one, named in cni/kinds.  Building a model takes 0.6 to 2 ms of
a start, and only one is in use.  Keys are spelled as in JSON.  The properties of ``Common`` are what cni/config.py asks
of a model, with their defaults.
"""

# ruff: noqa: N815  # keys are spelled as in JSON

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from base.kernel import sysctl
from base.protocol import spec
from base.protocol.location import Location, is_absolute
from base.protocol.result import Result
from base.protocol.spec import Json
from base.state.log import DEFAULT, STDERR
from base.state.permitted import Named

_MAC: Final = re.compile(r"[0-9a-f]{2}([:-]?[0-9a-f]{2}){5}|([0-9a-f]{4}\.){2}[0-9a-f]{4}", re.IGNORECASE)


def unicast_mac(text: str) -> str:
    """Return the MAC as aa:bb:cc:dd:ee:ff.  Raises ValueError if no interface may have it."""
    from netaddr import EUI, mac_unix_expanded  # noqa: PLC0415  # a twelfth of the start, and few configurations need it

    # EUI also accepts eleven digits, a number, or a line with its end.
    if not _MAC.fullmatch(text):
        raise ValueError("is not a MAC address; write aa:bb:cc:dd:ee:ff")
    mac = EUI(text, version=48, dialect=mac_unix_expanded)
    if mac.value == 0:
        raise ValueError("is the zero MAC, which no interface may have")
    if mac.words[0] & 1:
        raise ValueError("is a multicast MAC; the first byte must be even")
    return str(mac)


_GUID: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){7}|[0-9a-f]{16}", re.IGNORECASE)


def port_guid(text: str) -> str:
    """Return the GUID as 00:11:22:33:44:55:66:77.  Raises ValueError if no InfiniBand port may have it."""
    if not _GUID.fullmatch(text):
        raise ValueError("is not a GUID; write 00:11:22:33:44:55:66:77 or 0011223344556677")
    guid = bytes.fromhex(text.replace(":", ""))
    if guid in (bytes(8), b"\xff" * 8):
        raise ValueError("means no GUID; set a unicast GUID, or remove it")
    return guid.hex(":")


def _absolute(path: str) -> str:
    if not is_absolute(path):
        raise ValueError("must be an absolute path")
    return path


def _absolute_or_stderr(path: str) -> str:
    return path if path == STDERR else _absolute(path)


def no_or_unicast_mac(text: str) -> str:
    return unicast_mac(text) if text else ""


def interface_name(name: str) -> str:
    """The name or altname of an interface that exists."""
    if name and (why := spec.bad_ifname(name, spec.ALTNAME)):
        raise ValueError(f"cannot name an interface: {why}")
    return name


# The last byte of the kernel's IB_DEVICE_NAME_MAX ends the name.  Characters of paths and patterns are excluded.
_RDMA_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def _rdma_device(name: str) -> str:
    if not _RDMA_NAME.fullmatch(name):
        raise ValueError(
            "cannot name an RDMA device: at most 63 of a-z, A-Z, 0-9, '_', '-', '.', the first a letter or digit"
        )
    return name


class Rdma(BaseModel):
    """The pod's share of the RDMA devices behind its interface, or its own device made of software (rxe)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    mode: Literal["auto", "exclusive", "shared", "off", "rxe"] = "auto"
    """`auto`: the kernel's mode.  `exclusive`, `shared`: the kernel must be in that mode.  `off`: leave RDMA devices
    alone.  `rxe`: leave them alone, and add a [soft-RoCE](rdma.md#soft-roce) device to the interface.
    Refused: 101: the kernel is in the other mode; 7: `exclusive` with macvlan, ipvlan or ipoib, `rxe` with ipoib"""
    required: bool = False
    """Refuse an ADD that gives the pod no RDMA device, or a device with device nodes that the container
    [was not given](rdma.md#the-containers-device-nodes).
    Refused: 101: no device, or its device nodes changed; 7: with `mode` `off`, or with `linkInContainer`"""
    name: Annotated[str, AfterValidator(_rdma_device)] | None = None
    """The device's name in the pod; DEL restores the host's name.  For programs with a fixed name in their
    configuration, such as `NCCL_IB_HCA=mlx5_0` in every pod of a job.
    Default: unchanged
    Refused: 7: not 1 to 63 of `a-z A-Z 0-9 _ - .`; several devices; with macvlan, ipvlan or ipoib; with `mode`
    `shared`, `off` or `rxe`. 100: another device has it, in any namespace; 101: the kernel is in shared mode"""
    gidTimeout: Annotated[float, Field(ge=0, le=60)] | None = None
    """Seconds to wait for GIDs; 0: read them once, and continue even if some are missing.
    Default: 5 with `required`, else 1
    Refused: 101, 110: not in time, or no room, with `required`"""

    @property
    def timeout(self) -> float:
        """Seconds to wait for GIDs.  They take milliseconds, or never come: a bond's backup leg gets none, and must not
        delay a pod that only needs Ethernet."""
        return self.gidTimeout if self.gidTimeout is not None else 5.0 if self.required else 1.0

    @model_validator(mode="after")
    def _consistent(self) -> "Rdma":
        if self.mode == "off" and self.required:
            raise ValueError("rdma.required true contradicts rdma.mode 'off'; remove one")
        if self.mode in ("shared", "off", "rxe") and self.name:
            raise ValueError(
                f"rdma.name {self.name!r} with rdma.mode {self.mode!r}: only a device that moves into the pod gets a "
                "name there; remove rdma.name, or set rdma.mode exclusive"
            )
        return self


def _sysctls(values: dict[str, str]) -> dict[str, str]:
    for key, value in values.items():
        try:
            sysctl.path(key)
        except ValueError as e:
            raise ValueError(f"{key!r} {e}") from e
        if not value.replace("\t", " ").isprintable():
            raise ValueError(f"the value {value!r} of {key!r} is not one line of text")
    return values


def _free_table(table: int) -> int:
    if table in (253, 254, 255):
        raise ValueError("is one of the kernel's own tables (default, main, local); choose another, or remove it")
    return table


def _switched(value: Any) -> Any:
    if isinstance(value, bool):
        return {} if value else None
    if not isinstance(value, dict):
        raise ValueError('must be true, false or an object, {"table": 100}')
    return value


class PolicyRouting(BaseModel):
    """Routing by source address."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    table: Annotated[int, Field(ge=1, le=2**32 - 1), AfterValidator(_free_table)] | None = None
    """The first routing table to use, which must be free in the pod.
    Default: the first free one from 100 on
    Refused: 7: in use; 253 to 255, which are the kernel's"""


def processors(text: str) -> str:
    """Return the text, if it is a list of processors or "numa".  Raises ValueError."""
    if text not in ("", "numa"):
        from base.kernel import cpus  # noqa: PLC0415  # few configurations need it

        cpus.parse(text)
    return text


class Common(BaseModel):
    """The keys that all kinds have."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    # The runtime's keys for the device that it chose for the pod, which becomes deviceID of this kind.  Multus adds
    # them to every configuration of a resource with devices, so the other kinds ignore them.
    device_keys: ClassVar[tuple[str, ...]] = ()

    kind: str
    rails: list[str] = []
    """Attach all rails of a pod by one ADD ([below](#rails)): their interfaces or resources, in place of one `master`,
    `pf` or `device`.
    Value: list of names
    Default: none
    Refused: 7: empty, one interface twice, a resource that the pod lacks, a key that only one interface can have. 4: a
    name that is too long. 11: kubelet's checkpoint cannot be read"""
    mtu: Annotated[int, Field(ge=0, le=65535)] = 0
    """Bytes; 0 is the master's MTU, and leaves a VF's or PF's unchanged.  `args.cni.mtu` overrides it, as in the plugin
    tuning.
    Refused: 7: above the master's or PF's"""
    ipam: dict[str, Any] | None = None
    """The IPAM plugin: [below](#ipam).
    Default: none
    Refused: 7: no `type`; 106: no such program"""
    dns: dict[str, Any] = {}
    """DNS settings for the result.
    Default: the IPAM plugin's"""
    dad: Literal["quick", "wait", "optimistic", "off"] = "quick"
    """IPv6 duplicate address detection: [below](#dad)."""
    dadTime: Annotated[int, Field(ge=10, le=1000)] | None = None
    """With `dad` `quick`: milliseconds to listen after each solicitation.  For fabrics with late answers, such as over
    several switches or to a gateway.
    Default: 20; InfiniBand is `optimistic` without it
    Refused: 7: with another `dad`"""
    rdma: Rdma = Rdma.model_construct()  # unlike Rdma(), this does not build its validator at every start
    """RDMA devices: [below](#rdma)."""
    sysctl: Annotated[dict[str, str], AfterValidator(_sysctls)] = {}
    """Sysctls to set in the pod's namespace, such as `{"net.ipv4.conf.IFNAME.rp_filter": "2"}`
    ([below](#sysctl)).
    Default: none
    Refused: 7 and 105: see there"""
    policyRouting: Annotated[PolicyRouting | None, BeforeValidator(_switched)] = None
    """Route packets from the interface's addresses by the interface's own routes ([below](#policyrouting)).
    Value: `true`, `false`, object
    Default: `false`
    Refused: 7: no `ipam`"""
    multiRail: bool = False
    """Treat the interface as one of the pod's rails ([multiRail](addresses.md#multirail)). It answers ARP for its own
    addresses only, packets from them leave by it, and the pod's default route stays.
    Refused: 7: no `ipam`, `policyRouting` `false`, a `sysctl` with another value"""
    rps: Annotated[str, AfterValidator(processors)] = ""
    """The processors that handle received packets ([below](#rps-and-irqaffinity)):
    `numa`, those near the NIC, or a list, `0-3,8`.
    Default: unchanged
    Refused: 7: malformed, not of this machine; 101: `numa` without a PCI device, refused by the kernel"""
    strict: bool = True
    """Refuse unknown keys."""
    # base/state/log.py reads these keys from every command's stdin; here they are only validated.
    logLevel: Literal["panic", "error", "warning", "info", "debug"] = DEFAULT
    """The least severe level of `logFile`'s lines."""
    logFile: Annotated[str, AfterValidator(_absolute_or_stderr)] = ""
    """Absolute path that the node allows, or `stderr` ([Logs](operations.md#logs)).
    Default: warnings go to stderr
    Refused: 7: relative, not allowed, no regular file, ends in `.old`"""
    logFormat: Literal["json", "text"] = "json"
    """The format of `logFile`'s lines: `json` for programs, `text` for people."""

    @property
    def no_mac(self) -> str:
        """The reason why the interface cannot have its own MAC, with the remedy; empty if it can."""
        return ""

    @property
    def no_guid(self) -> str:
        """The reason why the device cannot have its own GUID, with the remedy; empty if it can."""
        return f"{self.kind} has no GUID; remove it, or use kind sriov"

    @property
    def of_the_interface(self) -> Json:
        """The keys that are set and need an interface in the pod, with their values.  If the pod drives the device
        itself, they are refused."""
        asked = {
            "mtu": self.mtu,
            "rdma.mode": "rxe" if self.soft_roce else "",
            "sysctl": self.sysctl,
            "policyRouting": self.policyRouting,
            "multiRail": self.multiRail,
            "rps": self.rps,
        }
        return {key: value for key, value in asked.items() if value}

    @property
    def irq_affinity(self) -> str:
        """The processors for the device's interrupts, as a list or "numa"; empty to leave them as they are."""
        return ""

    @property
    def source_routing(self) -> PolicyRouting | None:
        """Routing by source address, by its own key or with ``multiRail``; None for none."""
        return self.policyRouting or (PolicyRouting() if self.multiRail else None)

    @property
    def steered(self) -> bool:
        """Whether the configuration chooses processors for packets or interrupts."""
        return bool(self.rps or self.irq_affinity)

    @property
    def soft_roce(self) -> bool:
        """Whether the interface gets a soft-RoCE device."""
        return self.rdma.mode == "rxe"

    @model_validator(mode="after")
    def _consistent(self) -> "Common":
        if self.dadTime and self.dad != "quick":
            raise ValueError(f"dadTime {self.dadTime} with dad {self.dad!r}: only 'quick' has a time; remove one")
        if self.source_routing and not self.ipam:
            key = "policyRouting" if self.policyRouting else "multiRail"
            raise ValueError(f"{key} routes by the interface's addresses, which come from ipam; set ipam")
        if self.multiRail and not self.policyRouting and "policyRouting" in self.model_fields_set:
            raise ValueError("multiRail true needs routing by source address, and policyRouting is false; remove one")
        return self


@dataclass(frozen=True)
class NetConf:
    """One attachment's configuration, validated without the kernel's facts.

    ``claim`` is the record's member for a device that a claim allocated (cni/features/claimed.py), and ``rail_of`` that
    for one of several rails (cni/rails.py).
    ``named`` are the node's interfaces and devices that it names, which the policy file must allow
    (base/state/permitted.py).  ``remarks`` report ignored keys, for the log.
    """

    where: Location
    attach: Common
    mac: str
    guid: str
    pod: str
    previous: Result | None
    claim: str = ""
    rail_of: str = ""
    named: tuple[Named, ...] = ()
    remarks: tuple[str, ...] = ()
