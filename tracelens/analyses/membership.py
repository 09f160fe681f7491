"""Membership: ranks that join or leave while the job runs, as elastic launchers let them.

A rank has joined, or left, if it begins later, or ends earlier, than the others by more than a few
steps, its recording being complete. Another number of ranks in a later attempt is no such change: the
trace is about the last attempt, and the job's life tells of the others
(docs/analyses/integrity-and-membership.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.accounting.restarts import find_restarted
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding

if TYPE_CHECKING:
    from tracelens.accounting.early_ends import EarlyEnd
    from tracelens.facts import Facts
    from tracelens.model.trace import Trace

MAX_EPOCHS_SHOWN: Final = 64  # rows: a report shows no more [policy]
# steps, and their usual time: ranks that begin or end no further apart do so together [calibrate]
MAX_STEPS_APART: Final = 3
# steps: ranks that end fewer steps before the others end together with them [chosen]
MIN_FEWER_STEPS_IF_UNEVEN: Final = 4

_DOUBTFUL: Final = frozenset({"truncated", "running", "incomplete", "unreadable", "dropped"})
EPOCH_COLUMNS: Final[dict[str, pl.DataType]] = {
    "first_step": pl.Int32(),
    "last_step": pl.Int32(),
    "ranks": pl.Int32(),  # how many are there
    "joined": pl.String(),  # at its begin; null = none
    "left": pl.String(),  # before its begin
}


@dataclass(frozen=True, eq=False)
class Membership(DisplayMixin):
    """`epochs` divides the run by membership: one row where no rank joins or leaves."""

    epochs: pl.DataFrame
    findings: tuple[Finding, ...]

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """What a report shows."""
        return {"epochs": self.epochs.head(MAX_EPOCHS_SHOWN)}


def run(facts: Facts) -> Membership:
    """Find when each rank was there."""
    trace = facts.trace
    presence = _find_presence(trace, facts.roles.server_rank)
    epochs = _divide_into_epochs(presence)
    workers = trace.workers.filter(pl.col("world") > 0)
    worlds = workers.sort("incarnation", "first_ns")["world"].unique(maintain_order=True).to_list()
    has_change = len(worlds) > 1 or epochs["joined"].count() or _has_regrouped(trace, epochs)
    if has_change and not presence.is_empty():
        return Membership(epochs, (_report_change(presence, epochs, worlds),))
    early_end = facts.early_end
    if (
        early_end
        and early_end.gap_ns > 0
        and early_end.missing_step_count >= MIN_FEWER_STEPS_IF_UNEVEN
    ):
        return Membership(epochs, (_report_uneven(early_end),))
    if epochs.height > 1:
        return Membership(epochs, (_report_change(presence, epochs, worlds),))
    return Membership(epochs, findings=())


def _has_regrouped(trace: Trace, epochs: pl.DataFrame) -> bool:
    """Return True if ranks formed another communicator once others had left."""
    if epochs.height < 2:
        return False
    first_step = int(epochs["first_step"][1])
    steps_by_group = (grid.step[grid.step >= 0] for grid in trace.calls)
    return any(steps.min() >= first_step for steps in steps_by_group if len(steps))


def _find_presence(trace: Trace, server: int | None) -> pl.DataFrame:
    """Return a row a rank with its `first` and `last` step; the run's where its own say nothing."""
    incomplete_files = [note.file for note in trace.notes if note.kind in _DOUBTFUL]
    has_no_loss = ~pl.col("file").is_in(incomplete_files) & (pl.col("dropped").fill_null(0) == 0)
    is_whole = pl.col("complete") & has_no_loss
    steps = trace.steps.group_by("process").agg(
        first=pl.col("step").min(),
        last=pl.col("step").max(),
        begin_ns=pl.col("start_ns").min(),
        end_ns=pl.col("end_ns").max(),
        length_ns=(pl.col("end_ns") - pl.col("start_ns")).median(),
    )
    max_apart_ns = MAX_STEPS_APART * pl.col("length_ns").median()
    begins_later = (pl.col("first") - pl.col("first").min() > MAX_STEPS_APART) & (
        pl.col("begin_ns") - pl.col("begin_ns").min() > max_apart_ns
    )
    ends_earlier = (pl.col("last").max() - pl.col("last") > MAX_STEPS_APART) & (
        pl.col("end_ns").max() - pl.col("end_ns") > max_apart_ns
    )
    if server is not None:  # a worker that has taken its last work is still there
        begins_later = ends_earlier = pl.lit(value=False)
    was_restarted = pl.col("process").is_in(find_restarted(trace))
    has_joined = begins_later & is_whole & ~was_restarted
    has_left = ends_earlier & is_whole
    return (
        trace.workers.join(steps, on="process", how="inner")
        .select(
            "rank",
            first=pl.when(has_joined).then("first").otherwise(pl.col("first").min()),
            last=pl.when(has_left).then("last").otherwise(pl.col("last").max()),
        )
        .sort("rank")
    )


