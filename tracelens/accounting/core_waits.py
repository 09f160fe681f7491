"""What of a straggler's delay is waiting for a core: of a busy machine, or too many threads for it.

The recorder reads now and then for how long the kernel let a process's main thread run, and for how
long it was ready to run and waited in a run queue (`queued_ns`). A thread that waits actively, as in
MPI, does so in its waits as well, so the time in run queues is taken as spread evenly over the time in
which it was ready. A rank whose work is longer than its peers' with this time, and is not without it,
is no slow one; one that has more to do has it with and without.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.model import fmt
from tracelens.stats.constants import CONSISTENT, ENOUGH, LARGE_DELAY, MAJORITY

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.arrays import Ints
    from tracelens.model.trace import Trace

__all__ = ["CoreWait", "core_wait_of", "core_wait_of_all"]

_MAIN: Final = "MainThread"  # the one whose times are read


@dataclass(frozen=True)
class CoreWait:
    """For what share of the time late ranks waited for a core, and what is `usual` beside that.

    That is what peers did, or all ranks at other times. `explains` is the share of the delay that is
    gone without it, and `left` what is not, as a share of the usual work.
    """

    share: float
    usual: float
    explains: float
    left: float

    @property
    def is_cause(self) -> bool:
        """Whether there is hardly a delay without it; a bit more, where all wait by chance."""
        little = self.left < LARGE_DELAY and self.usual >= ENOUGH
        return self.explains >= CONSISTENT or little

    @property
    def is_common(self) -> bool:
        """Whether peers waited for cores as well, so that it is chance who did so most."""
        return self.is_cause and self.usual >= ENOUGH * self.share

    def sentences(self, ranks: str, others: str) -> list[str]:
        """Return what is said of it, where it explains a good part of the delay."""
        if self.explains < MAJORITY and not self.is_cause:
            return []
        share, usual = fmt.percent(self.share), fmt.percent(self.usual)
        waited = (
            f"{fmt.capital(ranks)} waited for a core for {share} of the time, {others} for {usual}"
        )
        return [f"{waited}: that explains {fmt.percent(self.explains)} of the delay."]

    def evidence(self) -> dict[str, Any]:
        """Return it as numbers."""
        return asdict(self) | {"is_cause": self.is_cause}


def core_wait_of(
    trace: Trace, own: ComputeTime, ranks: tuple[int, ...], rows: slice
) -> CoreWait | None:
    """Return how long late ranks (columns), and their peers, waited for a core in some steps (rows).

    None where that was not read.
    """
    columns = [*ranks, *own.compared_with(ranks).tolist()]
    read = [_waited(trace, own, column, rows) for column in columns]
    known = [one for one in read if one is not None]
    count = len(ranks)
    if len(known) < len(read) or len(known) == count:
        return None
    share, work, undisturbed = np.array(known).T
    usual, usual_undisturbed = (float(np.median(each[count:])) for each in (work, undisturbed))
    if usual <= 0 or usual_undisturbed <= 0:
        return None
    beyond = work[:count] / usual - 1
    left = np.maximum(undisturbed[:count] / usual_undisturbed - 1, 0.0)
    explains = 1 - left / beyond if (beyond > 0).all() else np.zeros(count)
    return CoreWait(
        share=float(share[:count].max()),
        usual=float(np.median(share[count:])),
        explains=float(np.clip(explains.min(), 0.0, 1.0)),
        left=float(left.max()),
    )


def core_wait_of_all(
    trace: Trace, own: ComputeTime, rows: slice, extra_ns: float
) -> CoreWait | None:
    """Return how long all ranks waited for a core in some steps (rows), beside the whole run.

    In these they take `extra_ns` a step longer. None where it was not read.
    """
    everywhere = slice(0, len(own.steps))
    inside, usual = (
        [_waited(trace, own, column, some) for column in range(len(own.ranks))]
        for some in (rows, everywhere)
    )
    known = [
        (*a, *b) for a, b in zip(inside, usual, strict=True) if a is not None and b is not None
    ]
    if not known or extra_ns <= 0:
        return None
    share, _, _, often, work, _ = np.median(np.array(known), axis=0)
    step = float(np.median(own.length[own.settled_rows]))
    longer = share * (step + extra_ns) - often * step
    explains = float(np.clip(longer / extra_ns, 0.0, 1.0))
    left = (1 - explains) * extra_ns / max(float(work), 1.0)
    return CoreWait(float(share), float(often), explains, left)


def _waited(
    trace: Trace, own: ComputeTime, column: int, rows: slice
) -> tuple[float, float, float] | None:
    """Return a rank's share of time in run queues, and its work per step, ns, with and without that."""
    worker = trace.workers.filter(rank=own.ranks[column])
    process, thread = worker.select("process", "training_thread").row(0)
    name = trace.threads.filter(process=process, thread=thread)["name"].to_list()
    read = trace.clocks.filter(pl.col("process") == process).drop_nulls(["ran_ns", "queued_ns"])
    first, last = own.steps[rows][[0, -1]]
    inside = trace.steps.filter(
        pl.col("process") == process, pl.col("step").is_between(int(first), int(last))
    )
    if name != [_MAIN] or read.height < 2 or inside.is_empty():
        return None
    at = read["monotonic_ns"].to_numpy()
    moved = trace.moved.get(process)
    at = moved.apply(at) if moved else at
    edges = np.array([inside["start_ns"].to_numpy().min(), inside["end_ns"].to_numpy().max()])
    edges = np.clip(edges, at[0], at[-1])
    ran, queued = (_between(edges, at, read[name]) for name in ("ran_ns", "queued_ns"))
    work = own.total[rows, column]
    took = float(edges[1] - edges[0])
    if took <= 0 or ran <= 0 or np.isnan(work).all():
        return None
    per_step, ready = float(np.nanmean(work)), max(ran + queued, float(np.nansum(work)))
    return queued / took, per_step, per_step * (1 - queued / ready)


def _between(edges: Ints, at: Ints, total: pl.Series) -> float:
    """Return how much a total that was read at some times grew between two others."""
    first, last = np.interp(edges, at, total.to_numpy().astype(np.float64))
    return float(last - first)
