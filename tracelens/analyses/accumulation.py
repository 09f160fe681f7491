"""Reductions that are repeated within one update: gradients are accumulated, and summed up each time.

DDP reduces after each backprop unless it is told not to (`no_sync`). So passes of backprop are counted
for each optimizer update, and the calls that become ready in each pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.phases import job_ns
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.replay.edits.fixes import TransferFix
from tracelens.replay.pricing import price_faster_calls

if TYPE_CHECKING:
    from tracelens.arrays import Ints
    from tracelens.facts import Facts
    from tracelens.model.trace import Trace

MIN_PASSES_PER_UPDATE: Final = 1.8  # ratio: with fewer passes nothing is repeated [chosen]
MIN_UPDATES_TO_JUDGE: Final = 5  # updates: fewer are not judged [chosen]
# share of passes: reductions are repeated if as many passes have equally many calls [chosen]
MIN_SHARE_OF_PASSES_ALIKE: Final = 0.9
MIN_SAVING_OF_FEWER_REDUCTIONS: Final = 0.01  # of the job: less is not reported [policy]

_TRAINING: Final = ("forward", "backprop", "update")
_CODES: Final = {kind: code for code, kind in enumerate(_TRAINING)}
_COLUMNS: Final = ("type", "kind", "thread", "step", "start_ns")
_REDUCTIONS: Final = ("allreduce", "reduce_scatter")


@dataclass(frozen=True)
class Accumulation(DisplayMixin):
    """At most one finding."""

    findings: tuple[Finding, ...] = ()


def run(facts: Facts) -> Accumulation:
    """Count the calls of each pass of backprop, and the passes for each update."""
    calls = facts.call_table.filter(pl.col("op").is_in(_REDUCTIONS), pl.col("step") >= 0)
    pass_begins_ns, update_count = _find_passes_and_updates(facts.trace)
    if calls.is_empty() or update_count < MIN_UPDATES_TO_JUDGE:
        return Accumulation()
    passes_per_update = len(pass_begins_ns) / update_count
    calls_before_pass = np.searchsorted(np.sort(calls["ready_ns"].to_numpy()), pass_begins_ns)
    call_counts = np.diff(calls_before_pass)  # of each pass but the last
    calls_per_pass = int(np.median(call_counts)) if len(call_counts) else 0
    is_regular = (
        calls_per_pass >= 1 and np.mean(call_counts == calls_per_pass) >= MIN_SHARE_OF_PASSES_ALIKE
    )
    if passes_per_update < MIN_PASSES_PER_UPDATE or not is_regular:
        return Accumulation()
    return Accumulation(_report(facts, calls, calls_per_pass, passes_per_update))


def _find_passes_and_updates(trace: Trace) -> tuple[Ints, int]:
    """Return when the first worker began backprop, ns, [pass], and how many updates it made."""
    workers = trace.workers.sort("rank")
    if workers.is_empty() or workers["training_thread"][0] is None:
        return np.zeros(0, np.int64), 0
    span_columns = trace.source.read_columns(int(workers["process"][0]), _COLUMNS)
    kind = span_columns.word_column("kind")
    is_training = span_columns.number_column("thread") == workers["training_thread"][0]
    rows = np.flatnonzero(span_columns.is_span & is_training & kind.is_in(_TRAINING))
    rows = rows[span_columns.number_column("step")[rows] >= 0]
    codes, start_ns = (
        kind.take(rows).translate(_CODES, otherwise=-1),
        span_columns.number_column("start_ns")[rows],
    )
    spans = pl.DataFrame({"kind": codes, "start_ns": start_ns}).sort("start_ns")
    first_spans = spans.filter(pl.col("kind") != pl.col("kind").shift(1, fill_value=-1))
    pass_begins_ns = first_spans.filter(kind=_CODES["backprop"])["start_ns"].to_numpy()
    return pass_begins_ns, first_spans.filter(kind=_CODES["update"]).height


def _report(
    facts: Facts, calls: pl.DataFrame, calls_per_pass: int, passes_per_update: float
) -> tuple[Finding, ...]:
    """Report what it saves to reduce only in the last pass of each update; `calls` has a row each."""
    run_ns = max(job_ns(facts.trace), 1)
    by_step = calls.group_by("step").agg(pl.col("wire_ns").sum()).sort("step")
    steps = by_step["step"].to_numpy().astype(np.int64)
    time_ratio = 1 / passes_per_update
    communicators = calls["communicator"].cast(pl.String).unique().to_list()
    fix = TransferFix(
        step_numbers=steps,
        ratios_by_carrier=dict.fromkeys(communicators, np.full(len(steps), time_ratio)),
    )
    lost_ns = by_step["wire_ns"].to_numpy() * (1 - time_ratio)
    price = price_faster_calls(facts.replay, fix, lost_ns)
    saving = float(price.saved_ns_by_step.sum()) / run_ns
    if saving < MIN_SAVING_OF_FEWER_REDUCTIONS:
        return ()
    return (
        Finding.of(
            "repeated_reductions",
            {"calls": fmt.count(calls_per_pass, "call"), "passes": f"{passes_per_update:.3g}"},
            saving=saving,
            interval=price.measure_interval(run_ns),
            fix=price.fix,
            phase="reduction",
            pattern="persistent",
            evidence={"passes_per_update": passes_per_update, "calls_per_pass": calls_per_pass},
        ),
    )
