"""What is asked of verdicts, and whether the results reach it: one line a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.labelled.intervals import exact
from benchmarks.labelled.kinds import KINDS
from benchmarks.labelled.setting import TUNED_FAMILY
from benchmarks.published import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    Row = dict[str, Any]
    Line = tuple[str, str, str, bool]

ALARMS: Final = 0.01  # of healthy runs
RECALL: Final = {0.03: {8: 0.45, 64: 0.5, 512: 0.65}, 0.05: 0.97, 0.10: 1.0}  # lognormal noise
PRECISION: Final = 0.99
BLOCK: Final = 16  # of 1000 steps
COVERED: Final = 0.95  # of the hosts
ASKED: Final = 0.95  # of the runs of every kind and cell are judged rightly


def targets(results: dict[str, Any]) -> str:
    """Return the table of targets that the results speak of."""
    parts = {"healthy": _alarms, "recall": _recall, "clocks": _clocks, "kinds": _kinds}
    lines = [line for name, of in parts.items() for line in of(results.get(name, []))]
    body = [(what, asked, found, "yes" if good else "**no**") for what, asked, found, good in lines]
    return table("What is asked, and what is reached", ("what", "asked", "found", "reached"), body)


def worst_of(rows: list[Row]) -> dict[str, float]:
    """Return how often each kind of run is judged rightly in its worst cell."""
    not_asked = {kind.name for kind in KINDS if not kind.asked}
    worst_shares: dict[str, float] = {}
    for row in rows:
        if row["kind"] not in not_asked:
            worst_shares[row["kind"]] = min(worst_shares.get(row["kind"], 1.0), row["right"])
    return worst_shares


def _alarms(rows: list[Row]) -> Iterator[Line]:
    for level in dict.fromkeys(row["level"] for row in rows):
        mine = [row for row in rows if row["level"] == level]
        runs, alarms = sum(row["runs"] for row in mine), sum(row["alarms"] for row in mine)
        low, high = exact(alarms, runs)
        found = f"{alarms} of {runs} ({100 * low:.2f} to {100 * high:.2f} %)"
        what = f"healthy runs of 1000 steps that accuse somebody, {level} noise"
        yield what, f"{ALARMS:.0%} at most", found, alarms <= ALARMS * runs


def _recall(rows: list[Row]) -> Iterator[Line]:
    for row in rows:
        target = RECALL.get(row["slowdown"])
        if target is None or row["family"] != TUNED_FAMILY:
            continue
        bound = target[row["ranks"]] if isinstance(target, dict) else target
        what = f"one of {row['ranks']} ranks slowed by {row['slowdown']:.0%} is found"
        yield what, f"{bound:.0%}", f"{row['recall']:.1%}", row["recall"] >= bound
        if row["slowdown"] > min(RECALL) and row["onset_p90_steps"] is not None:
            onset = row["onset_p90_steps"]
            yield "... its onset, 90 % of the runs", f"{BLOCK} steps", f"{onset:g}", onset <= BLOCK
    judged = [row["precision"] for row in rows if row["precision"] is not None]
    if judged:
        bound = min(judged)
        yield "precision, worst cell", f"{PRECISION:.0%}", f"{bound:.1%}", bound >= PRECISION


def _clocks(rows: list[Row]) -> Iterator[Line]:
    for row in rows:
        label = f"clocks: {row['situation']}"
        if row["target_us"] is not None:
            is_good = row["p99_us"] <= row["target_us"]
            yield label, f"p99 {row['target_us']:g} us", f"{row['p99_us']:g} us", is_good
        else:
            found, is_good = f"{row['covered']:.1%} of the hosts", row["covered"] >= COVERED
            yield label, f"error within what is stated, {COVERED:.0%}", found, is_good
        if row["jump_steps"] is not None:
            jump = row["jump_steps"]
            yield "... where, worst run", "within its step", f"{jump:g} steps off", jump < 1


def _kinds(rows: list[Row]) -> Iterator[Line]:
    if not rows:
        return
    worst_shares = worst_of(rows)
    reached = sum(share >= ASKED for share in worst_shares.values())
    label = "kinds of run whose verdicts are right in 95 % of the runs of every cell"
    yield label, str(len(worst_shares)), str(reached), reached == len(worst_shares)
    priced = [row for row in rows if row.get("saving_right") is not None]
    close = sum(row["saving_right"] >= ASKED for row in priced)
    if priced:
        label = "cells in which 95 % of the savings are right"
        yield label, str(len(priced)), str(close), close == len(priced)
