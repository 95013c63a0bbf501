"""GC undoes attachments that the runtime does not list; without a list, only those of provably dead pods."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from netns.collecting import LISTS, collect, listed
from support.namespaces import needs_cookies, with_both
from support.topology import Host, Pod, ip

from base.kernel import budget
from base.protocol.spec import Request
from cni.main import run as hpn
from ipam.main import ask as hpn_ipam

ANOTHER_BOOT = "00000000-0000-0000-0000-000000000000"
DOCUMENT = '{"cniVersion":"1.1.0","ips":[{"address":"10.56.0.2/24"}]}'


@with_both
@pytest.mark.parametrize("key", LISTS)
def test_unlisted_goes_and_listed_stays(host: Host, make_pod: Callable[[], Pod], key: str) -> None:
    """GC undoes an unlisted attachment even in a living namespace, and keeps the listed one."""
    stays, goes = make_pod(), make_pod()
    result = host.ok("ADD", stays)
    host.ok("ADD", goes)
    before = host.picture(stays)[stays.name]
    for _ in range(2):  # the second GC changes nothing
        collect(host, **{key: listed(stays)})
        assert goes.links() == set()
        assert host.picture(stays)[stays.name] == before
        assert host.leases() == {"10.56.0.2", "fd00:56::2"}
        assert host.record(stays).exists()
        assert not host.record(goes).exists()
    assert host.checked(stays, host.conf(), result).exit_code == 0


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        (True, False, True),  # libcni sends both, and the first is the specification's current name
        (False, True, False),
    ],
)
def test_the_first_spelling_wins(host: Host, pod: Pod, first: bool, second: bool, stays: bool) -> None:
    host.ok("ADD", pod)
    collect(host, **{LISTS[0]: listed(pod) if first else [], LISTS[1]: listed(pod) if second else []})
    assert bool(pod.links()) is stays
    assert bool(host.leases()) is stays


@pytest.mark.parametrize("key", LISTS)
def test_an_empty_list_is_everything(host: Host, make_pod: Callable[[], Pod], key: str) -> None:
    pods = [make_pod() for _ in range(3)]
    for pod in pods:
        host.ok("ADD", pod)
    collect(host, **{key: []})
    assert [pod.links() for pod in pods] == [set()] * 3
    assert host.state_files() == set()


def test_the_interfaces_name_is_part_of_the_key(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod)
    host.ok("ADD", pod, CNI_IFNAME="hpn1")
    collect(host, **{LISTS[0]: listed(pod, ifname="hpn1")})
    assert pod.links() == {"hpn1"}
    assert host.leases() == {"10.56.0.3", "fd00:56::3"}


def test_other_networks_stay(host: Host, make_pod: Callable[[], Pod]) -> None:
    one, two = make_pod(), make_pod()
    other = host.conf(name="rail1", ipam={"type": "hpn-ipam", "subnet": "10.57.0.0/24"})
    host.ok("ADD", one)
    host.ok("ADD", two, other)
    ip("netns", "delete", two.name)  # dead, but of another network
    collect(host, **{LISTS[0]: []})
    assert one.links() == set()
    assert host.leases() == {"10.57.0.2"}
    collect(host, other, **{LISTS[0]: []})
    assert host.state_files() == set()


@pytest.mark.parametrize("value", [..., None], ids=["absent", "null"])
def test_without_a_list_the_living_stay(host: Host, make_pod: Callable[[], Pod], value: Any) -> None:
    live, dead, rebooted = make_pod(), make_pod(), make_pod()
    for pod in (live, dead, rebooted):
        host.ok("ADD", pod)
    ip("netns", "delete", dead.name)
    host.rewrite(host.record(rebooted), boot=ANOTHER_BOOT)
    for _ in range(2):
        collect(host, **({} if value is ... else dict.fromkeys(LISTS)))
        assert live.links() == {"hpn0"}
        assert {p.name for p in host.record(live).parent.iterdir()} == {host.record(live).name}
        assert host.leases() == {"10.56.0.2", "fd00:56::2"}
    # The record is of another boot, so its namespace is not the one under this path today.
    assert rebooted.links() == {"hpn0"}


def test_an_attachment_of_another_boot_in_a_list(host: Host, pod: Pod) -> None:
    """GC keeps a listed attachment of another boot: no link survives a reboot, and the next DEL or ADD handles it."""
    host.ok("ADD", pod)
    host.rewrite(host.record(pod), boot=ANOTHER_BOOT)
    collect(host, **{LISTS[0]: listed(pod)})
    assert host.record(pod).exists()
    assert pod.links() == {"hpn0"}


@pytest.mark.parametrize("valid", [{}, {LISTS[0]: []}], ids=["without a list", "not listed"])
def test_half_an_attachment_of_a_dead_pod(host: Host, pod: Pod, valid: dict[str, Any]) -> None:
    """GC undoes the incomplete attachment of a killed ADD in a dead pod."""
    host.ok("ADD", pod)
    host.rewrite(host.record(pod), complete=False, result={})
    ip("netns", "delete", pod.name)
    collect(host, **valid)
    assert host.state_files() == set()


def test_half_an_attachment_of_a_living_pod(host: Host, pod: Pod) -> None:
    """Without a list GC keeps an incomplete attachment in a living pod, since its ADD may be running.  If a list omits
    the attachment, its ADD has failed."""
    host.ok("ADD", pod)
    host.rewrite(host.record(pod), complete=False, result={})
    collect(host)
    assert pod.links() == {"hpn0"}
    collect(host, **{LISTS[0]: []})
    assert pod.links() == set()
    assert host.state_files() == set()


def test_an_interrupted_first_write(host: Host, pod: Pod) -> None:
    """GC removes the temporary file of an interrupted first write, before which nothing changed."""
    host.ok("ADD", pod)
    record = host.record(pod)
    host.ok("DEL", pod)
    record.with_name(record.name + ".tmp").write_text('{"schema": 1,')
    collect(host)
    assert host.state_files() == set()


def test_an_unreadable_record_does_not_stop_the_rest(host: Host, make_pod: Callable[[], Pod]) -> None:
    pods = sorted((make_pod() for _ in range(3)), key=lambda pod: pod.name)
    for pod in pods:
        host.ok("ADD", pod)
    host.record(pods[1]).write_text("not JSON")
    error = host.refused("GC", None, host.conf(**{LISTS[0]: []}))
    assert error["code"] == 108
    assert str(host.record(pods[1])) in json.dumps(error)
    assert [pod.links() for pod in pods] == [set(), {"hpn0"}, set()]
    assert [p.read_text() for p in (host.state / "quarantine" / "rail0").iterdir()] == ["not JSON"]
    # Its address may be in use, so it stays reserved.
    (kept,) = pods[1].addresses() & {f"10.56.0.{n}/24" for n in range(2, 5)}
    assert kept.partition("/")[0] in host.leases()
    assert len(host.leases()) == 2
    # The runtime sends no DEL for it any more, so GC undoes what it can; the address stays reserved.
    collect(host, **{LISTS[0]: []})
    assert not host.record(pods[1]).exists()
    for pod in (pods[0], pods[2]):
        host.ok("ADD", pod)
        assert not pod.addresses() & pods[1].addresses()


def test_one_failure_does_not_stop_the_rest(host: Host, make_pod: Callable[[], Pod]) -> None:
    """If a foreign IPAM refuses one container, GC undoes the others and keeps that one for the next time."""
    one, two, three = pods = [make_pod() for _ in range(3)]
    script = f"""cat >/dev/null
