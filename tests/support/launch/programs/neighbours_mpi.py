"""Ranks that exchange messages with their neighbours only, with a fault in rank 1 or without.

Usage: neighbours_mpi.py PATTERN FAULT. PATTERN is halo (every rank works, then exchanges its borders
with the ranks beside it, without any collective), overlap (borders are on their way while every rank
works, then all reduce) or pipeline (in both halves of the ranks each micro-batch goes from rank to rank
and its gradient back, and then the replicas of a stage reduce). FAULT is none or work (2.5 times the
work). Only steps are marked.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from mpi4py import MPI

import tracelens as tl

STEPS = 60
MICRO_BATCHES = 3
comm = MPI.COMM_WORLD
pattern, fault = sys.argv[1:3]
WORK_S = 0.02 if pattern == "overlap" else 0.008
factor = 2.5 if comm.rank == 1 and fault == "work" else 1.0
length = comm.size // 2 if pattern == "pipeline" else comm.size
place = comm.rank % length
before = comm.rank - 1 if place else MPI.PROC_NULL
after = comm.rank + 1 if place + 1 < length else MPI.PROC_NULL
replicas = comm.Split(place) if pattern == "pipeline" else comm
size = 1_000 if pattern == "overlap" else 4_000  # small messages are on their way without help
border, ghost, total = np.ones(size), np.empty(size), np.empty(size)


def work() -> None:
    """Take as long as the fault says; asleep, so that ranks do not share the cores."""
    time.sleep(factor * WORK_S)


def halo() -> None:
    """Work, and exchange borders in both directions."""
    work()
    comm.Sendrecv(border, dest=after, recvbuf=ghost, source=before)
    comm.Sendrecv(border, dest=before, recvbuf=ghost, source=after)


def overlap() -> None:
    """Work while a border is sent and another one received."""
    requests = [comm.Irecv(ghost, source=before), comm.Isend(border, dest=after)]
    work()
    MPI.Request.Waitall(requests)
    comm.Allreduce(border, total)


def pipeline() -> None:
    """Let micro-batches through, and then their gradients back."""
    for source, dest in ((before, after), (after, before)):
        for _ in range(MICRO_BATCHES):
            comm.Recv(ghost, source=source)
            work()
            comm.Send(border, dest=dest)
    replicas.Allreduce(border, ghost)


for number in range(STEPS):
    with tl.step(number):
        {"halo": halo, "overlap": overlap, "pipeline": pipeline}[pattern]()
