"""Valid configurations with random changes to values, keys and bytes; a seed repeats them."""

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Conf = dict[str, Any]

# Replacements for any value.
VALUES: Sequence[Any] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**32, 2**64, 10**400, 1.5, 1e308, float("nan"), float("inf")),
    *("", " ", "x", "a\nb", 'a"b', "' $(touch X) #", "\x00", "\x1b[2J", "\ud800", "\u2028", "é" * 300, "x" * 70_000),
    *("auto", "on", "off", "bridge", "passthru", "l3", "rail0", "fabric", "lo", "00:11:22:33:44:55", "0000:3b:00.2"),
    *("10.56.0.5", "10.56.0.0/24", "10.56.0.5/33", "fd00:56::5", "::", "0.0.0.0/0", "fd00:56::/64", "10.0.0.1-9"),
    *("/etc/shadow", "/dev/zero", "/proc/self/environ", "/proc/nothing/x", "../../etc/passwd", "%s%n", "{}", "[]"),
    *([], [[]], [None], [{}], {}, {"": ""}, {"x": {"x": {"x": []}}}, [[[[]]]], [1] * 300),
    *([{"subnet": "10.57.0.0/30"}], [[{"subnet": "10.57.0.0/30"}]], [{"dst": "10.99.0.0/16"}], {"mode": "off"}),
    {"mac": "02:00:00:00:00:07", "ips": ["10.56.0.77"]},
    {"cni": {"ips": ["10.56.0.78"], "sticky": "a\nb"}},
    {"net.ipv4.conf.IFNAME.rp_filter": "2", "net.core.somaxconn": "128"},
    {"net.ipv4.conf/../../../kernel.core_pattern": "|/bin/x", "kernel.core_pattern": "x"},
)  # fmt: skip
KEYS: Sequence[str] = (
    *("master", "mode", "mtu", "kind", "mac", "ipam", "dns", "dad", "sysctl", "policyRouting", "logFile", "logLevel"),
    *("multiRail", "useInterfaceNetwork", "embedIPv4", "node"),
    *("strict", "rdma", "linkInContainer", "bcqueuelen", "deviceID", "pf", "vf", "pfOnly", "vlan", "vlanQoS", "trust"),
    *("runtimeConfig", "args", "prevResult", "capabilities", "name", "cniVersion", "type", "cni.dev/attachments"),
    *("cni.dev/valid-attachments", "ranges", "subnet", "rangeStart", "rangeEnd", "gateway", "exclude", "reserved"),
    *("rails", "align", "routes", "releaseCooldown", "sticky", "resolvConf", "eui64", "guid", "link_state"),
    *("CNIDeviceInfoFile", "ips", "ipRanges", "sandbox", "interfaces", "x", "", "\n", "é", "Master", "MTU"),
)  # fmt: skip
# Keys of directories get only paths of the test: an administrator may have them anywhere.
PLACES = ("dataDir",)
# Keys that take time if their values are valid.
SLOW = ("probe", "dad", "gidTimeout")


def mutants(seed: int, bases: Sequence[Conf], state: Path) -> Iterator[bytes]:
    """An endless stream of configurations for stdin."""
    dice = random.Random(seed)
    while True:
        conf = copy.deepcopy(dice.choice(bases))
        for _ in range(dice.choice((0, 1, 1, 1, 2, 3, 5))):
            dice.choice(CHANGES)(dice, dice.choice(list(objects(conf))))
        place(dice, conf, state)
        stdin = json.dumps(conf).encode()
        if dice.random() < 0.1:
            stdin = mutilated(dice, stdin)
        if is_contained(stdin, state):
            yield stdin


def objects(conf: Any) -> Iterator[Conf]:
    """The configuration, and every object in it."""
    if isinstance(conf, dict):
        yield conf
    for value in conf.values() if isinstance(conf, dict) else conf if isinstance(conf, list) else ():
        yield from objects(value)


def _replace(dice: random.Random, within: Conf) -> None:
    if within:
        within[dice.choice(list(within))] = copy.deepcopy(dice.choice(VALUES))


def _add(dice: random.Random, within: Conf) -> None:
    within[dice.choice(KEYS)] = copy.deepcopy(dice.choice(VALUES))


def _remove(dice: random.Random, within: Conf) -> None:
    if within:
        del within[dice.choice(list(within))]


def _rename(dice: random.Random, within: Conf) -> None:
    if within:
        within[dice.choice(KEYS)] = within.pop(dice.choice(list(within)))


def _wrap(dice: random.Random, within: Conf) -> None:
    if within:
        key = dice.choice(list(within))
        within[key] = dice.choice(([within[key]], {key: within[key]}, str(within[key])))


CHANGES: Sequence[Callable[[random.Random, Conf], None]] = (_replace, _replace, _add, _add, _remove, _rename, _wrap)


def place(dice: random.Random, conf: Conf, state: Path) -> None:
    """Restrict the configuration to the test's directory, and mostly to fast keys."""
    for within in list(objects(conf)):
        for key in [key for key in within if key.lower() in map(str.lower, PLACES)]:
            del within[key]
        for key in [key for key in within if key in SLOW and dice.random() < 0.97]:
            del within[key]
    if isinstance(conf.get("ipam"), dict) and dice.random() < 0.05:
        conf["ipam"]["dataDir"] = dice.choice(places(state))


def places(state: Path) -> list[Any]:
    """Valid and invalid values for a directory of leases, without one that selects a default."""
    return [f"{state}/deep", f"{state}//./x", "relative", "/etc/shadow", "/dev/zero", "/proc/x", 5, ["x"], "/a\0b"]


def mutilated(dice: random.Random, stdin: bytes) -> bytes:
    data = bytearray(stdin)
    for _ in range(dice.choice((1, 1, 2, 8))):
        data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data[: dice.choice((len(data), len(data), dice.randrange(len(data))))])


def is_contained(stdin: bytes, state: Path) -> bool:
    """Report whether the configuration still names only directories of the test."""
    try:
        conf = json.loads(stdin)
    except (ValueError, RecursionError):
        return True
    if not isinstance(conf, dict):
        return True
    known, ipam = places(state), conf.get("ipam")
    data = [ipam[key] for key in ipam if key.lower() == "datadir"] if isinstance(ipam, dict) else []
    return all(d in known for d in data)
