"""Reductions that are repeated within one update: gradients are accumulated, and summed up each time.

Where several micro-batches make one update, gradients need to be reduced once, after the last of them.
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

# ratio: with fewer passes of backprop for each update nothing is repeated [chosen]
MIN_PASSES_PER_UPDATE: Final = 1.8
MIN_UPDATES_TO_JUDGE: Final = 5  # updates: fewer are not judged [chosen]
# share of passes: reductions are repeated if as many passes have equally many calls [chosen]
MIN_SHARE_OF_PASSES_ALIKE: Final = 0.9
MIN_SAVING_OF_FEWER_REDUCTIONS: Final = 0.01  # of the job: less is not reported [policy]

_TRAINING: Final = ("forward", "backprop", "update")
_CODES: Final = {kind: code for code, kind in enumerate(_TRAINING)}
_READ: Final = ("type", "kind", "thread", "step", "start_ns")
_REDUCTIONS: Final = ("allreduce", "reduce_scatter")


@dataclass(frozen=True)
class Accumulation(DisplayMixin):
    """At most one finding."""

    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class _Passes:
    """Passes of backprop of one rank: their begins, and how many there are for each update."""

    begins_ns: Ints
    per_update: float


def run(facts: Facts) -> Accumulation:
    """Count the calls of each pass of backprop, and the passes for each update."""
    calls = facts.calls.filter(pl.col("op").is_in(_REDUCTIONS), pl.col("step") >= 0)
    passes = _find_passes(facts.trace)
    if calls.is_empty() or passes is None or passes.per_update < MIN_PASSES_PER_UPDATE:
        return Accumulation()
    ready_ns = np.sort(calls["ready_ns"].to_numpy())
    counts = np.diff(np.searchsorted(ready_ns, passes.begins_ns))
    usual = int(np.median(counts)) if len(counts) else 0
    if usual < 1 or np.mean(counts == usual) < MIN_SHARE_OF_PASSES_ALIKE:
        return Accumulation()
    return Accumulation(_price(facts, calls, usual, passes))


def _find_passes(trace: Trace) -> _Passes | None:
    """Return the passes of backprop of the first worker; None where there are none, or few updates."""
    workers = trace.workers.sort("rank")
    if workers.is_empty() or workers["training_thread"][0] is None:
        return None
    columns = trace.source.columns(int(workers["process"][0]), _READ)
    kind = columns.word("kind")
    is_training = columns.number("thread") == workers["training_thread"][0]
    rows = np.flatnonzero(columns.is_span & is_training & kind.among(_TRAINING))
    rows = rows[columns.number("step")[rows] >= 0]
    start_ns = columns.number("start_ns")[rows]
    spans = pl.DataFrame({"kind": kind.taken(rows).translated(_CODES, -1), "start_ns": start_ns})
    turns = spans.sort("start_ns").filter(pl.col("kind") != pl.col("kind").shift(1, fill_value=-1))
    begins_ns = turns.filter(kind=_CODES["backprop"])["start_ns"].to_numpy()
    updates = turns.filter(kind=_CODES["update"]).height
    if updates < MIN_UPDATES_TO_JUDGE:
        return None
    return _Passes(begins_ns, len(begins_ns) / updates)


def _price(facts: Facts, calls: pl.DataFrame, usual: int, passes: _Passes) -> tuple[Finding, ...]:
    """Price that only the last pass of each update is reduced."""
    job = max(job_ns(facts.trace), 1)
    by_step = calls.group_by("step").agg(pl.col("wire_ns").sum()).sort("step")
    steps = by_step["step"].to_numpy().astype(np.int64)
    left = 1 / passes.per_update
    lost_ns = by_step["wire_ns"].to_numpy() * (1 - left)
    names = calls["communicator"].cast(pl.String).unique().to_list()
    fix = TransferFix(steps, dict.fromkeys(names, np.full(len(steps), left)))
    price = price_faster_calls(facts.replay, fix, lost_ns)
    saving = float(price.saved_ns.sum()) / job
    if saving < MIN_SAVING_OF_FEWER_REDUCTIONS:
        return ()
    return (
        Finding.of(
            "repeated_reductions",
            {
                "calls": fmt.count(usual, "call"),
                "passes": f"{passes.per_update:.3g}",
            },
            saving=saving,
            interval=price.measure_interval(job),
            fix=price.fix,
            phase="reduction",
            pattern="persistent",
            evidence={"passes_per_update": passes.per_update, "calls_per_pass": usual},
        ),
    )
