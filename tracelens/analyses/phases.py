"""Phases: what every worker's training thread did in every nanosecond of every step.

The innermost recorded phase wins; a user's span within a phase belongs to that phase. Communication
on the thread, and unrecorded time while something of the rank is in flight, is split: ``wait`` while a
collective of the rank has not been entered by all, ``ps_queue`` while a shard holds a request of the
rank that it has not begun to serve, else ``transfer``. What is left is ``idle`` where another record
explains it, else ``unknown``.

Where work was timed on a device, what the device did counts, for the thread only queued it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.analyses import _surroundings
from tracelens.analyses._partition import (
    BLOCKED,
    CATEGORIES,
    COMMUNICATION,
    IDLE,
    OWN_CATEGORIES,
    PS_QUEUE,
    QUEUED,
    USER,
    Intervals,
    Pieces,
    Spans,
    Surroundings,
    partition,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tracelens.analyses.result import Finding
    from tracelens.trace import Trace

__all__ = ["CATEGORIES", "OWN_CATEGORIES", "Phases", "run"]

# The training thread's time, cut into touching, non-overlapping pieces.
SEGMENT_COLUMNS: Final[dict[str, pl.DataType]] = {
    "process": pl.Int32(),
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "category": pl.Enum(CATEGORIES),
    "name": pl.Categorical(),  # innermost recorded span, null where none
}
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

# What a span of each kind means for its thread's time; steps mean nothing, they are the windows.
_MEANING: Final[dict[str, int]] = {
    **{kind: CATEGORIES.index(kind) for kind in OWN_CATEGORIES},
    "device": IDLE,
    "reduction": COMMUNICATION,
    "ps": COMMUNICATION,
    "elastic": COMMUNICATION,
    "wait": BLOCKED,
}
# Elastic training's own work and its queue for a turn, whatever is in flight.
_ELASTIC_MEANING: Final[dict[str, int]] = {
    "turn_wait": PS_QUEUE,
    "worker_update": CATEGORIES.index("update"),
    "master_update": CATEGORIES.index("update"),
}


_SPAN: Final = ("start_ns", "end_ns", "code", "name")


@dataclass(frozen=True)
class Phases:
    """The partition of every worker's time; per rank and step it sums to the step exactly.

    `segments` are in order of process and time. `times` holds only categories that occur; `hidden`
    has a row for every step.
    """

    segments: pl.DataFrame
    times: pl.DataFrame
    hidden: pl.DataFrame
    findings: tuple[Finding, ...] = ()


def run(trace: Trace) -> Phases:
    """Divide every worker's steps into categories."""
    device = _device_spans(trace)
    spans = _thread_spans(trace, device)
    steps = trace.steps.sort("process", "start_ns")
    around = {
        "wait": _surroundings.waits(trace),
        "queue": _surroundings.queues(trace),
        "flying": _surroundings.flying(trace),
        "cause": _surroundings.causes(trace),
    }
    sets = {name: _ByProcess(frame) for name, frame in around.items()}
    on_thread, on_device = _ByProcess(spans), _ByProcess(device)
    cut = []
    for process, windows, offset in _windows(steps):
        own = Spans(*on_thread.of(process, *_SPAN))
        work = Spans(*on_device.of(process, *_SPAN))
        beside = {
            name: Intervals(*part.of(process, "start_ns", "end_ns")) for name, part in sets.items()
        }
        cut.append((partition(own, Surroundings(**beside, device=work), windows), offset))
    return _gathered(cut, steps, pl.concat([spans["word"], device["word"]]))


class _ByProcess:
    """A frame's columns as arrays, to be sliced by process."""

    def __init__(self, frame: pl.DataFrame) -> None:
        frame = frame.sort("process")
        process = frame["process"].to_numpy()
        self._bounds = np.searchsorted(process, np.arange(process.max(initial=-1) + 2))
        self._columns = {
            name: frame[name].cast(pl.Int64).to_numpy()
            for name in frame.columns
            if frame[name].dtype.is_integer()
        }

    def of(self, process: int, *names: str) -> list[npt.NDArray[np.int64]]:
        """Return some columns of one process."""
        beyond = len(self._bounds) - 1
        first, last = self._bounds[min(process, beyond)], self._bounds[min(process + 1, beyond)]
        return [self._columns[name][first:last] for name in names]


