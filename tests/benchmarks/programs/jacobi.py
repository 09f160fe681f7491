"""Jacobi's method with halo exchange over MPI. Faulty: rank 0 has twice the rows of any other rank."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI
from shared import FAULTY

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
rows = 1600 if FAULTY and rank == 0 else 800
up = rank - 1 if rank > 0 else MPI.PROC_NULL
down = rank + 1 if rank < size - 1 else MPI.PROC_NULL
grid = np.zeros((rows + 2, 1500))
grid[0 if rank == 0 else -1] = 1.0
for _ in range(120):
    comm.Sendrecv(grid[1].copy(), dest=up, recvbuf=grid[-1], source=down)
    comm.Sendrecv(grid[-2].copy(), dest=down, recvbuf=grid[0], source=up)
    new = grid.copy()
    new[1:-1, 1:-1] = 0.25 * (grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:])
    residual = np.array([np.abs(new - grid).max()])
    comm.Allreduce(MPI.IN_PLACE, residual, op=MPI.MAX)
    grid = new
