"""Well-formed requests that fail because of the state of the host, the pod or the IPAM plugin."""

import json
from contextlib import ExitStack
from typing import Any

from netns.bad_requests.form import SCRIPT, Bad, Setup, ipam, runtime
from support.disks import mounted, read_only
from support.topology import Host, Pod, ip

ITSELF = {"ipam": {"type": "hpn", "subnet": "10.56.0.0/24"}}


def stranger(_host: Host, pod: Pod, _stack: ExitStack) -> None:
    pod.stranger()


def stranger_by_altname(_host: Host, pod: Pod, _stack: ExitStack) -> None:
    pod.stranger("data0")
    pod.ip("link", "property", "add", "dev", "data0", "altname", "hpn0")


def attached(host: Host, pod: Pod, _stack: ExitStack) -> None:
    host.ok("ADD", pod)


def beside(host: Host, pod: Pod, _stack: ExitStack) -> None:
    """Attach another interface, which takes 10.56.0.2 and uses the master."""
    host.ok("ADD", pod, host.conf(mac="02:00:00:00:00:01"), CNI_IFNAME="hpn1")


def beside_in_passthru(host: Host, pod: Pod, _stack: ExitStack) -> None:
    host.ok("ADD", pod, host.conf(mode="passthru"), CNI_IFNAME="hpn1")


def the_only_one_beside(host: Host, pod: Pod, _stack: ExitStack) -> None:
    host.ok("ADD", pod, host.conf(**ipam(subnet="10.56.0.0/30")), CNI_IFNAME="hpn1")


def in_a_bridge(_host: Host, _pod: Pod, _stack: ExitStack) -> None:
    ip("link", "add", "br0", "type", "bridge")
    ip("link", "set", "rail0", "master", "br0")


def a_tunnel(_host: Host, _pod: Pod, _stack: ExitStack) -> None:
    ip("tuntap", "add", "dev", "tun9", "mode", "tun")
    ip("link", "set", "tun9", "up")


def default_by_a_tunnel(host: Host, pod: Pod, stack: ExitStack) -> None:
    a_tunnel(host, pod, stack)
    ip("route", "add", "default", "dev", "tun9")


def down(_host: Host, _pod: Pod, _stack: ExitStack) -> None:
    ip("link", "set", "rail0", "down")


def read_only_state(host: Host, pod: Pod, stack: ExitStack) -> None:
    stack.enter_context(mounted(host.state))
    host.ok("DEL", pod)
    read_only(host.state)


def empty_read_only_state(host: Host, _pod: Pod, stack: ExitStack) -> None:
    stack.enter_context(mounted(host.state))
    read_only(host.state)


def read_only_state_in_use(host: Host, pod: Pod, stack: ExitStack) -> None:
    stack.enter_context(mounted(host.state))
    host.ok("ADD", pod)
    read_only(host.state)


def full_state(host: Host, _pod: Pod, stack: ExitStack) -> None:
    stack.enter_context(mounted(host.state))
    (host.state / "filler").write_bytes(bytes(1024 * 1024))


def file_as_state(host: Host, _pod: Pod, _stack: ExitStack) -> None:
    (host.tmp_path / "file").write_text("")
    host.state = host.tmp_path / "file"


def below_a_file(host: Host, _pod: Pod, _stack: ExitStack) -> None:
    (host.tmp_path / "file").write_text("")
    host.state = host.tmp_path / "file" / "state"


def script(on_add: str) -> Setup:
    """Install a delegate that runs these commands at ADD, after the interface exists, and nothing at DEL."""

    def setup(host: Host, _pod: Pod, _stack: ExitStack) -> dict[str, str]:
        return {"CNI_PATH": host.program("script", f"cat >/dev/null\n[ $CNI_COMMAND = ADD ] || exit 0\n{on_add}")}

    return setup


def not_executable(host: Host, _pod: Pod, _stack: ExitStack) -> dict[str, str]:
    path = host.program("script", "")
    (host.tmp_path / "bin" / "script").chmod(0o644)
    return {"CNI_PATH": path}


def not_a_program(host: Host, _pod: Pod, _stack: ExitStack) -> dict[str, str]:
    path = host.program("script", "")
    (host.tmp_path / "bin" / "script").write_bytes(b"\x7fELF")
    return {"CNI_PATH": path}


def answering(**result: Any) -> Setup:
    return script(f"echo '{json.dumps(result)}'")


