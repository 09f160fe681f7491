"""The largest eigenvalue by power iteration over MPI. Faulty: rank 0 sleeps in steps 40 to 79."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI
from shared import FAULTY

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
rows = 1200
matrix = np.random.default_rng(rank).random((rows, rows * size))
vector = np.ones(rows * size)
for step in range(120):
    for _ in range(20):
        part = matrix @ vector
    if FAULTY and rank == 0 and 40 <= step < 80:
        time.sleep(0.04)
    comm.Allgather(part / np.abs(part).max(), vector)
