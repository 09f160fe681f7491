"""A master hands out tasks over MPI. Faulty: worker 1 takes 60 ms longer for each task."""

from __future__ import annotations

import time

from mpi4py import MPI
from shared import FAULTY, compute

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
TASKS = 200
if rank == 0:
    status = MPI.Status()
    for task in range(TASKS + size - 1):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        comm.send(task if task < TASKS else None, dest=status.Get_source())
else:
    value = 0.0
    while True:
        comm.send(value, dest=0)
        if comm.recv(source=0) is None:
            break
        value = compute(10)
        if FAULTY and rank == 1:
            time.sleep(0.06)
