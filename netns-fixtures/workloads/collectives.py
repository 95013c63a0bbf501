"""All-reduce and all-to-all by mpi4py, like OSU's benchmarks: their duration by size.  Every rank compares its results
with the computed ones."""

import sys
from array import array
from collections.abc import Callable
from time import perf_counter

from mpi4py import MPI

SIZES = (8, 1024, 16384, 262144)  # octets of a rank's message; for all-to-all, of one message to each rank
TIMES = 10

ranks = MPI.COMM_WORLD
me, all_of_us = ranks.Get_rank(), ranks.Get_size()


def all_reduce(count: int) -> Callable[[], bool]:
    mine = array("d", [(me + 1) * (i % 97) for i in range(count)])
    total = array("d", bytes(8 * count))
    expected = array("d", [all_of_us * (all_of_us + 1) / 2 * (i % 97) for i in range(count)])

    def step() -> bool:
        ranks.Allreduce(mine, total, MPI.SUM)
        return total == expected

    return step


def all_to_all(count: int) -> Callable[[], bool]:
    def told(sender: int, receiver: int) -> list[float]:
        return [1000.0 * sender + 10.0 * receiver + i % 7 for i in range(count)]

    mine = array("d", [x for receiver in range(all_of_us) for x in told(me, receiver)])
    theirs = array("d", bytes(8 * count * all_of_us))
    expected = array("d", [x for sender in range(all_of_us) for x in told(sender, me)])

    def step() -> bool:
        ranks.Alltoall([mine, count, MPI.DOUBLE], [theirs, count, MPI.DOUBLE])
        return theirs == expected

    return step


def measured(name: str, make: Callable[[int], Callable[[], bool]]) -> None:
    for size in SIZES:
        step = make(size // 8)
        ranks.Barrier()
        right, took = True, 0.0
        for _ in range(TIMES):
            began = perf_counter()
            right &= step()
            took += perf_counter() - began
        everywhere = ranks.allreduce(int(right), MPI.MIN)
        slowest = ranks.allreduce(took / TIMES, MPI.MAX)
        if me == 0:
            print(f"{name:<10} {size:>7} octets {slowest * 1000:>9.2f} ms  {'right' if everywhere else 'WRONG'}")
        if not everywhere:
            sys.exit(1)


measured("allreduce", all_reduce)
measured("alltoall", all_to_all)
