"""devlink's messages, as pyroute2 encodes them."""

import pytest
from pyroute2.netlink.devlink import (
    DEVLINK_CMD_HEALTH_REPORTER_GET,
    DEVLINK_CMD_HEALTH_REPORTER_RECOVER,
    DEVLINK_CMD_PORT_NEW,
    devlinkcmd,
)

from base.kernel import devlink


def message(command: int, reporter: str, state: int) -> bytes:
    """A message's body: what follows struct nlmsghdr."""
    one = devlinkcmd()
    one["cmd"], one["version"] = command, 1
    one["attrs"] = [
        ("DEVLINK_ATTR_BUS_NAME", "pci"),
        ("DEVLINK_ATTR_DEV_NAME", "0000:3b:00.0"),
        (
            "DEVLINK_ATTR_HEALTH_REPORTER",
            {
                "attrs": [
                    ("DEVLINK_ATTR_HEALTH_REPORTER_NAME", reporter),
                    ("DEVLINK_ATTR_HEALTH_REPORTER_STATE", state),
                    ("DEVLINK_ATTR_HEALTH_REPORTER_ERR_COUNT", 1),
                ]
            },
        ),
    ]
    one.encode()
    return bytes(one.data[16:])


@pytest.mark.parametrize("command", [DEVLINK_CMD_HEALTH_REPORTER_GET, DEVLINK_CMD_HEALTH_REPORTER_RECOVER])
def test_failed_firmware(command: int) -> None:
    assert devlink.failed_device(message(command, "fw_fatal", 1)) == "0000:3b:00.0"
    assert devlink.failed_device(message(command, "fw_fatal", 0)) == ""
    assert devlink.failed_device(message(command, "tx", 1)) == ""


def test_other_messages() -> None:
    assert devlink.failed_device(message(DEVLINK_CMD_PORT_NEW, "fw_fatal", 1)) == ""
    assert not devlink.is_of_health(message(DEVLINK_CMD_PORT_NEW, "fw_fatal", 1))
    assert devlink.is_of_health(message(DEVLINK_CMD_HEALTH_REPORTER_RECOVER, "tx", 0))
