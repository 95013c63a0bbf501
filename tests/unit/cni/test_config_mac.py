"""The source of an attachment's MAC, its spellings, and refused MACs."""

from typing import Any

import pytest
from support.configurations import MAC, conf, refused

from cni import config, models

RUNTIME, ARGS, ENV, OWN = (f"02:00:00:00:00:0{n}" for n in "abcd")


@pytest.mark.parametrize(
    ("runtime", "args", "env", "own", "mac"),
    [
        (RUNTIME, ARGS, ENV, OWN, RUNTIME),
        (None, ARGS, ENV, OWN, ARGS),
        (None, None, ENV, OWN, ENV),
        (None, None, None, OWN, OWN),
        (None, None, None, None, ""),
        ("", "", "", OWN, OWN),  # Multus sends an empty mac for none
    ],
)
def test_mac_precedence(runtime: str | None, args: str | None, env: str | None, own: str | None, mac: str) -> None:
    document = conf(mac=own)
    if runtime is not None:
        document["runtimeConfig"] = {"mac": runtime}
    if args is not None:
        document["args"] = {"cni": {"mac": args}}
    assert config.load(document, "" if env is None else f"MAC={env}").mac == mac


@pytest.mark.parametrize(
    ("text", "mac"),
    [
        ("02:00:00:00:00:01", MAC),
        ("0A:BC:DE:F0:12:34", "0a:bc:de:f0:12:34"),  # as the kernel shows it
        ("02-00-00-00-00-01", MAC),
        ("0200.0000.0001", MAC),
        ("020000000001", MAC),
        ("fe:ff:ff:ff:ff:ff", "fe:ff:ff:ff:ff:ff"),
        ("00:00:00:00:00:01", "00:00:00:00:00:01"),  # only all of it zero is no MAC
    ],
)
def test_mac_formats(text: str, mac: str) -> None:
    assert models.unicast_mac(text) == mac


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a MAC address"),
        ("1", "is not a MAC address"),  # a number is an EUI to netaddr, if it is one
        ("10", "is not a MAC address"),
        ("2199023255553", "is not a MAC address"),
        ("0x020000000001", "is not a MAC address"),
        ("02:00:00:00:00", "is not a MAC address"),
        ("02:00:00:00:00:01:02", "is not a MAC address"),
        ("02:00:00:00:00:01:02:03", "is not a MAC address"),  # EUI-64
        ("00:00:00:00:00:00:00:01", "is not a MAC address"),  # an EUI-64 whose number would fit
        ("02:00:00:00:00:0g", "is not a MAC address"),
        (" 02:00:00:00:00:01", "is not a MAC address"),
        ("02:00:00:00:00:01 ", "is not a MAC address"),
        pytest.param("02:00:00:00:00:01\n", "is not a MAC address"),
        pytest.param("abcdefabcde", "is not a MAC address"),  # eleven digits
        pytest.param("20000000001", "is not a MAC address"),
        ("00:00:00:00:00:00", "is the zero MAC"),
        ("000000000000", "is the zero MAC"),
        ("01:00:00:00:00:00", "is a multicast MAC"),
        ("ff:ff:ff:ff:ff:ff", "is a multicast MAC"),
        ("33-33-00-00-00-01", "is a multicast MAC"),
    ],
)
def test_mac_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}"):
        models.unicast_mac(text)


@pytest.mark.parametrize("value", ["x", 1, True, [MAC], {"mac": MAC}, "01:00:00:00:00:01"], ids=repr)
def test_requested_mac_refused(value: Any) -> None:
    error = refused(conf(runtimeConfig={"mac": value}))
    assert error.code == 7
    assert error.msg.startswith(f"requested mac {value!r} is ")


@pytest.mark.parametrize(
    ("keys", "mode"),
    [
        ({"kind": "ipvlan"}, "ipvlan in mode l2"),
        ({"kind": "ipvlan", "mode": "l3"}, "ipvlan in mode l3"),
        ({"mode": "passthru"}, "macvlan in mode passthru"),
    ],
)
def test_mac_where_it_is_the_masters(keys: dict[str, Any], mode: str) -> None:
    why = f"mac '{MAC}': {mode} has its master's MAC; remove mac or use mode bridge"
    for error in (
        refused(conf(runtimeConfig={"mac": MAC}, **keys)),
        refused(conf(args={"cni": {"mac": MAC}}, **keys)),
        refused(conf(**keys), f"MAC={MAC}"),
    ):
        assert (error.code, error.msg) == (7, why)


def test_own_mac_with_passthru() -> None:
    assert refused(conf(mode="passthru", mac=MAC)).msg.startswith(f"mac '{MAC}': macvlan in mode passthru has")