case $CNI_COMMAND-$CNI_CONTAINERID in
    ADD-*) echo '{DOCUMENT}';;
    DEL-{two.name}) echo '{{"code":133,"msg":"away"}}'; exit 1;;
esac"""
    path = host.program("script", script)
    conf = host.conf(ipam={"type": "script"}, **{LISTS[0]: []})
    for pod in pods:
        host.ok("ADD", pod, conf, CNI_PATH=path)
    error = host.refused("GC", None, conf, CNI_PATH=path)
    assert (error["code"], "away" in error["msg"]) == (133, True)
    assert [host.record(pod).exists() for pod in (one, two, three)] == [False, True, False]
    assert [pod.links() for pod in pods] == [set()] * 3
    host.program("script", "cat >/dev/null")
    host.ok("GC", None, conf, CNI_PATH=path)
    assert host.state_files() == set()


@pytest.mark.parametrize("code", [1, 4])
def test_an_ipam_older_than_gc(host: Host, pod: Pod, code: int) -> None:
    """GC succeeds if the IPAM does not know GC: each attachment's own DEL has released its addresses."""
    refusal = f'{{"code":{code},"msg":"unknown CNI_COMMAND: GC"}}'
    script = f"cat >/dev/null; case $CNI_COMMAND in ADD) echo '{DOCUMENT}';; GC) echo '{refusal}'; exit 1;; esac"
    path = host.program("script", script)
    conf = host.conf(ipam={"type": "script"}, **{LISTS[0]: []})
    host.ok("ADD", pod, conf, CNI_PATH=path)
    host.ok("GC", None, conf, CNI_PATH=path)
    assert host.state_files() == set()


def test_the_ipam_gets_the_list(host: Host, make_pod: Callable[[], Pod]) -> None:
    stays, seen = make_pod(), host.tmp_path / "seen"
    path = host.program("script", f"[ $CNI_COMMAND = GC ] && cat > {seen} || echo '{DOCUMENT}'")
    conf = host.conf(ipam={"type": "script"})
    host.ok("ADD", stays, conf, CNI_PATH=path)
    host.ok("GC", None, conf | {key: listed(stays) for key in LISTS}, CNI_PATH=path)
    assert {k: v for k, v in json.loads(seen.read_text()).items() if k in LISTS} == dict.fromkeys(LISTS, listed(stays))


