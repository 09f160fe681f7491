"""A data-parallel loop over MPI as people write it, with a fault in rank 1 or without.

Usage: plain_mpi.py FAULT MARKS [STEPS], where FAULT is none, work (2.5 times as much), fifth (1.2
times), stalls (250 ms every ninth step) or apart (40 ms that belong to no phase), and MARKS is none,
step (tl.step) or phases (decorators).
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

WORK_S = 0.01
TIMES = {"work": 2.5, "fifth": 1.2}  # of the work, by fault
comm = MPI.COMM_WORLD
fault, marks = sys.argv[1:3]
steps = int(sys.argv[3]) if sys.argv[3:] else 60
late = comm.rank == 1
gradient, total = np.ones(20_000), np.empty(20_000)


def backward() -> None:
    """Take as long as the fault says; asleep, so that ranks do not share the cores."""
    time.sleep(TIMES.get(fault, 1.0) * WORK_S if late else WORK_S)


def update() -> None:
    """Apply what was reduced."""
    gradient[:] = total / comm.size


def mark_step(step: int) -> AbstractContextManager[Any]:
    """Return a step, if these are marked."""
    return tl.step(step) if marks == "step" else nullcontext()


if marks != "none":
    import tracelens as tl
if marks == "phases":
    backward = tl.traced(kind="backprop")(backward)
    update = tl.traced(kind="update")(update)

for number in range(steps):
    with mark_step(number):
        backward()
        if late and fault == "apart":
            time.sleep(0.04)
        if late and fault == "stalls" and number % 9 == 4:
            time.sleep(0.25)
        comm.Allreduce(gradient, total)
        update()
