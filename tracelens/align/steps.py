"""Divides every worker's time into steps, and assigns each event to its step.

A step lasts from the begin of its step span to the begin of the next: so whatever happens between two
step spans (often data loading) is in a step too. The last one ends with its own span, for what follows
is no training; if that never ended, with the training thread's last event. Where steps were left out as
asked, the one before them ends with its own span. Step spans that overlap are so cut at the next begin,
and a note counts them; only a span wholly inside another one is no step. Where step numbers repeat or
fall within a process, as with a loop per epoch, steps are counted instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model import fmt
from tracelens.model.trace import STEP_COLUMNS, Note

if TYPE_CHECKING:
    from tracelens.model.trace import Trace

SAMPLES: Final = "samples"
_FOREVER: Final = 2**62  # later than any time of a trace


def divide(trace: Trace) -> Trace:
    """Fill `steps` and the training threads, and complete the events' step numbers."""
    events = trace.events.collect()
    workers = trace.workers.select("process", "rank")
    threads = _training_threads(events, workers, trace.threads)
    marks, notes = _marks(events, threads)
    numbered, renumbered = _number(marks)
    ring = trace.processes.filter(pl.col("last_steps").is_not_null())["process"]
    steps = _windows(
        numbered if renumbered else _cut_short(numbered, events, ring), events, threads
    )
    events = _assign(events, steps, trace.threads, threads, everywhere=bool(renumbered))
    return trace.with_(
        events=events.lazy(),
        steps=_samples(steps, events).join(workers, on="process").select(*STEP_COLUMNS),
        processes=_with_threads(trace.processes, threads),
        notes=(*trace.notes, *notes, *renumbered),
    )


def _training_threads(
    events: pl.DataFrame, workers: pl.DataFrame, threads: pl.DataFrame
) -> pl.DataFrame:
    """Return each worker's training thread: the one with the most steps, else the busiest."""
    tracks = threads.filter("in_flight").select("process", "thread")
    return (
        events.lazy()
        .filter(pl.col("type") == "span")
        .group_by("process", "thread")
        .agg(steps=(pl.col("kind") == "step").sum(), events=pl.len())
        .join(workers.lazy(), on="process", how="semi")
        .join(tracks.lazy(), on=["process", "thread"], how="anti")
        .sort("process", "steps", "events", "thread", descending=[False, True, True, False])
        .group_by("process", maintain_order=True)
        .agg(pl.col("thread").first())
        .collect()
    )


