"""How much later each rank could be without making the job longer.

An event may occur later by what all that follows it can spare: the graph is replayed backwards from the
end of the run. A rank's slack in a step is that of the event at which it first meets others there:
enters a collective, sends a message, or asks a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.stats.robust import medians

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.arrays import Floats
    from tracelens.replay.event_graph import EventGraph

__all__ = ["SLACK_COLUMNS", "measure_slack"]

SLACK_COLUMNS: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "slack_ns": pl.Int64(),  # median over steps
    "least_slack_ns": pl.Int64(),
    "critical_steps": pl.Float64(),  # share of steps in which it can spare less than 1 % of a step
}
MAX_SLACK_IF_CRITICAL: Final = 0.01  # of a step: a step with no more slack is critical [chosen]


def measure_slack(graphs: Sequence[EventGraph], step_ns: float) -> pl.DataFrame:
    """Return each rank's slack in windows of a run with steps of `step_ns`; empty if no ranks meet.

    Slack is how much later a rank may first meet others in a step without delaying the end of the
    graph.
    """
    if not graphs:
        return pl.DataFrame(schema=SLACK_COLUMNS)
    slack_ns = np.concatenate([*map(_measure_by_step, graphs)])
    has_slack = ~np.isnan(slack_ns).all(axis=0)
    slack_ns = slack_ns[:, has_slack]
    if not slack_ns.size:
        return pl.DataFrame(schema=SLACK_COLUMNS)
    is_critical = slack_ns <= MAX_SLACK_IF_CRITICAL * step_ns
    columns = {
        "rank": np.array(graphs[0].ranks)[has_slack],
        "slack_ns": medians(slack_ns, 0).astype(np.int64),
        "least_slack_ns": np.nanmin(slack_ns, axis=0).astype(np.int64),
        "critical_steps": np.nanmean(np.where(np.isnan(slack_ns), np.nan, is_critical), axis=0),
    }
    return pl.DataFrame(columns, schema=SLACK_COLUMNS).sort("rank")


def _measure_by_step(graph: EventGraph) -> Floats:
    """Return the slack of each rank where it first meets others, ns, [step, rank]; nan where nowhere."""
    threads, times_ns = graph.threads, graph.baseline_times_ns
    last_events = threads.first_events[1:] - 1
    latest_ns = np.full(len(times_ns), np.inf)  # when each event may occur at the latest, [event]
    latest_ns[last_events] = times_ns[last_events].max()
    latest_ns = graph.layered_graph.replay_backwards(latest_ns, graph.edges.lag_ns)
    other_sources = graph.edges.source_events[
        len(threads.interval_begin_events) :
    ]  # of edges to others
    meets_others = np.isin(threads.interval_begin_events, other_sources)
    meets_others &= graph.interval_step_rows >= 0  # [interval of a thread]
    cell, first = np.unique(graph.interval_cells[meets_others], return_index=True)
    first_event = threads.interval_begin_events[meets_others][first]
    slack_ns = np.full(threads.worker_count * len(graph.step_numbers), np.nan)  # [worker * step]
    slack_ns[cell] = np.maximum(latest_ns[first_event] - times_ns[first_event], 0.0)
    slack_ns[~np.isfinite(slack_ns)] = np.nan
    return slack_ns.reshape(threads.worker_count, -1).T
