"""Membership: ranks that join or leave while the job runs, as elastic launchers let them.

A rank has joined if its first step is a later one than that of the others and begins later, and has
left if its last step is an earlier one and ended earlier, both by more than a few steps, its recording
being whole. Restarts with another number of ranks are seen by the world size that processes report: a
rank of the job's earlier life alone has left, however its recording ended; one of both has not joined.
The process that stands for a rank left behind knows another world size, and was over before the first
process of the latest life had begun. Ranks that ended before the others, which formed no communicator
without them, had fewer batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.accounting.restarts import begun_again, left_behind
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding

if TYPE_CHECKING:
    from tracelens.accounting.early_ends import EarlyEnd
    from tracelens.facts import Facts
    from tracelens.model.trace import Trace

__all__ = ["EPOCH_COLUMNS", "Membership", "run"]


MAX_EPOCHS_SHOWN: Final = 64  # rows: a report shows no more [policy]
# steps, and their usual time: ranks that begin or end no further apart do so together [calibrate]
MAX_STEPS_APART: Final = 3
# steps: ranks that end training fewer before the others do so together with them [chosen]
MIN_FEWER_STEPS_IF_UNEVEN: Final = 4

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
    """See who was there when."""
    trace = facts.trace
    periods = _presence(trace, facts.roles.server)
    epochs = _epochs(periods)
    worlds = _worlds(trace)
    has_changed = len(worlds) > 1 or epochs["joined"].count() or _met_anew(trace, epochs)
    if has_changed and not periods.is_empty():
        return Membership(epochs, (_finding(periods, epochs, worlds),))
    early = facts.early_end
    if early and early.apart_ns > 0 and early.steps_fewer >= MIN_FEWER_STEPS_IF_UNEVEN:
        return Membership(epochs, (_uneven(early),))
    return Membership(epochs, (_finding(periods, epochs, worlds),) if epochs.height > 1 else ())


def _met_anew(trace: Trace, epochs: pl.DataFrame) -> bool:
    """Return whether ranks formed another communicator once others had left."""
    if epochs.height < 2:
        return False
    first = int(epochs["first_step"][1])
    steps = (grid.step[grid.step >= 0] for grid in trace.calls)
    return any(one.min() >= first for one in steps if len(one))


def _presence(trace: Trace, server: int | None) -> pl.DataFrame:
    """Return each rank's first and last step; those of the run where the rank's own say nothing."""
    known = {"truncated", "running", "incomplete", "unreadable", "dropped"}
    doubtful = [note.file for note in trace.notes if note.kind in known]
    whole = (
        pl.col("complete") & ~pl.col("file").is_in(doubtful) & (pl.col("dropped").fill_null(0) == 0)
    )
    length = pl.col("end_ns") - pl.col("start_ns")
    steps = trace.steps.group_by("process").agg(
        first=pl.col("step").min(),
        last=pl.col("step").max(),
        begun=pl.col("start_ns").min(),
        ended=pl.col("end_ns").max(),
        typical=length.median(),
    )
    most_ns = MAX_STEPS_APART * pl.col("typical").median()
    later = (pl.col("first") - pl.col("first").min() > MAX_STEPS_APART) & (
        pl.col("begun") - pl.col("begun").min() > most_ns
    )
    earlier = (pl.col("last").max() - pl.col("last") > MAX_STEPS_APART) & (
        pl.col("ended").max() - pl.col("ended") > most_ns
    )
    if server is not None:  # who has taken its last work is still there
        later = earlier = pl.lit(value=False)
    again, behind = (pl.col("process").is_in(of(trace)) for of in (begun_again, left_behind))
    joined = later & whole & ~again
    left = earlier & (whole | behind)
    return (
        trace.workers.join(steps, on="process", how="inner")
        .select(
            "rank",
            first=pl.when(joined).then("first").otherwise(pl.col("first").min()),
            last=pl.when(left).then("last").otherwise(pl.col("last").max()),
        )
        .sort("rank")
    )


def _epochs(periods: pl.DataFrame) -> pl.DataFrame:
    begins = sorted(
        {*periods["first"].to_list(), *(last + 1 for last in periods["last"].to_list())}
    )
    rows: list[tuple[int, int, int, str | None, str | None]] = []
    for first, following in pairwise(begins):
        there = periods.filter((pl.col("first") <= first) & (pl.col("last") >= first)).height
        joined = periods.filter(pl.col("first") == first)["rank"].to_list() if rows else []
        left = periods.filter(pl.col("last") == first - 1)["rank"].to_list()
        rows.append((first, following - 1, there, _named(joined), _named(left)))
    return pl.DataFrame(rows, schema=EPOCH_COLUMNS, orient="row")


def _worlds(trace: Trace) -> list[int]:
    """Return the numbers of ranks that processes report, in the order in which they came."""
    workers = trace.processes.filter((pl.col("role") == "worker") & (pl.col("world") > 0))
    return workers.sort("incarnation", "first_ns")["world"].unique(maintain_order=True).to_list()


def _named(ranks: list[int]) -> str | None:
    return fmt.listing("rank", ranks) if ranks else None


def _finding(periods: pl.DataFrame, epochs: pl.DataFrame, worlds: list[int]) -> Finding:
    changes = epochs[1:]
    lasting = pl.col("first").eq(pl.col("first").min()) & pl.col("last").eq(pl.col("last").max())
    ranks = periods.filter(~lasting)["rank"].to_list()
    counts = epochs["ranks"].to_list()
    changed = [*_changes(changes)]
    if len(worlds) > 1:
        changed.append(f"processes report worlds of {', then '.join(map(str, worlds))} ranks")
    steps = (int(changes["first_step"][0]), int(changes["first_step"][-1])) if ranks else None
    return Finding.of(
        "world_change",
        {"changes": "; ".join(changed)},
        ranks=tuple(ranks),
        steps=steps,
        evidence={"ranks_by_epoch": counts, "worlds": worlds},
    )


def _uneven(early: EarlyEnd) -> Finding:
    """Report ranks that ended training before the others, in a job whose ranks are always the same."""
    return Finding.of(
        "uneven_inputs",
        {
            "who": fmt.capital(fmt.listing("rank", early.ranks)),
            "last": str(early.last_step),
            "end": str(early.others_step),
        },
        ranks=early.ranks,
        steps=(early.last_step + 1, early.others_step),
        evidence={"ended_early": list(early.ranks)},
    )


def _changes(changes: pl.DataFrame) -> list[str]:
    """Return each change in words, with how many ranks there are then."""
    listed = []
    for row in changes.head(fmt.MOST_LISTED).iter_rows(named=True):
        parts = []
        if row["left"]:
            parts.append(f"{row['left']} left after step {row['first_step'] - 1}")
        if row["joined"]:
            parts.append(f"{row['joined']} joined in step {row['first_step']}")
        listed.append(f"{', '.join(parts)} ({fmt.count(row['ranks'], 'rank')} then)")
    more = changes.height - fmt.MOST_LISTED
    return listed if more <= 0 else [*listed, f"and {more} more changes"]
