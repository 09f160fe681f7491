"""The master of the EASGD examples: it holds the centre, and counts its versions."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from easgd_rules import update_centre
from mlp import Perceptron
from ps_messages import PAYLOAD, await_

import tracelens as tl

if TYPE_CHECKING:
    from easgd_rules import Rates
    from mlp import Array

DOWN = tl.span("send centre", kind="elastic", op="weights_down", shard=0)
UP = tl.span("receive weights", kind="elastic", op="weights_up", shard=0)
UPDATE = tl.span("update centre", kind="elastic", op="master_update", shard=0)
IDLE = tl.span("wait for a worker", kind="wait")

FIRST_WORKER: Final = 1  # MPI rank of worker 0, where the master has a rank to itself


class Centre:
    """The centre W; `version` counts its updates."""

    def __init__(self, hidden: int, rates: Rates) -> None:
        weights = Perceptron.with_hidden(hidden).weights
        self.values: Array = np.concatenate([weight.reshape(-1) for weight in weights])
        self.version = 0
        self._counting = threading.Lock()  # of versions; whether weights are locked is the method's
        self._rates = rates

    def update(self, total: Array, workers: int = 1, **values: int) -> None:
        """Pull the centre towards the sum of so many workers' weights."""
        with self._counting:
            self.version = version = self.version + 1
        with UPDATE(seq=version, nbytes=total.nbytes, **values):
            update_centre(self.values, total, workers, self._rates)

    def send(self, comm: Any, worker: int, step: int, request: int) -> None:
        """Send the centre to a worker."""
        values = self._values(worker, step, request)
        with DOWN(seq=self.version, **values):
            await_(comm.Isend(self.values, worker + FIRST_WORKER, PAYLOAD))

    def receive(self, comm: Any, into: Array, worker: int, step: int, request: int) -> None:
        """Receive a worker's weights."""
        with UP(**self._values(worker, step, request)):
            await_(comm.Irecv(into, worker + FIRST_WORKER, PAYLOAD))

    def _values(self, worker: int, step: int, request: int) -> dict[str, int]:
        nbytes = self.values.nbytes
        return {"peer": worker, "step": step, "request": request, "nbytes": nbytes}
