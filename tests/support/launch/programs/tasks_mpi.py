"""Rank 0 hands out tasks to whoever is free, in three ways, with a slow worker or without.

Usage: tasks_mpi.py STYLE FAULT COUNT. STYLE is tags (workers say that they are ready, and tags say what
a message is), array (everybody gets a first task unasked, results are arrays, a negative task ends a
worker) or any (rank 0 keeps a receive open for each worker and waits for any of them). FAULT is none or
slow (rank 2 takes three times as long for any task).
"""

from __future__ import annotations

import sys
import time
from enum import IntEnum

import numpy as np
from mpi4py import MPI

TASK_S = 0.012
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
style, fault = sys.argv[1:3]
count = int(sys.argv[3])
Tag = IntEnum("Tag", "READY START DONE EXIT")


def solve(task: int) -> int:
    """Work on a task: these differ, and what is slow is asleep, so that ranks do not share the cores."""
    time.sleep(TASK_S * (0.75 + task * 7919 % 7 / 12) * (3 if fault == "slow" and rank == 2 else 1))
    return task * task


def tags() -> None:
    """Answer whoever says that it is ready; results come with a tag of their own."""
    status = MPI.Status()
    if rank == 0:
        task, working = 0, size - 1
        while working:
            comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
            worker, tag = status.Get_source(), status.Get_tag()
            if tag == Tag.READY and task < count:
                comm.send(task, dest=worker, tag=Tag.START)
                task += 1
            elif tag == Tag.READY:
                comm.send(None, dest=worker, tag=Tag.EXIT)
            working -= tag == Tag.EXIT
        return
    while True:
        comm.send(None, dest=0, tag=Tag.READY)
        task = comm.recv(source=0, tag=MPI.ANY_TAG, status=status)
        if status.Get_tag() == Tag.EXIT:
            break
        comm.send(solve(task), dest=0, tag=Tag.DONE)
    comm.send(None, dest=0, tag=Tag.EXIT)


def array() -> None:
    """Send a task to each worker, and another one for each result."""
    task, result = np.zeros(1, np.int32), np.zeros(1000)
    if rank:
        comm.Recv(task, source=0)
        while task[0] >= 0:
            result[:] = solve(int(task[0]))
            comm.Send(result, dest=0)
            comm.Recv(task, source=0)
        return
    status = MPI.Status()
    for worker in range(1, size):
        comm.Send(np.array([worker - 1], np.int32), dest=worker)
    task_count = size - 1
    for _ in range(count):
        comm.Recv(result, source=MPI.ANY_SOURCE, status=status)
        task[0] = task_count if task_count < count else -1
        comm.Send(task, dest=status.Get_source())
        task_count += 1


def any_of() -> None:
    """Wait for any of several open receives; a task of None is the last one."""
    if rank:
        while (task := comm.recv(source=0, tag=1)) is not None:
            comm.send({"task": task, "value": solve(task)}, dest=0, tag=2)
        return
    tasks, working = list(range(count)), size - 1
    for worker in range(1, size):
        comm.isend(tasks.pop(), dest=worker, tag=1).wait()
    requests = [comm.irecv(source=worker, tag=2) for worker in range(1, size)]
    while working:
        request_index, _ = MPI.Request.waitany(requests)
        if tasks:
            comm.isend(tasks.pop(), dest=request_index + 1, tag=1).wait()
            requests[request_index] = comm.irecv(source=request_index + 1, tag=2)
        else:
            comm.send(None, dest=request_index + 1, tag=1)
            requests[request_index] = MPI.REQUEST_NULL
            working -= 1


{"tags": tags, "array": array, "any": any_of}[style]()
