"""A Monte Carlo estimate over MPI. Faulty: each round reduces a big histogram by the pickling call."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI
from shared import FAULTY

comm = MPI.COMM_WORLD
generator = np.random.default_rng(comm.Get_rank())
histogram = np.zeros(1_500_000)
for _ in range(80):
    points = generator.random((600_000, 2))
    inside = np.array([float(np.sum((points**2).sum(axis=1) < 1))])
    if FAULTY:
        histogram[:1000] += np.histogram(points[:, 0], bins=1000)[0]
        total = comm.allreduce(histogram, op=MPI.SUM)
    else:
        comm.Allreduce(MPI.IN_PLACE, inside, op=MPI.SUM)
