"""Two allreduce algorithms written out with point-to-point calls; in place, sum over all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mlp import Array


def ring(comm: Any, values: Array) -> None:
    """Reduce-scatter, then all-gather, around a ring: 2 (n - 1) hops of 1/n of the values each.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
    """
    rank, ranks = comm.rank, comm.size
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    chunks = np.array_split(values, ranks)
    for hop in range(ranks - 1):
        incoming = chunks[(rank - hop - 1) % ranks]
        arrived = np.empty_like(incoming)
        comm.Sendrecv(chunks[(rank - hop) % ranks], right, recvbuf=arrived, source=left)
        incoming += arrived
    for hop in range(ranks - 1):
        incoming = chunks[(rank - hop) % ranks]
        comm.Sendrecv(chunks[(rank + 1 - hop) % ranks], right, recvbuf=incoming, source=left)


def tree(comm: Any, values: Array) -> None:
    """Reduce to rank 0 along a binomial tree, then broadcast along the same tree."""
    rank, ranks = comm.rank, comm.size
    arrived = np.empty_like(values)
    distance = 1
    while distance < ranks and not rank & distance:
        if rank + distance < ranks:
            comm.Recv(arrived, rank + distance)
            values += arrived
        distance <<= 1
    if rank:
        comm.Send(values, rank - distance)
        comm.Recv(values, rank - distance)
    distance >>= 1
    while distance:
        if rank + distance < ranks:
            comm.Send(values, rank + distance)
        distance >>= 1
