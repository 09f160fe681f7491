"""Phases: what every worker's training thread did in every nanosecond of every step.

The innermost recorded phase wins; a user's span within a phase belongs to that phase. Communication on
the thread, and unrecorded time while something of the rank is in flight, is split: ``wait`` while a
collective of the rank has not been entered by all, ``ps_queue`` while a shard holds a request of the
rank that it has not begun to serve, else ``transfer``. What is left is ``idle`` where another record
explains it, else ``unknown``; what lies between steps that were left out as asked is no step's time.

Where work was timed on a device, what the device did counts, for the thread only queued it. One process
is read at a time, so that the events of all are never needed at once. Beside the phases stands
what they are shares of, the job's length (`job_ns`), and the transfer of each step that nothing hides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting import thread_activity
from tracelens.accounting.partition import (
    CATEGORIES,
    COMPUTE_CATEGORIES,
    NOTHING,
    UNKNOWN,
    Intervals,
    Pieces,
    Surroundings,
    partition,
)
from tracelens.accounting.pieces import SEGMENT_COLUMNS, PackedPieces, Segments, categories
from tracelens.accounting.thread_activity import (
    ACTIVITY_COLUMNS,
    ThreadActivity,
    collective_waits,
)
from tracelens.accounting.weight_updates import Updates, WeightUpdates, followed
from tracelens.distil.outline import in_flight_tracks, outlined
from tracelens.parallel import side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracelens.arrays import Floats, Ints
    from tracelens.model.columns import Columns
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

__all__ = [
    "CATEGORIES",
    "COMPUTE_CATEGORIES",
    "HIDDEN_COLUMNS",
    "SEGMENT_COLUMNS",
    "TIME_COLUMNS",
    "Phases",
    "Pieces",
    "Segments",
    "after_steps",
    "exposed_transfer",
    "job_ns",
    "run",
]


TIME_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "category": pl.Enum(CATEGORIES),
    "ns": pl.Int64(),
}
HIDDEN_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "ns": pl.Int64(),  # communication in flight under own work
}


AMOUNTS: Final = ("tokens", "samples")  # of work, as counters of steps tell it
AMOUNT_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "name": pl.Enum(AMOUNTS),
    "value": pl.Float64(),
}


@dataclass(frozen=True)
class Phases:
    """The partition of every worker's time; per rank and step it sums to the step exactly.

    `pieces` are the touching pieces themselves. `times` sums them up, and holds only categories that
    occur; `hidden` has a row for every step; `updates` tells of updates of weights, and
    `amounts` how much work each rank had in each step, where that was recorded (`AMOUNT_COLUMNS`).
    """

    pieces: Segments
    times: pl.DataFrame
    hidden: pl.DataFrame
    updates: WeightUpdates
    amounts: pl.DataFrame
    findings: tuple[Finding, ...] = ()

    @property
    def segments(self) -> pl.DataFrame:
        """The pieces as rows, in order of process and time, built at each access."""
        return self.pieces.frame()


def run(trace: Trace, progress: Callable[[int, int], None] | None = None) -> Phases:
    """Divide every worker's steps into categories; `progress` is called with (done, total) processes."""
    steps = trace.steps.sort("process", "start_ns")
    account = _Account.of(trace, steps)
    windows = list(_windows(steps))
    done: list[Accounted] = []
    for found in side_by_side(account, windows):
        done.append(found)
        if progress:
            progress(len(done), len(windows))
    return _gathered(done, steps, account.words)


@dataclass(frozen=True)
class Accounted:
    """What a worker's time came to, by step window, and what it was cut into."""

    pieces: PackedPieces
    spent: Ints
    hidden: Ints
    updates: Updates
    amounts: dict[str, tuple[Ints, Floats]]  # by name: step, how much work it had


@dataclass(frozen=True)
class _Account:
    """Accounts for the time of one worker after the other."""

    trace: Trace
    queues: dict[int, Intervals]
    training: dict[int, int]
    tracks: dict[int, list[int]]
    words: tuple[str, ...]
    every: int

    @classmethod
    def of(cls, trace: Trace, steps: pl.DataFrame) -> _Account:
        outlines = outlined(trace)
        named = dict.fromkeys(
            name for process in steps["process"].unique().sort() for name in outlines[process].names
        )
        threads = trace.workers.select("process", "training_thread").drop_nulls()
        queues = thread_activity.server_queues(trace).partition_by("process", as_dict=True)
        return cls(
            trace=trace,
            queues={
                process: Intervals(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())
                for (process,), part in queues.items()
            },
            training=dict(threads.iter_rows()),
            tracks=in_flight_tracks(trace),
            words=tuple(named),
            every=followed(trace),
        )

    def __call__(self, of: tuple[int, Ints]) -> Accounted:
        process, windows = of
        columns = self.trace.source.columns(process, _READ)
        training = self.training.get(process)
        activity = ThreadActivity(columns, training, self.tracks.get(process, ()))
        device = activity.device_spans()
        found = partition(
            activity.thread_spans(device),
            Surroundings(
                wait=collective_waits(self.trace.calls, process),
                queue=self.queues.get(process, _NO_INTERVALS),
                flying=activity.in_flight(),
                cause=activity.idle_causes(),
                device=device,
            ),
            windows,
        )
        numbers = {word: number for number, word in enumerate(self.words)}
        known = columns.word("name").known
        names = np.array([*(numbers.get(word, NOTHING) for word in known), NOTHING], np.int32)
        return Accounted(
            PackedPieces.of(found, names[found.name]),
            found.spent,
            found.hidden,
            Updates.of(
                columns,
                activity.rows_of("update"),
                activity.rows_of("forward", anywhere=True),
                self.every,
            ),
            _amounts(columns),
        )


