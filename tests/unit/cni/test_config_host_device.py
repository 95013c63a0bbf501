"""stdin's JSON -> NetConf for kind host-device: the keys that name the device, and refusals."""

from typing import Any

import pytest

from base.protocol.errors import CniError
from cni import config
from cni.models.host_device import HostDevice
from cni.models.macvlan import Macvlan
from cni.models.sriov import Sriov

SF, PCI, MAC = "mlx5_core.sf.4", "0000:3b:00.2", "02:00:00:00:00:01"
PATH = "/sys/devices/pci0000:00/0000:00:02.0"


def conf(**keys: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "rail0", "type": "hpn", "kind": "host-device", **keys}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"device": "eth1"}, {"device": "eth1"}),
        ({"hwaddr": "02-00-00-00-00-01"}, {"hwaddr": MAC}),
        (
            {"kernelpath": "/sys/devices/pci0000:00/0000:00:02.0/"},
            {"kernelpath": "/sys/devices/pci0000:00/0000:00:02.0"},
        ),
        ({"pciBusID": PCI}, {"deviceID": PCI}),
        ({"deviceID": SF}, {"deviceID": SF}),
        ({"deviceID": PCI, "pciBusID": PCI}, {"deviceID": PCI}),  # Multus adds both
        ({"runtimeConfig": {"deviceID": SF}, "deviceID": PCI, "pciBusID": PCI}, {"deviceID": SF}),
        ({"device": "eth1", "runtimeConfig": {"deviceID": ""}, "hwaddr": ""}, {"device": "eth1"}),
    ],
)
def test_which_device(keys: dict[str, Any], named: dict[str, str]) -> None:
    attach = config.load(conf(**keys), "").attach
    assert attach == HostDevice(kind="host-device", **named)


@pytest.mark.parametrize(
    ("keys", "msg"),
    [
        ({}, "no key names a device; set device, hwaddr, kernelpath or pciBusID"),
        (
            {"device": "eth1", "pciBusID": PCI},
            f"device 'eth1' and deviceID '{PCI}' each name a device; remove all but",
        ),
        ({"device": "eth1", "deviceID": SF}, f"device 'eth1' and deviceID '{SF}' each name a device"),
        ({"device": "a/b"}, 'device "a/b": cannot name an interface'),
        ({"hwaddr": "x"}, 'hwaddr "x": is not a MAC address'),
        ({"kernelpath": "/etc"}, 'kernelpath "/etc": must be a device\'s path below /sys/devices/'),
        ({"kernelpath": "/sys/devices/../../etc"}, 'kernelpath "/sys/devices/../../etc": must be a device\'s path'),
        ({"kernelpath": "/sys/devices/."}, 'kernelpath "/sys/devices/.": must be a device\'s path'),
        ({"deviceID": "../x"}, 'deviceID "../x": is not a bus address; write 0000:3b:00.2'),
        ({"deviceID": ".."}, 'deviceID "..": is not a bus address; write 0000:3b:00.2'),
        ({"deviceID": 5}, "deviceID 5: input should be a valid string"),
        ({"device": "eth1", "useInterfaceNetwork": "yes"}, 'useInterfaceNetwork "yes": input should be a valid'),
        (
            {"device": "eth1", "useInterfaceNetwork": True, "multiRail": True, "ipam": {"type": "hpn-ipam"}},
            "useInterfaceNetwork takes the host's rules, and multiRail makes others; remove one",
        ),
        ({"device": "eth1", "runtimeConfig": {"mac": MAC}}, f"mac '{MAC}': host-device moves an interface as it is"),
        ({"device": "eth1", "args": {"cni": {"guid": "00:11:22:33:44:55:66:77"}}}, "requested guid"),
    ],
)
def test_refused(keys: dict[str, Any], msg: str) -> None:
    with pytest.raises(CniError) as e:
        config.load(conf(**keys), "")
    assert (e.value.code, e.value.msg[: len(msg)]) == (7, msg)


@pytest.mark.parametrize(
    ("keys", "model"),
    [
        ({"deviceID": SF}, HostDevice),
        ({"runtimeConfig": {"deviceID": "ice.sf.0"}}, HostDevice),
        ({"deviceID": PCI}, Sriov),
        ({"deviceID": "virtio0"}, Sriov),  # as ever, and refused later
        ({"deviceID": SF, "master": "eth1"}, Macvlan),
        ({"deviceID": SF, "mode": "bridge"}, Macvlan),
        ({"deviceID": SF, "kind": "macvlan"}, Macvlan),
    ],
)
def test_the_kind_of_a_configuration_that_names_none(keys: dict[str, Any], model: type) -> None:
    unnamed = {key: value for key, value in conf().items() if key != "kind"}
    assert type(config.load({**unnamed, **keys}, "").attach) is model