def _with_threads(processes: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    known = threads.rename({"thread": "training_thread"})
    joined = processes.drop("training_thread").join(known, on="process", how="left")
    return joined.select(processes.columns).sort("process")


def _marks(events: pl.DataFrame, threads: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Return where steps begin: process, step, start_ns; notes where no step was recorded."""
    on_thread = events.lazy().join(threads.lazy(), on=["process", "thread"], how="semi")
    spans = on_thread.filter(pl.col("type") == "span")
    found = outer_spans(
        spans.filter(pl.col("kind") == "step")
        .select("process", "step", "start_ns", "depth", end_ns=pl.col("end_ns").fill_null(_FOREVER))
        .sort("process", "start_ns", "end_ns", "depth", descending=[False, False, True, False])
        .collect()
    )
    marks, notes = found.select("process", "step", "start_ns"), _overlap_notes(found)
    without = threads.join(marks, on="process", how="anti")
    if without.is_empty():
        return marks, notes
    implied = (
        spans.join(without.lazy(), on="process", how="semi")
        .group_by("process", pl.max_horizontal("step", pl.lit(0, pl.Int32)))
        .agg(pl.col("start_ns").min())
        .sort("process", "start_ns")
        .collect()
    )
    marks = pl.concat([marks, implied.select(marks.columns)])
    sentence = (
        f"{without.height} of {threads.height} workers recorded no step spans: their steps are "
        "taken from the step numbers of other events; mark steps with tl.step(i)."
    )
    return marks, [*notes, Note(file="", sentence=sentence, kind="incomplete")]


def outer_spans(spans: pl.DataFrame) -> pl.DataFrame:
    """Drop spans wholly inside another one of their process; tell which of the others are cut.

    Args:
        spans: `process`, `start_ns` and `end_ns` (no nulls), sorted by these, the later end first.

    Returns:
        The rows that are kept, with all their columns and `cut`: whether the next one of the process
        begins before this one's end.
    """
    before = pl.col("end_ns").cum_max().shift(1).over("process")
    inside = (pl.col("start_ns") < before) & (pl.col("end_ns") <= before)
    following = pl.col("start_ns").shift(-1).over("process")
    return spans.filter(~inside.fill_null(value=False)).with_columns(
        cut=(following < pl.col("end_ns")).fill_null(value=False)
    )


def _overlap_notes(outer: pl.DataFrame) -> list[Note]:
    """Count the step spans that are cut, among all of the processes that have any."""
    counts = outer.group_by("process").agg(pl.len(), pl.col("cut").sum()).filter(pl.col("cut") > 0)
    if counts.is_empty():
        return []
    cut, spans = int(counts["cut"].sum()), int(counts["len"].sum())
    where = f"{fmt.count(spans, 'step span')} of {fmt.count(counts.height, 'process', 'processes')}"
    verbs = ("overlaps", "it is") if cut == 1 else ("overlap", "each is")
    sentence = (
        f"{cut:,} of {where} {verbs[0]} the next: {verbs[1]} taken to end where the next begins."
    )
    return [Note(file="", sentence=sentence, kind="incomplete")]


def _number(marks: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Keep step numbers if they rise in every process, else count steps from 0 in all."""
    marks = marks.sort("process", "start_ns")
    falls = (pl.col("step").diff() <= 0).over("process").fill_null(value=False)
    bad = marks.filter(falls | (pl.col("step") < 0))
    if bad.is_empty():
        return marks, []
    ordinal = pl.int_range(pl.len(), dtype=pl.Int32).over("process")
    sentence = (
        f"Step numbers repeat or fall in {bad['process'].n_unique()} processes (first at step "
        f"{bad['step'][0]}): steps are counted from 0 in order of time instead."
    )
    return marks.with_columns(step=ordinal), [Note(file="", sentence=sentence, kind="renumbered")]


def _cut_short(marks: pl.DataFrame, events: pl.DataFrame, ring: pl.Series) -> pl.DataFrame:
    """Add `left_ns`, the end of each step after which steps were left out as asked; else null."""
    gap = (pl.col("step").shift(-1) > pl.col("step") + 1).over("process")
    before = marks.sort("process", "start_ns").filter(gap & pl.col("process").is_in(ring.implode()))
    ends = (
        events.lazy()
        .filter((pl.col("type") == "span") & (pl.col("kind") == "step"))
        .join(before.lazy(), on=["process", "step"], how="semi")
        .group_by("process", "step")
        .agg(left_ns=pl.col("end_ns").max())
        .collect()
    )
    return marks.join(ends, on=["process", "step"], how="left")


def _windows(marks: pl.DataFrame, events: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    """Return process, step, start_ns, end_ns; windows of a process touch, but where it was cut short."""
    is_step = (pl.col("type") == "span") & (pl.col("kind") == "step")
    final = pl.col("start_ns") == pl.col("final_ns")
    begins = marks.lazy().group_by("process").agg(final_ns=pl.col("start_ns").max())
    last = (
        events.lazy()
        .join(threads.lazy(), on=["process", "thread"])
        .join(begins, on="process")
        .group_by("process")
        .agg(
            own_ns=pl.col("end_ns").filter(is_step, final).max(),
            event_ns=pl.max_horizontal("start_ns", "end_ns").max(),
        )
        .select("process", last_ns=pl.coalesce("own_ns", "event_ns"))
        .collect()
    )
    following = pl.col("start_ns").shift(-1).over("process")
    cut = pl.col("left_ns") if "left_ns" in marks.columns else pl.lit(None, pl.Int64)
    return (
        marks.join(last, on="process")
        .sort("process", "start_ns")
        .with_columns(end_ns=pl.min_horizontal(following.fill_null(pl.col("last_ns")), cut))
        .drop("last_ns")
        .select("process", "step", "start_ns", "end_ns")
    )


def _assign(
    events: pl.DataFrame,
    steps: pl.DataFrame,
    tracks: pl.DataFrame,
    threads: pl.DataFrame,
    *,
    everywhere: bool,
) -> pl.DataFrame:
    """Assign to events the step in whose window they start.

    Normally only those without a step, on training threads and in-flight tracks; `everywhere` when
    the recorded numbers have lost their meaning.
    """
    events = _in_order(events)
    row = events.lazy().select("process", "thread", "start_ns", "step").with_row_index("row")
    if everywhere:
        lost = row.join(steps.lazy().select("process").unique(), on="process", how="semi")
    else:
        flying = tracks.filter("in_flight").select("process", "thread")
        places = pl.concat([threads, flying]).lazy()
        without = row.filter(pl.col("step") < 0)
        lost = without.join(places, on=["process", "thread"], how="semi")
    rows = lost.select("row", "process", "start_ns").sort("row").collect()
    if rows.is_empty():
        return events
    windows = steps.select("process", "start_ns", found="step").sort("process", "start_ns")
    found = rows.join_asof(windows, on="start_ns", by="process", check_sortedness=False)["found"]
    return events.with_columns(events["step"].scatter(rows["row"], found.fill_null(-1)))


def _in_order(events: pl.DataFrame) -> pl.DataFrame:
    """Sort by process and time; as readers do so already, look first."""
    process, start = pl.col("process").diff(), pl.col("start_ns").diff()
    risen = (process > 0) | ((process == 0) & (start >= 0))
    if events.select(risen.drop_nulls().all()).item():
        return events
    return events.sort("process", "start_ns", "depth")


def _samples(steps: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    done = (
        events.lazy()
        .filter((pl.col("type") == "counter") & (pl.col("name") == SAMPLES))
        .group_by("process", "step")
        .agg(samples=pl.col("value").sum())
        .collect()
    )
    joined = steps.join(done, on=["process", "step"], how="left", maintain_order="left")
    return joined.with_columns(pl.col("samples").cast(pl.Float64))