CIRCUMSTANCES = [
    Bad("name taken by a stranger", 100, ("CNI_IFNAME", "hpn0", "another"), setup=stranger),
    Bad("name taken as another's altname", 100, ("hpn0", "altname of data0"), setup=stranger_by_altname),
    Bad("name of the loopback", 100, ("CNI_IFNAME", "lo"), environ={"CNI_IFNAME": "lo"}),
    Bad("attached already", 100, ("network rail0", "hpn0", "attached", "DEL"), setup=attached),
    Bad("CHECK of what is not attached", 107, ("not attached",), {"prevResult": {}}, command="CHECK"),
    Bad("master absent", 101, ("master", "'eth99'", "ip link"), {"master": "eth99"}),
    Bad("master not in the pod", 101, ("master", "'rail0'", "pod"), {"linkInContainer": True}),
    Bad("master down", 101, ("master", "'rail0'", "ip link set rail0 up"), setup=down),
    Bad("master in a bridge", 101, ("master", "'rail0'", "bridge", "another"), setup=in_a_bridge),
    Bad("no master and no default route", 101, ("master", "default route", "host"), {"master": ...}),
    Bad("no default route in the pod", 101, ("default route", "pod"), {"master": ..., "linkInContainer": True}),
    Bad("master that is the loopback", 101, ("master 'lo'", "not Ethernet", "ip -br link"), {"master": "lo"}),
    Bad("master that is a tunnel", 101, ("master 'tun9'", "not Ethernet"), {"master": "tun9"}, setup=a_tunnel),
    Bad("master of the default route that is a tunnel", 101, ("'tun9'",), {"master": ...}, setup=default_by_a_tunnel),
    Bad("master that is the loopback, at STATUS", 50, ("'lo'", "not Ethernet"), {"master": "lo"}, command="STATUS"),
    Bad(
        "passthru on a master in use",
        105,
        ("Invalid",),
        {"mode": "passthru"},
        setup=beside,
        details="macvlan hpn0 over rail0",
    ),
    Bad(
        "a master that is passed through",
        105,
        ("Invalid",),
        setup=beside_in_passthru,
        details="macvlan hpn0 over rail0",
    ),
    Bad("request of a held one", 102, ("10.56.0.2", "held by", "hpn1"), runtime(ips=["10.56.0.2"]), setup=beside),
    Bad(
        "pool exhausted", 103, ("10.56.0.0/30", "held", "widen"), ipam(subnet="10.56.0.0/30"), setup=the_only_one_beside
    ),
    Bad("state read-only", 5, ("state", "ead-only", "writable"), setup=read_only_state),
    Bad("state read-only from the beginning", 5, ("state", "ead-only"), setup=empty_read_only_state),
    Bad("state read-only, at DEL", 5, ("state", "ead-only"), setup=read_only_state_in_use, command="DEL"),
    Bad("state full", 5, ("state", "No space", "room"), setup=full_state),
    Bad("state is a file", 5, ("file", "directory"), setup=file_as_state),
    Bad("state is below a file", 5, ("file", "irectory"), setup=below_a_file),
    Bad("IPAM plugin that is the main plugin", 7, ("ipam.type 'hpn'", "did you mean hpn-ipam"), ITSELF),
    Bad("IPAM plugin that is the main plugin, at CHECK", 7, ("ipam.type 'hpn'",), ITSELF, command="CHECK"),
    Bad("IPAM plugin that is the main plugin, at STATUS", 7, ("ipam.type 'hpn'",), ITSELF, command="STATUS"),
    Bad("IPAM plugin not executable", 106, ("script", "CNI_PATH"), SCRIPT, setup=not_executable),
    Bad("IPAM plugin not a program", 106, ("script", "xec format"), SCRIPT, setup=not_a_program),
    Bad(
        "IPAM plugin's own error",
        142,
        ("script", "database is away"),
        SCRIPT,
        setup=script('echo \'{"code":142,"msg":"database is away","details":"since noon"}\'; exit 1'),
        details="since noon",
    ),
    Bad("IPAM plugin prints no JSON", 106, ("script", "no result"), SCRIPT, setup=script("echo oops")),
    Bad("IPAM plugin prints a list", 106, ("script", "no result"), SCRIPT, setup=script("echo '[]'")),
    Bad("IPAM plugin prints nothing", 106, ("script", "no address"), SCRIPT, setup=script("exit 0")),
    Bad("IPAM plugin fails silently", 106, ("script", "status 3"), SCRIPT, setup=script("exit 3")),
    Bad("IPAM plugin fails with another's output", 106, ("script", "status 1"), SCRIPT, setup=script("echo 5; exit 1")),
    Bad("IPAM plugin is killed", 106, ("script", "signal 9"), SCRIPT, setup=script("kill -9 $$")),
    Bad("IPAM plugin gives nothing", 106, ("script", "no address"), SCRIPT, setup=answering(ips=[])),
    Bad("IPAM plugin gives no address", 106, ("script", "oops"), SCRIPT, setup=answering(ips=[{"address": "oops"}])),
    Bad(
        "IPAM plugin gives an impossible route",
        106,
        ("script", "mtu", "-5"),
        SCRIPT,
        setup=answering(ips=[{"address": "10.56.0.2/24"}], routes=[{"dst": "10.0.0.0/8", "mtu": -5}]),
    ),
    Bad(
        "IPAM plugin gives one address twice",
        105,
        ("xists",),
        SCRIPT,
        setup=answering(ips=[{"address": "10.56.0.2/24"}, {"address": "10.56.0.2/24"}]),
        details="adding address 10.56.0.2/24",
    ),
]
