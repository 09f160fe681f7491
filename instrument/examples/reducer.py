"""Averages gradients over MPI ranks: each by itself or fused into tensors of some size first."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from allreduce import WRITTEN_OUT
from mpi4py import MPI

import tracelens as tl
from tracelens_instrument import recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlp import Array

PACK = tl.span("pack", kind="user")
UNPACK = tl.span("unpack", kind="user")


@dataclass
class Bucket:
    """Gradients that are reduced together."""

    gradients: list[Array] = field(default_factory=list)
    nbytes: int = 0

    def add(self, gradient: Array) -> None:
        """Take one more, of any shape, C-contiguous."""
        self.gradients.append(gradient.reshape(-1))
        self.nbytes += gradient.nbytes

    def pack(self) -> Array:
        """Return them as one array, which is the gradient itself if there is but one."""
        if len(self.gradients) == 1:
            return self.gradients[0]
        with PACK:
            return np.concatenate(self.gradients)

    def unpack(self, values: Array) -> None:
        """Write the averages back to where the gradients were."""
        if len(self.gradients) == 1:
            return
        with UNPACK:
            pieces = np.split(values, np.cumsum([g.size for g in self.gradients])[:-1])
            for gradient, piece in zip(self.gradients, pieces, strict=True):
                gradient[:] = piece


class Allreduce:
    """Sums over all ranks, in place: by the library or written out; the latter within an own span."""

    def __init__(self, comm: Any, algorithm: str) -> None:
        self._comm = comm
        self._calls = count()
        self._written_out: Callable[[Any, Array], None] | None = WRITTEN_OUT.get(algorithm)
        self._span = tl.span(
            f"{algorithm} allreduce",
            kind="reduction",
            op="allreduce",
            algorithm=algorithm,
            communicator=recorder.communicator(range(comm.size), f"{algorithm} allreduce"),
        )

    def __call__(self, values: Array, bucket: int = -1) -> None:
        """Sum values, a contiguous vector."""
        if self._written_out is None:
            self._comm.Allreduce(MPI.IN_PLACE, values)
            return
        with self._span(nbytes=values.nbytes, seq=next(self._calls), bucket=bucket):
            self._written_out(self._comm, values)


class Reducer:
    """`reduce` takes a gradient, and reduces when `fuse` bytes have come together.

    `finish` reduces what is left, and awaits what is in flight. The gradients are averaged in place.
    """

    def __init__(self, comm: Any, algorithm: str, *, overlap: bool = False, fuse: int = 0) -> None:
        self.comm = comm
        self.overlap = overlap
        self.fuse = fuse
        self._allreduce = Allreduce(comm, algorithm)
        self._filling = Bucket()
        self._buckets = 0  # in this step
        self._in_flight: list[tuple[Any, Bucket, Array]] = []

    def reduce(self, gradient: Array) -> None:
        """Average this gradient, together with those before it that have not been reduced yet."""
        self._filling.add(gradient)
        if self._filling.nbytes >= self.fuse:
            self._flush()

    def finish(self) -> None:
        """Return when every gradient of this step holds its average."""
        if self._filling.gradients:
            self._flush()
        MPI.Request.Waitall([request for request, _, _ in self._in_flight])
        for _, bucket, values in self._in_flight:
            self._average(bucket, values)
        self._in_flight.clear()
        self._buckets = 0

    def _flush(self) -> None:
        bucket, self._filling = self._filling, Bucket()
        values = bucket.pack()
        if self.overlap:
            request = self.comm.Iallreduce(MPI.IN_PLACE, values)
            self._in_flight.append((request, bucket, values))
        else:
            self._allreduce(values, self._buckets)
            self._average(bucket, values)
        self._buckets += 1

    def _average(self, bucket: Bucket, values: Array) -> None:
        values /= self.comm.size
        bucket.unpack(values)
