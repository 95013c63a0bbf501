"""The private flags of a driver, and which of them mean that firmware takes LLDP's frames."""

import pytest

from base.kernel import private_flags
from hardware import neighbors


def names(*flags: str) -> bytes:
    return b"".join(flag.encode().ljust(32, b"\0") for flag in flags)


def test_flags_by_bit() -> None:
    assert private_flags.decoded(names("link-down-on-close", "fw-lldp-agent"), 0b10) == {
        "link-down-on-close": False,
        "fw-lldp-agent": True,
    }
    assert private_flags.decoded(b"", 0) == {}


@pytest.mark.parametrize("name", ["lo", "none9", "x" * 40])
def test_an_interface_without_flags(name: str) -> None:
    assert private_flags.read(name) == {}


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ({"fw-lldp-agent": True}, "ethtool --set-priv-flags rail0 fw-lldp-agent off"),
        ({"fw-lldp-agent": False}, ""),
        ({"disable-fw-lldp": False}, "ethtool --set-priv-flags rail0 disable-fw-lldp on"),
        ({"disable-fw-lldp": True}, ""),
        ({"legacy-rx": True}, ""),
        ({}, ""),
    ],
)
def test_an_agent_in_firmware(flags: dict[str, bool], remedy: str) -> None:
    assert neighbors.taken_by_firmware("rail0", flags) == remedy