_READ: Final = (*ACTIVITY_COLUMNS, "step", "bucket", "value")
_NO_INTERVALS: Final = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))


def _amounts(columns: Columns) -> dict[str, tuple[Ints, Floats]]:
    """Return how much work each step had, by the counters that say so."""
    if "value" not in columns:
        return {}
    name, value = columns.word("name"), columns.values["value"]
    counts = columns.word("type").among(("counter",)) & columns.word("kind").among(("step",))
    found = {}
    for amount in AMOUNTS:
        rows = np.flatnonzero(counts & name.among((amount,)) & np.isfinite(value))
        if len(rows):
            step, place = np.unique(columns.number("step")[rows], return_inverse=True)
            found[amount] = step, np.bincount(place, value[rows])
    return found


def _windows(steps: pl.DataFrame) -> Iterator[tuple[int, Ints]]:
    """Yield each process and the bounds of its steps."""
    process, start, end = (steps[name].to_numpy() for name in ("process", "start_ns", "end_ns"))
    known, first = np.unique(process, return_index=True)
    for one, begin, after in zip(known, first, np.append(first, len(process))[1:], strict=True):
        yield int(one), np.append(start[begin:after], end[after - 1])


def _gathered(done: list[Accounted], steps: pl.DataFrame, words: tuple[str, ...]) -> Phases:
    """Turn all processes' accounts into frames."""
    of_step = steps.select("process", "rank", "step")
    begins = np.cumsum([0, *(len(found.hidden) for found in done)]).tolist()
    segments = Segments(tuple(found.pieces for found in done), tuple(begins), of_step, words)
    owners = of_step[begins[:-1]].select("process", "rank").rows()
    updates = WeightUpdates.of(owners, [found.updates for found in done])
    if not done:
        empty, none = pl.DataFrame(schema=TIME_COLUMNS), pl.DataFrame(schema=HIDDEN_COLUMNS)
        return Phases(segments, empty, none, updates, pl.DataFrame(schema=AMOUNT_COLUMNS))
    spent = np.concatenate([found.spent for found in done])
    left_out = after_steps(steps).to_numpy()
    spent[:, UNKNOWN] -= np.minimum(left_out, spent[:, UNKNOWN])
    row, category = np.nonzero(spent)
    times = of_step[row].with_columns(category=categories(category), ns=spent[row, category])
    hidden = np.concatenate([found.hidden for found in done])
    return Phases(
        segments,
        times=times.select(*TIME_COLUMNS),
        hidden=of_step.select("rank", "step").with_columns(ns=hidden),
        updates=updates,
        amounts=_amount_table([rank for _, rank in owners], [found.amounts for found in done]),
    )


def _amount_table(ranks: list[int], found: list[dict[str, tuple[Ints, Floats]]]) -> pl.DataFrame:
    parts = [
        pl.DataFrame({"step": step, "value": value}).select(
            pl.lit(rank).alias("rank"), "step", pl.lit(name).alias("name"), "value"
        )
        for rank, amounts in zip(ranks, found, strict=True)
        for name, (step, value) in amounts.items()
    ]
    columns = [pl.col(name).cast(kind) for name, kind in AMOUNT_COLUMNS.items()]
    return pl.concat(
        [pl.DataFrame(schema=AMOUNT_COLUMNS), *(part.select(columns) for part in parts)]
    )


def job_ns(trace: Trace) -> int:
    """Return the time from the first rank's first step to the end of the last one; 0 without steps.

    What was left out as asked, between steps that were kept, does not count: on average of the ranks.
    """
    start, end = trace.steps["start_ns"].min(), trace.steps["end_ns"].max()
    if not isinstance(start, int) or not isinstance(end, int):
        return 0
    return end - start - int(after_steps(trace.steps).sum()) // trace.steps["process"].n_unique()


def after_steps(steps: pl.DataFrame) -> pl.Series:
    """Return how long after each step the next of its process begins: 0, but where steps were left out.

    `steps` is in order of process and time.
    """
    following = pl.col("start_ns").shift(-1).over("process")
    after = (following - pl.col("end_ns")).fill_null(0)
    return steps.select(ns=after)["ns"]


def exposed_transfer(phases: Phases, steps: Ints) -> Floats:
    """Return nanoseconds for each of `steps`: no step can become shorter by more without transfer."""
    transfer = pl.col("ns").filter(pl.col("category") == "transfer").sum()
    least = (
        phases.times.group_by("step", "process")
        .agg(transfer)
        .group_by("step")
        .agg(pl.col("ns").min())
        .sort("step")
    )
    known = least["step"].to_numpy()
    if not len(known):
        return np.zeros(len(steps))
    place = np.minimum(np.searchsorted(known, steps), len(known) - 1)
    return np.where(known[place] == steps, least["ns"].to_numpy()[place], 0).astype(np.float64)
