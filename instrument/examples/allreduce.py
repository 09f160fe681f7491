"""Allreduce algorithms written out with point-to-point calls; in place, sum over all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

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


def recursive_doubling(comm: Any, values: Array) -> None:
    """Exchange everything with a partner 1, 2, 4, ... ranks away: log2(n) hops of all the values.

    Where n is no power of two, the ranks left over give theirs to a neighbour first, and get the sum
    at the end. Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication
    operations in MPICH", 2005.
    """
    rank, ranks = comm.rank, comm.size
    power = 1 << (ranks.bit_length() - 1)
    left_over = ranks - power
    arrived = np.empty_like(values)
    if rank >= power:
        comm.Send(values, rank - power)
        comm.Recv(values, rank - power)
        return
    if rank < left_over:
        comm.Recv(arrived, rank + power)
        values += arrived
    distance = 1
    while distance < power:
        partner = rank ^ distance
        comm.Sendrecv(values, partner, recvbuf=arrived, source=partner)
        # In the order of the ranks, so that all end with the same bits.
        np.add(*((values, arrived) if rank < partner else (arrived, values)), out=values)
        distance <<= 1
    if rank < left_over:
        comm.Send(values, rank + power)


WRITTEN_OUT: Final[dict[str, Callable[[Any, Array], None]]] = {
    "ring": ring,
    "recursive-doubling": recursive_doubling,
    "tree": tree,
}
