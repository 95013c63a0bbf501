"""Every verb of every version, called by cnitool."""

import pytest
from system.machine import Machine, fabric, ours

VERSIONS = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]


@pytest.mark.parametrize("version", VERSIONS)
def test_add_answers_in_the_shape_of_the_version(machine: Machine, version: str) -> None:
    machine.network(ours(mtu=1400), version=version)
    pod = machine.pod()
    result = machine.ok("add", pod)
    assert result["cniVersion"] == version
    interface = result["interfaces"][0]
    [link] = fabric.ip("link", "show", "dev", "hpn0", netns=pod)
    assert interface["name"] == "hpn0"
    assert interface["mac"] == link["address"]
    assert interface["sandbox"] == fabric.netns_path(pod)
    # 1.0.0 dropped the family, 1.1.0 brought the MTU.
    assert [ip.get("version") for ip in result["ips"]] == (["4", "6"] if version < "1.0.0" else [None, None])
    assert interface.get("mtu") == (1400 if version >= "1.1.0" else None)
    assert {ip["address"] for ip in result["ips"]} == machine.addresses(pod)
    assert all(ip["interface"] == 0 for ip in result["ips"])
    if version >= "0.4.0":
        machine.ok("check", pod)
    machine.ok("del", pod)
    machine.nothing_held()
    machine.ok("del", pod)


def test_check_notices_what_is_gone(machine: Machine) -> None:
    machine.network(ours())
    pod = machine.pod()
    machine.ok("add", pod)
    fabric.run("ip", "-netns", pod, "link", "delete", "hpn0")
    done = machine.cnitool("check", pod)
    assert done.returncode != 0
    assert "hpn0" in done.stderr
    machine.ok("del", pod)


def test_status_follows_the_master(machine: Machine) -> None:
    machine.network(ours())
    pod = machine.pod()
    machine.ok("status", pod)
    machine.network(ours(master="nosuch0"))
    done = machine.cnitool("status", pod)
    assert done.returncode != 0
    assert "nosuch0" in done.stderr


def test_gc_of_cnitool_takes_everything(machine: Machine) -> None:
    """Without a list of valid attachments libcni deletes every cached attachment first, live ones too."""
    machine.network(ours())
    pods = [machine.pod(), machine.pod()]
    for pod in pods:
        machine.ok("add", pod)
    machine.ok("gc", pods[0])
    machine.nothing_held()


def gone(machine: Machine) -> str:
    """A pod that was attached and no longer has a namespace or libcni's cached result."""
    with fabric.namespace(machine.node.pod("short")) as pod:
        machine.ok("add", pod)
    for path in fabric.RESULTS.glob(f"*-{fabric.container_id(pod)}-*"):
        path.unlink()
    return pod


def test_gc_forgets_a_pod_whose_namespace_and_cache_are_gone(machine: Machine) -> None:
    machine.network(ours())
    pod = gone(machine)
    assert machine.records() != []
    machine.ok("gc", pod)
    machine.nothing_held()


def test_pods_on_one_rail_reach_each_other(machine: Machine) -> None:
    machine.network(ours())
    first, second = machine.pod(), machine.pod()
    machine.ok("add", first)
    for ip in machine.ok("add", second)["ips"]:
        address = ip["address"].partition("/")[0]
        fabric.run("ip", "netns", "exec", first, "ping", "-c", "1", "-W", "60", address)
    for pod in (first, second):
        machine.ok("del", pod)


def test_del_without_the_cached_result_and_after_the_pod(machine: Machine) -> None:
    machine.network(ours())
    machine.ok("del", gone(machine))


def test_a_refused_add_leaves_nothing(machine: Machine) -> None:
    machine.network(ours(master="nosuch0"))
    pod = machine.pod()
    done = machine.cnitool("add", pod)
    assert done.returncode != 0
    assert "nosuch0" in done.stderr
    machine.nothing_held()
