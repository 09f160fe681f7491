"""A parameter sweep by scatter and gather over MPI. Faulty: the last rank gets the dear parameters."""

from __future__ import annotations

from mpi4py import MPI
from shared import FAULTY, compute

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
costs = [[4.0, 6.0] if FAULTY and r < size - 1 else [12.0, 10.0] for r in range(size)]
if not FAULTY:
    costs = [[8.0, 8.0]] * size
best = 0.0
for _ in range(80):
    parameters = comm.scatter(costs if rank == 0 else None, root=0)
    values = [compute(parameter) for parameter in parameters]
    results = comm.gather(max(values), root=0)
    if results is not None:
        best = max(best, *results)