def _thread_spans(trace: Trace, device: pl.DataFrame) -> pl.DataFrame:
    """Return the training threads' spans: process, times, meaning, and name (number and word)."""
    threads = trace.workers.select("process", thread="training_thread").lazy()
    meaning = pl.col("kind").cast(pl.String).replace_strict(_MEANING, default=USER)
    elastic = pl.col("op").cast(pl.String).replace_strict(_ELASTIC_MEANING, default=None)
    code = pl.coalesce(elastic, meaning)
    return (
        trace.spans.filter(pl.col("kind") != "step", ~_surroundings.REDUCED_ON_DEVICE)
        .join(threads, on=["process", "thread"], how="semi")
        .select(
            "process",
            "start_ns",
            end_ns=pl.col("end_ns").fill_null(_surroundings.FOREVER),
            code=pl.when(_only_queues(code, device)).then(code + QUEUED).otherwise(code),
            name=pl.col("name").to_physical(),
            word="name",
        )
        .sort("process")
        .collect()
    )


def _only_queues(code: pl.Expr, device: pl.DataFrame) -> pl.Expr:
    """Say of a thread's span whether it only gives the process's device such work, or awaits it."""
    known = device.select("process", "code").unique()
    awaits = known.select("process", code=pl.lit(IDLE, pl.Int64)).unique()
    pair = pl.col("process").cast(pl.Int64) * QUEUED + pl.col("code")
    pairs = pl.concat([known, awaits]).select(pair).to_series()
    return (pl.col("process").cast(pl.Int64) * QUEUED + code).is_in(pairs.to_list())


def _device_spans(trace: Trace) -> pl.DataFrame:
    """Return the workers' own work as their devices timed it, like `_thread_spans`."""
    workers = trace.workers.select("process").lazy()
    kind = pl.col("kind").cast(pl.String)
    return (
        trace.spans.filter(pl.col("device_duration_ns").is_not_null(), kind.is_in(OWN_CATEGORIES))
        .join(workers, on="process", how="semi")
        .sort("process", "depth", maintain_order=True)
        .select(
            "process",
            start_ns="device_start_ns",
            end_ns=pl.col("device_start_ns") + pl.col("device_duration_ns"),
            code=kind.replace_strict(_MEANING, return_dtype=pl.Int64),
            name=pl.col("name").to_physical(),
            word="name",
        )
        .collect()
    )


def _windows(steps: pl.DataFrame) -> Iterator[tuple[int, npt.NDArray[np.int64], int]]:
    """Yield each process, the bounds of its steps, and the row where they begin."""
    offset = 0
    for group in steps.partition_by("process", maintain_order=True):
        bounds = np.append(group["start_ns"].to_numpy(), group["end_ns"][-1])
        yield group["process"][0], bounds, offset
        offset += group.height


def _gathered(cut: list[tuple[Pieces, int]], steps: pl.DataFrame, words: pl.Series) -> Phases:
    """Turn all processes' pieces into frames."""
    if not cut:
        return Phases(
            segments=pl.DataFrame(schema=SEGMENT_COLUMNS),
            times=pl.DataFrame(schema=TIME_COLUMNS),
            hidden=pl.DataFrame(schema=HIDDEN_COLUMNS),
        )
    row = np.concatenate([pieces.step + offset for pieces, offset in cut])
    of_step = steps.select("process", "rank", "step")
    segments = of_step[row].with_columns(
        start_ns=np.concatenate([pieces.bounds[:-1] for pieces, _ in cut]),
        end_ns=np.concatenate([pieces.bounds[1:] for pieces, _ in cut]),
        category=_categories(np.concatenate([pieces.category for pieces, _ in cut])),
        name=_names(np.concatenate([pieces.name for pieces, _ in cut]), words),
    )
    times = (
        segments.group_by("process", "rank", "step", "category", maintain_order=True)
        .agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .select(*TIME_COLUMNS)
    )
    hidden = of_step.select("rank", "step").with_columns(
        ns=np.concatenate([pieces.hidden for pieces, _ in cut])
    )
    return Phases(segments.select(*SEGMENT_COLUMNS), times, hidden)


def _categories(codes: npt.NDArray[Any]) -> pl.Series:
    return pl.Series(CATEGORIES, dtype=pl.Enum(CATEGORIES)).gather(codes)


def _names(codes: npt.NDArray[np.int64], words: pl.Series) -> pl.Series:
    """Turn name numbers back into words; `NOTHING` into null."""
    numbers = words.to_physical().to_numpy()
    row_of = np.zeros(int(numbers.max(initial=0)) + 2, np.int64)  # the last one stands for -1
    row_of[numbers] = np.arange(len(numbers))
    named = pl.Series(codes >= 0)
    if words.is_empty():
        return pl.Series([None] * len(codes), dtype=pl.Categorical)
    found = words.gather(row_of[codes])
    return pl.select(pl.when(named).then(found)).to_series()
