"""What makes a device unhealthy, and how long it must last."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from base.kernel.links import IFF_LOWER_UP, IFF_UP, Link
from hardware.model import Device, Kind, RdmaDevice
from node.health.status import Facts, Health, Observation, due, observe, step
from node.model import Settings

PF, VF = "0000:3b:00.0", "0000:3b:00.2"
WAIT = Settings((), "", down_after=10, up_after=30)
DOWN, UP = Observation(down="eth3 has no carrier"), Observation()
LINKED, UNLINKED, SET_DOWN = IFF_UP | IFF_LOWER_UP, IFF_UP, 0


def link(name: str, flags: int) -> Link:
    return Link(3, name, flags, "02:00:00:00:00:01", 1500)


def facts(*links: Link, failed: str = "", **ports: str) -> Facts:
    """``ports``: an RDMA device of the PF, and the state of its only port."""
    return Facts(
        {one.name: one for one in links},
        frozenset({failed} - {""}),
        lambda name: (ports[name],) if name in ports else (),
        lambda address: tuple(ports) if address == PF else (),
    )


def pf(*netdevs: str, rdma: str = "") -> Device:
    found = (RdmaDevice(rdma),) if rdma else ()
    return Device(PF, Kind.PF, driver="mlx5_core", netdevs=netdevs, rdma=found, pf=PF, pf_netdev="".join(netdevs))


def vf(*netdevs: str, pf_netdev: str = "eth3") -> Device:
    return Device(VF, Kind.VF, driver="mlx5_core", netdevs=netdevs, pf=PF, pf_netdev=pf_netdev, index=0)


class TestObservation:
    def test_a_vf_is_as_good_as_its_pf(self) -> None:
        for flags, down in ((LINKED, ""), (UNLINKED, "eth3 has no carrier"), (SET_DOWN, "")):
            for own in ((), ("eth3v0",)):
                seen = observe(vf(*own), facts(link("eth3", flags), link("eth3v0", UNLINKED)), shared=False)
                assert seen == Observation(down=down)

    def test_a_pf_that_a_pod_has_shows_no_link(self) -> None:
        assert observe(pf(), facts(), shared=False) == UP

    def test_a_pf_on_the_host_speaks_for_itself_once_it_is_up(self) -> None:
        for flags, down in ((LINKED, ""), (UNLINKED, "eth3 has no carrier"), (SET_DOWN, "")):
            assert observe(pf("eth3"), facts(link("eth3", flags)), shared=False) == Observation(down=down)

    def test_a_device_with_two_interfaces_needs_one(self) -> None:
        two = replace(pf("eth3"), netdevs=("eth3", "eth4"))
        assert observe(two, facts(link("eth3", UNLINKED), link("eth4", LINKED)), shared=False) == UP

    def test_a_shared_device_has_to_be_up(self) -> None:
        said = {LINKED: "", UNLINKED: "eth3 has no carrier", SET_DOWN: "eth3 is set down (ip link set eth3 up)"}
        for flags, down in said.items():
            assert observe(pf("eth3"), facts(link("eth3", flags)), shared=True) == Observation(down=down)

    def test_the_port_of_a_shared_hca_decides(self) -> None:
        """It also overrides its interface: one of two ports in a bond may have no carrier."""
        hca = pf("eth3", rdma="mlx5_0")
        assert observe(hca, facts(link("eth3", UNLINKED), mlx5_0="ACTIVE"), shared=True) == UP
        down = observe(hca, facts(link("eth3", LINKED), mlx5_0="INIT"), shared=True)
        assert down == Observation(down="port 1 of mlx5_0 is INIT")

    def test_infiniband_asks_the_port_of_the_pf(self) -> None:
        """Whether IPoIB is set up does not matter."""
        for device in (vf(pf_netdev="ib0"), pf("ib0"), pf()):
            hca = replace(device, link_type="infiniband")
            assert observe(hca, facts(link("ib0", UNLINKED), mlx5_0="ACTIVE"), shared=False) == UP
            down = observe(hca, facts(link("ib0", SET_DOWN), mlx5_0="DOWN"), shared=False)
            assert down == Observation(down="port 1 of mlx5_0 is DOWN")
            assert observe(hca, facts(), shared=False) == UP  # it is in a pod, or its PF is

    def test_no_driver(self) -> None:
        assert observe(replace(vf(), driver=""), facts(), shared=False) == Observation("it has no driver")
        assert observe(Device("bond0", Kind.NETDEV), facts(), shared=True) == UP

    def test_what_the_host_needs(self) -> None:
        """Sharing takes nothing from the host."""
        needed = replace(vf(), used="the host has 192.0.2.1/24 on it")
        said = Observation("the host needs it: the host has 192.0.2.1/24 on it")
        assert observe(needed, facts(), shared=False) == said
        assert observe(needed, facts(), shared=True) == UP

    def test_failed_firmware_is_that_of_all_vfs(self) -> None:
        said = f"the firmware of {PF} has failed (devlink health show)"
        assert observe(vf(), facts(failed=PF), shared=False) == Observation(said)
        assert observe(pf(), facts(failed=PF), shared=True) == Observation(said)
        assert observe(vf(), facts(failed="0000:5e:00.0"), shared=False) == UP


def run(*events: tuple[float, Observation], until: float) -> list[tuple[float, str]]:
    """The times and values of changes of the reason, with a step at each event and at each due time."""
    health, said, queue = None, list[tuple[float, str]](), [*events]
    now = queue[0][0]
    seen = queue[0][1]
    while now <= until:
        while queue and queue[0][0] <= now:
            _, seen = queue.pop(0)
        before, health = health, step(health, seen, now, WAIT)
        if (before.reason if before else "") != health.reason:
            said.append((now, health.reason))
        times = [t for t in (due(health, WAIT), queue[0][0] if queue else None) if t is not None]
        if not times:
            break
        now = min(times)
    return said


class TestTime:
    def test_a_link_that_stays_down_and_comes_back(self) -> None:
        said = run((0, UP), (100, DOWN), (200, UP), until=300)
        assert said == [(110, "eth3 has no carrier since 10 s"), (230, "")]

    def test_a_link_that_flaps(self) -> None:
        assert run((0, UP), (1, DOWN), (10, UP), (11, DOWN), (20, UP), until=99) == []
        said = run((0, UP), (1, DOWN), (20, UP), (49, DOWN), (50, UP), until=199)
        assert said == [(11, "eth3 has no carrier since 10 s"), (80, "")]

    def test_a_link_that_is_down_at_the_start(self) -> None:
        """It counts as up until then: at a boot pods may return before links are up."""
        assert run((5, DOWN), until=99) == [(15, "eth3 has no carrier since 10 s")]

    def test_a_loss_counts_at_once(self) -> None:
        gone = Observation("it is gone")
        assert run((0, UP), (1, gone), (2, UP), until=99) == [(1, "it is gone"), (2, "")]


OBSERVATIONS = st.builds(Observation, st.sampled_from(["", "it is gone"]), st.sampled_from(["", "no carrier"]))
EVENTS = st.lists(st.tuples(st.floats(0, 50), OBSERVATIONS), min_size=1, max_size=40)


@given(events=EVENTS)
def test_nothing_counts_sooner_or_later_than_it_should(events: list[tuple[float, Observation]]) -> None:
    """With steps at events and due times, the reported reasons are those that lasted, and no others."""
    health, now, lasted = Health(), 0.0, 0.0
    seen = UP
    for pause, new in events:
        end = now + pause
        while (at := due(health, WAIT)) is not None and at <= end:
            health = step(health, seen, at, WAIT)
            assert bool(health.down) == bool(seen.down), "a step that is due decides"
        now = end
        if bool(new.down) != bool(seen.down):
            lasted = now
        before, health, seen = health, step(health, new, now, WAIT), new
        assert health.lost == new.lost
        if bool(before.down) != bool(health.down):
            assert now - lasted >= min(WAIT.down_after, WAIT.up_after)
        wait = WAIT.down_after if new.down else WAIT.up_after
        if now - lasted > wait:
            assert bool(health.down) == bool(new.down)


@given(times=st.lists(st.floats(0, 100), min_size=1), down=st.booleans())
def test_looking_changes_nothing(times: list[float], down: bool) -> None:
    """Any number of equal observations between leads to the same end."""
    seen = DOWN if down else UP
    start = step(Health(), seen, 0, WAIT)
    often = start
    for now in sorted(times):
        often = step(often, seen, now, WAIT)
    assert often == step(start, seen, max(times), WAIT)


@given(before=st.builds(Health, st.just(""), st.sampled_from(["", "old"])), seen=OBSERVATIONS, now=st.floats(0, 1e9))
def test_a_step_that_is_due_is_the_last(before: Health, seen: Observation, now: float) -> None:
    """With any rounding of the sums: else the loop would wake up again and again."""
    health = step(before, seen, now, WAIT)
    at = due(health, WAIT)
    if at is not None:
        assert due(step(health, seen, at, WAIT), WAIT) is None