def _divide_into_epochs(presence: pl.DataFrame) -> pl.DataFrame:
    """Divide the run where ranks, a row each, join or leave, in `EPOCH_COLUMNS`."""
    steps_after_last = [step + 1 for step in presence["last"].to_list()]
    first_steps = sorted({*presence["first"].to_list(), *steps_after_last})
    epochs: list[tuple[int, int, int, str | None, str | None]] = []
    for first_step, next_step in pairwise(first_steps):
        present_count = presence.filter(
            (pl.col("first") <= first_step) & (pl.col("last") >= first_step)
        ).height
        joined = presence.filter(pl.col("first") == first_step)["rank"].to_list() if epochs else []
        left = presence.filter(pl.col("last") == first_step - 1)["rank"].to_list()
        texts = (fmt.listing("rank", ranks) if ranks else None for ranks in (joined, left))
        epochs.append((first_step, next_step - 1, present_count, *texts))
    return pl.DataFrame(epochs, schema=EPOCH_COLUMNS, orient="row")


def _report_change(presence: pl.DataFrame, epochs: pl.DataFrame, worlds: list[int]) -> Finding:
    """Report ranks that join or leave; `worlds` are the numbers of ranks that processes report.

    `presence` has a row per rank, with its first and last step; `epochs` has rows in `EPOCH_COLUMNS`.
    """
    first, last = pl.col("first"), pl.col("last")
    is_always_there = first.eq(first.min()) & last.eq(last.max())
    ranks = presence.filter(~is_always_there)["rank"].to_list()
    change_steps = epochs["first_step"][1:]
    changes = _describe_changes(epochs[1:])
    if len(worlds) > 1:
        changes.append(f"processes report worlds of {', then '.join(map(str, worlds))} ranks")
    return Finding.of(
        "world_change",
        {"changes": "; ".join(changes)},
        ranks=tuple(ranks),
        steps=(int(change_steps[0]), int(change_steps[-1])) if ranks else None,
        evidence={"ranks_by_epoch": epochs["ranks"].to_list(), "worlds": worlds},
    )


def _report_uneven(early: EarlyEnd) -> Finding:
    """Report ranks that ended training before the others, in a job whose ranks are always the same."""
    return Finding.of(
        "uneven_inputs",
        {
            "who": fmt.capital(fmt.listing("rank", early.ranks)),
            "last": str(early.last_step),
            "end": str(early.others_last_step),
            "join": (
                f" {'It' if len(early.ranks) == 1 else 'They'} took part in the others' collectives "
                "until then (Join)."
                if early.has_joined_later_calls
                else ""
            ),
        },
        ranks=early.ranks,
        steps=(early.last_step + 1, early.others_last_step),
        evidence={"ended_early": list(early.ranks), "joins_on": early.has_joined_later_calls},
    )


def _describe_changes(epochs: pl.DataFrame) -> list[str]:
    """Describe the change at the begin of each epoch, a row each, with how many ranks there are then."""
    changes = []
    for epoch in epochs.head(fmt.MOST_LISTED).iter_rows(named=True):
        clauses = []
        if epoch["left"]:
            clauses.append(f"{epoch['left']} left after step {epoch['first_step'] - 1}")
        if epoch["joined"]:
            clauses.append(f"{epoch['joined']} joined in step {epoch['first_step']}")
        changes.append(f"{', '.join(clauses)} ({fmt.count(epoch['ranks'], 'rank')} then)")
    unlisted_count = epochs.height - fmt.MOST_LISTED
    return [*changes, *([f"and {unlisted_count} more changes"] if unlisted_count > 0 else [])]
