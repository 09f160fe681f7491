"""Ranks that send each other messages, in a script without any mark, with a fault or without.

Usage: unmarked_mpi.py PATTERN FAULT. PATTERN is borders (each rank exchanges its borders with those
beside it, in a ring, and all reduce a norm every fifth time), ring (an all-reduce written by hand, of
messages that do not block), server (rank 0 takes pickled gradients from whoever is first, and replies
with weights), queue (as server, but it says when there were enough, however many of whom), scattered (a
reduce-scatter of messages for all of which one call waits, and every second time an allgather of
objects), polled (an all-reduce in flight, tested for until it is there), groups (an all-reduce of each
pair of ranks, in turns), or windows or exposed (each rank puts its weights into the window of the next
one, between fences, or between calls of these two alone). FAULT is none, work (rank 2 works twice as
long) or, of a server, apply (what it does takes longer than two workers' work).
"""

from __future__ import annotations

import sys
import time

import numpy as np
from mpi4py import MPI

WORK_S = 0.015
APPLY_S = 0.025
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
pattern, fault = sys.argv[1:3]


def work() -> None:
    """Take as long as the fault says; asleep, so that ranks do not share the cores."""
    time.sleep(WORK_S * (2 if fault == "work" and rank == 2 else 1))


def borders() -> None:
    """Relax a field, and look at its norm now and then."""
    field, left_value, right_value = np.ones(50_000), np.empty(1), np.empty(1)
    for number in range(120):
        comm.Sendrecv(
            field[:1], dest=(rank - 1) % size, recvbuf=right_value, source=(rank + 1) % size
        )
        comm.Sendrecv(
            field[-1:], dest=(rank + 1) % size, recvbuf=left_value, source=(rank - 1) % size
        )
        work()
        if number % 5 == 0:
            comm.allreduce(float(field.sum()))


def ring() -> None:
    """Reduce a gradient in as many parts as there are ranks."""
    for _ in range(80):
        work()
        chunks = np.array_split(np.ones(60_000), size)
        for turn in range(2 * (size - 1)):
            received = np.empty_like(chunks[(rank - turn - 1) % size])
            requests = [
                comm.Isend(
                    np.ascontiguousarray(chunks[(rank - turn) % size]), (rank + 1) % size, turn
                ),
                comm.Irecv(received, (rank - 1) % size, turn),
            ]
            MPI.Request.Waitall(requests)
            chunks[(rank - turn - 1) % size] = received


def scattered() -> None:
    """Sum parts that all send to all; all come together every second time."""
    peers = [peer for peer in range(size) if peer != rank]
    for number in range(120):
        work()
        buffers = [np.empty(20_000) for _ in peers]
        requests = [comm.Isend(np.ones(20_000), peer, number) for peer in peers]
        requests += [comm.Irecv(*message, number) for message in zip(buffers, peers, strict=True)]
        MPI.Request.Waitall(requests)
        if number % 2:
            comm.allgather({"rank": rank, "sum": sum(float(message.sum()) for message in buffers)})


def polled() -> None:
    """Reduce beside the work, and look again and again whether that is over."""
    request, values, received = MPI.REQUEST_NULL, np.ones(50_000), np.empty(50_000)
    for _ in range(120):
        time.sleep(WORK_S / 3)
        while not request.Test():
            time.sleep(0.0003)
        work()
        request = comm.Iallreduce(values, received)
    request.Wait()


def groups() -> None:
    """Reduce in pairs, each of which has a communicator of its own."""
    pairs = [(one, other) for one in range(size) for other in range(one)]
    split = {pair: comm.Split(0 if rank in pair else MPI.UNDEFINED) for pair in pairs}
    own_pairs = [split[pair] for pair in pairs if rank in pair]
    values, received = np.ones(20_000), np.empty(20_000)
    for _ in range(120):
        work()
        for pair in own_pairs:
            pair.Allreduce(values, received)


def server() -> None:
    """Serve, or work and exchange a gradient for weights."""
    rounds = 80
    weights = np.zeros(10_000)
    for _ in range(rounds * (size - 1) if rank == 0 else rounds):
        if rank == 0:
            status = MPI.Status()
            weights -= 0.01 * comm.recv(source=MPI.ANY_SOURCE, tag=7, status=status)
            time.sleep(APPLY_S if fault == "apply" else 0)
            comm.send(weights, dest=status.Get_source(), tag=8)
        else:
            work()
            comm.send(0.1 * weights + 1, dest=0, tag=7)
            weights = comm.recv(source=0, tag=8)
    comm.Barrier()


def queue() -> None:
    """Serve until there were enough gradients, or work until told to stop; nobody waits for another."""
    weights, status, often = np.zeros(10_000), MPI.Status(), 60 * (size - 1)
    if rank == 0:
        gradient, served, working = np.empty_like(weights), 0, size - 1
        while working:
            comm.Recv(gradient, source=MPI.ANY_SOURCE, tag=1, status=status)
            weights -= 0.01 * gradient
            served += 1
            stops = served > often - size + 1
            working -= stops
            comm.Send(weights, dest=status.Get_source(), tag=2 + stops)
    else:
        while status.Get_tag() != 3:
            work()
            comm.Send(0.1 * weights + 1, dest=0, tag=1)
            comm.Recv(weights, source=0, tag=MPI.ANY_TAG, status=status)


def windows() -> None:
    """Average weights with the rank before, in windows."""
    weights, right = np.ones(20_000), (rank + 1) % size
    window = MPI.Win.Allocate(weights.nbytes, weights.itemsize, comm=comm)
    received = np.asarray(window.tomemory()).view(np.float64)
    everybody = comm.Get_group()
    origin_group, target_group = (everybody.Incl([(rank + by) % size]) for by in (-1, 1))
    for _ in range(80):
        work()
        if pattern == "windows":
            window.Fence()
            window.Put(weights, right)
            window.Fence()
        else:
            window.Post(origin_group)
            window.Start(target_group)
            window.Put(weights, right)
            window.Complete()
            window.Wait()
        weights = (weights + received) / 2
    window.Free()


programs = (borders, ring, scattered, polled, groups, server, queue)
{program.__name__: program for program in programs}.get(pattern, windows)()