@pytest.mark.parametrize("key", LISTS)
def test_the_ipam_gets_either_list_under_both_names(host: Host, make_pod: Callable[[], Pod], key: str) -> None:
    """host-local 1.10.0 reads only the first name, and frees every address without it."""
    stays, other, seen = make_pod(), {"containerID": "c9", "ifname": "net1"}, host.tmp_path / "seen"
    path = host.program("script", f"[ $CNI_COMMAND = GC ] && cat > {seen} || echo '{DOCUMENT}'")
    conf = host.conf(ipam={"type": "script"})
    host.ok("ADD", stays, conf, CNI_PATH=path)
    host.ok("GC", None, conf | {key: [other]}, CNI_PATH=path)
    body = json.loads(seen.read_text())
    assert [body.get(name) for name in LISTS] == [[other, *listed(stays)]] * 2


def test_without_a_list_no_other_ipam_is_asked(host: Host, make_pod: Callable[[], Pod]) -> None:
    """A plugin may take no list for an empty one.  DEL releases the address of an attachment that GC undoes."""
    stays, dies = make_pod(), make_pod()
    calls = host.tmp_path / "calls"
    path = host.program("script", f"cat >/dev/null; echo $CNI_COMMAND >> {calls}; echo '{DOCUMENT}'")
    conf = host.conf(ipam={"type": "script"})
    for pod in (stays, dies):
        host.ok("ADD", pod, conf, CNI_PATH=path)
    dies.gone()
    host.ok("GC", None, conf, CNI_PATH=path)
    assert calls.read_text().split() == ["ADD", "ADD", "DEL"]
    assert stays.links() == {"hpn0"}


def test_the_ipam_is_told_the_pod(host: Host, pod: Pod) -> None:
    """The IPAM's DEL names the pod of the attachment, although GC itself names none."""
    seen = host.tmp_path / "seen"
    path = host.program("script", f"cat >/dev/null; [ $CNI_COMMAND = DEL ] && env > {seen} || echo '{DOCUMENT}'")
    conf = host.conf(ipam={"type": "script"}, **{LISTS[0]: []})
    host.ok("ADD", pod, conf, CNI_PATH=path)
    host.ok("GC", None, conf, CNI_PATH=path, CNI_IFNAME="")
    expected = {f"CNI_CONTAINERID={pod.name}", f"CNI_NETNS={pod.path}", "CNI_IFNAME=hpn0"}
    assert expected <= set(seen.read_text().splitlines())


def test_leases_without_an_attachment_follow(host: Host, make_pod: Callable[[], Pod]) -> None:
    """GC with a list releases leases of an attachment with a lost record."""
    lost, stays = make_pod(), make_pod()
    host.ok("ADD", lost)
    host.ok("ADD", stays)
    host.record(lost).unlink()
    collect(host)
    assert len(host.leases()) == 4
    collect(host, **{LISTS[0]: listed(stays)})
    assert host.leases() == {"10.56.0.3", "fd00:56::3"}


@needs_cookies
@pytest.mark.parametrize("valid", [{}, {LISTS[0]: []}], ids=["without a list", "not listed"])
def test_a_stranger_in_the_next_namespace_stays(host: Host, pod: Pod, valid: dict[str, Any]) -> None:
    """GC leaves a link in the next namespace under the path alone, even an exact double."""
    host.replace(pod)
    before = pod.link()
    assert before
    collect(host, **valid)
    assert pod.link() == before


@pytest.mark.parametrize("valid", [{}, {LISTS[0]: []}], ids=["without a list", "not listed"])
def test_nothing_to_collect(host: Host, valid: dict[str, Any]) -> None:
    """GC succeeds for a network without attachments on a node without a state directory."""
    collect(host, **valid)
    assert host.state_files() == set()


def test_after_the_configuration_was_broken(host: Host, pod: Pod) -> None:
    """GC undoes attachments from their records, so an invalid configuration does not matter."""
    host.ok("ADD", pod)
    collect(host, host.conf(mode="fast", mtuu=1), **{LISTS[0]: []})
    assert pod.links() == set()
    assert host.state_files() == set()


def test_each_has_its_own_time_to_wait(host: Host, make_pod: Callable[[], Pod]) -> None:
    """If one pod uses up all its time to wait, GC still has the full time for the next one."""
    left = list[float]()
    for _ in range(2):
        host.ok("ADD", make_pod())

    def asked(request: Request, log: list[str]) -> Any:
        if request.command == "DEL":
            left.append(budget.left())
            budget.spend(budget.left())
        return hpn_ipam(request, log)

    request = host.request("GC", None, host.conf(**{"cni.dev/valid-attachments": []}), CNI_IFNAME="")
    assert hpn(request, {"hpn-ipam": asked}).exit_code == 0
    assert len(left) == 2
    assert min(left) > budget.UNDOING - 1
