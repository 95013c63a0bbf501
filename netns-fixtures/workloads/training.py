"""Train a model on data that its ranks share: each rank has a part, and an all-reduce sums the gradients.  All ranks
must reach the same model, which equals that of one process with all the data."""

import sys
from array import array

from mpi4py import MPI

FEATURES, EXAMPLES, STEPS, RATE = 8, 128, 30, 0.5
Example = tuple[list[float], float]

ranks = MPI.COMM_WORLD
me, all_of_us = ranks.Get_rank(), ranks.Get_size()


def examples() -> list[Example]:
    """A known linear model's answers to pseudorandom numbers between -1 and 1."""
    state, found = 12345, list[Example]()
    for _ in range(EXAMPLES):
        inputs = []
        for _ in range(FEATURES):
            state = (1103515245 * state + 12345) % 2**31
            inputs.append(state / 2**30 - 1)
        found.append((inputs, sum((k - 3) * x for k, x in enumerate(inputs))))
    return found


def gradient(model: array, part: list[Example]) -> array:
    """The gradient of the squared error over the part, followed by that error."""
    sums = array("d", [0.0] * (FEATURES + 1))
    for inputs, answer in part:
        error = sum(w * x for w, x in zip(model, inputs, strict=True)) - answer
        for k, x in enumerate(inputs):
            sums[k] += error * x
        sums[FEATURES] += error * error
    return sums


def step(model: array, sums: array) -> array:
    return array("d", [w - RATE * g / EXAMPLES for w, g in zip(model, sums, strict=False)])


data = examples()
model = alone = array("d", [0.0] * FEATURES)
losses = []
for _ in range(STEPS):
    total = array("d", [0.0] * (FEATURES + 1))
    ranks.Allreduce(gradient(model, data[me::all_of_us]), total, MPI.SUM)
    losses.append(total[FEATURES] / EXAMPLES)
    model, alone = step(model, total), step(alone, gradient(alone, data))
models = ranks.allgather(model.tobytes())
near = max(abs(w - v) for w, v in zip(model, alone, strict=True)) < 1e-9
if me == 0:
    print(f"{all_of_us} ranks, {STEPS} steps: loss {losses[0]:.4f} -> {losses[-1]:.6f}")
    print(f"all ranks have one model: {len(set(models)) == 1}; it is that of one process: {near}")
if len(set(models)) != 1 or not near or losses[-1] > losses[0] / 100:
    sys.exit(1)
