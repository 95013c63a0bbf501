"""Lines of the guest's kernel log that fail a test."""

import pytest
from guest.kernel_log import Complaints

CUT, END = "------------[ cut here ]------------", "---[ end trace 0000000000000000 ]---"
IGBVF = "drivers/net/ethernet/intel/igbvf/netdev.c:1780"
# The format of Linux before 6.18, and since.
RACE = f"WARNING: CPU: 0 PID: 207 at {IGBVF} igbvf_close+0x111/0x120 [igbvf]"
RACE_SINCE = f"WARNING: {IGBVF} at igbvf_close+0x111/0x120 [igbvf], CPU#0: python/207"
OF_ROCE = "WARNING: drivers/infiniband/sw/rxe/rxe_task.c:240 at rxe_sched_task+0x55/0x60 [rdma_rxe], CPU#1: python/26"
TRACE = ["Modules linked in: igbvf igb", "RIP: 0010:igbvf_close+0x111/0x120 [igbvf]", "Call Trace:", " <TASK>"]
OPEN = f"WARNING: CPU: 0 PID: 207 at {IGBVF} igbvf_open+0x1/0x2 [igbvf]"
BUG = "BUG: kernel NULL pointer dereference, address: 0000000000000000"


def complaints(*texts: str, level: int = 4) -> list[str]:
    them = Complaints()
    return [found for text in texts for found in them.of(level, text)] + list(them.end())


@pytest.mark.parametrize("first", [RACE, RACE_SINCE, OF_ROCE])
def test_the_drivers_own_race_is_harmless_with_its_whole_trace(first: str) -> None:
    assert complaints(CUT, first, *TRACE, END) == []
    assert complaints(CUT, first, *TRACE, END, BUG) == [BUG]


@pytest.mark.parametrize(
    "warn",
    [
        [CUT, OPEN, *TRACE, END],
        [CUT, "WARNING: CPU: 0 PID: 207 at net/core/dev.c:1 x+0x1/0x2", *TRACE, END],
        [CUT, "kernel BUG at drivers/net/ethernet/intel/igbvf/netdev.c:1 igbvf_close+0x1!", *TRACE, END],
        [CUT, OF_ROCE.replace("rxe_sched_task", "do_task"), *TRACE, END],
        [CUT, RACE, *TRACE],
        [CUT],
    ],
    ids=["another of the driver", "another", "another of soft-RoCE", "a BUG", "an unfinished one", "a beginning"],
)
def test_every_other_fails_as_one_complaint(warn: list[str]) -> None:
    assert complaints(*warn) == ["\n".join(warn)]
    assert complaints(*warn, CUT, RACE, END) == ["\n".join(warn)]


def test_a_message_alone() -> None:
    assert complaints(BUG, "workqueue: igbvf_watchdog_task hogged CPU for >10000us 4 times") == [BUG]
    assert complaints(BUG, level=5) == []
