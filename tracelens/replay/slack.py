"""How much later each rank could be without making the job longer.

A moment of the event graph (`model.py`) may come later by what all that follows it can spare: it is
asked backwards from the end of the run. A rank's slack in a step is that of the moment at which it first
meets others there: enters a collective, sends a message, or asks a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Floats
    from tracelens.replay.model import Model

__all__ = ["SLACK_COLUMNS", "measure_slack"]

SLACK_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "slack_ns": pl.Int64(),  # median over steps
    "least_slack_ns": pl.Int64(),
    "critical_steps": pl.Float64(),  # share of steps in which it can spare less than 1 % of a step
}
MAX_SLACK_IF_CRITICAL: Final = 0.01  # of a step: a step with no more slack is critical [chosen]


def measure_slack(models: Sequence[Model], step_ns: float) -> pl.DataFrame:
    """Return each rank's slack; empty where no rank meets another.

    Args:
        models: Parts of a run, with the same ranks.
        step_ns: How long the median step is.
    """
    if not models:
        return pl.DataFrame(schema=SLACK_COLUMNS)
    slack = np.concatenate([_measure_by_step(model) for model in models])
    meets = ~np.isnan(slack).all(axis=0)
    known = slack[:, meets]
    if not known.size:
        return pl.DataFrame(schema=SLACK_COLUMNS)
    is_critical = np.where(np.isnan(known), np.nan, known <= MAX_SLACK_IF_CRITICAL * step_ns)
    rows = {
        "rank": np.array(models[0].ranks)[meets],
        "slack_ns": np.nanmedian(known, axis=0).astype(np.int64),
        "least_slack_ns": np.nanmin(known, axis=0).astype(np.int64),
        "critical_steps": np.nanmean(is_critical, axis=0),
    }
    return pl.DataFrame(rows, schema=SLACK_COLUMNS).sort("rank")


def _measure_by_step(model: Model) -> Floats:
    """Return the slack of each rank where it first meets others, ns, [step, rank]; nan where nowhere."""
    threads = model.threads
    lasts = threads.begins[1:] - 1
    usual = model.usual
    latest = np.full(len(usual), np.inf)
    latest[lasts] = usual[lasts].max()
    spare = model.graph.play_backwards(latest, model.links.lag) - usual
    meets = np.isin(threads.sources, model.links.source[len(threads.sources) :])
    meets &= model.rows >= 0
    cell, first = np.unique(model.cells[meets], return_index=True)
    slack = np.full(len(threads) * len(model.steps), np.nan)
    slack[cell] = np.maximum(spare[threads.sources[meets][first]], 0.0)
    slack[~np.isfinite(slack)] = np.nan
    return slack.reshape(len(threads), -1).T
