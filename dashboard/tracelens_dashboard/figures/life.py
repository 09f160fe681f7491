"""What became of a job's wall time: a bar per attempt, from its launch to its last exit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.accounting.life.ledger import USES
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import Drawing, bars, empty, figure

if TYPE_CHECKING:
    from tracelens_dashboard.theme import Theme

NO_LIFE: Final = "TraceLens did not record this run from its begin to its end."
# The uses of an attempt in the order in which most of them happen.
_IN_ORDER: Final = (
    *("start_up", "data_preparation", "first_step", "kept", "slow_steps", "repeated"),
    *("checkpoint", "evaluation", "hanging", "shut_down", "dead"),
)
USE_COLUMNS: Final[quantity.Columns] = {
    "attempt": "attempt",
    "use": ("use", USES.__getitem__),
    "time (ms)": ("ns", quantity.milliseconds(1)),
    "% of the wall time": ("share", quantity.rounded(2, 0.01)),
}


def by_attempt(uses: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the uses of each attempt's time; `uses` as in `LIFE_COLUMNS`.

    A bar begins where the one before it ended. Within a bar times of one use are drawn together.
    """
    if uses.is_empty():
        return empty(theme, NO_LIFE)
    attempts = uses.group_by("attempt", maintain_order=True).agg(pl.col("ns").sum())
    ends_ns = dict(zip(attempts["attempt"], attempts["ns"].cum_sum(), strict=True))
    reached_ns = {
        attempt: ends_ns[attempt] - ns for attempt, ns in attempts.select("attempt", "ns").rows()
    }
    wall_ns = int(uses["ns"].sum())
    colours = _choose_colours(theme)
    traces = []
    for use in _IN_ORDER:
        rows = uses.filter(pl.col("use") == use)
        begins_ns = [reached_ns[attempt] for attempt in rows["attempt"]]
        for attempt, ns in rows.select("attempt", "ns").rows():
            reached_ns[attempt] += ns
        labels = [f"attempt {attempt}" for attempt in rows["attempt"]]
        hover = [
            f"{text.duration(ns)}, {text.percent(share)} of the wall time"
            for ns, share in rows.select("ns", "share").rows()
        ]
        traces.append(
            bars(
                labels,
                rows["ns"].to_list(),
                colours[use],
                f"%{{y}}, {USES[use]}: %{{customdata}}",
                base=begins_ns,
                customdata=hover,
                name=USES[use],
            )
        )
    time_axis = axes.durations(wall_ns) | {"range": [0, wall_ns], "fixedrange": True}
    plot = figure(
        theme,
        *[trace for trace in traces if len(trace.x)],
        xaxis=time_axis,
        yaxis=axes.rows_downwards(theme) | {"type": "category"},
        barmode="overlay",
        bargap=0.3,
        **axes.LEGEND,
    )
    return Drawing(plot, _describe(uses), lambda: quantity.tabulate(uses, USE_COLUMNS))


def _describe(uses: pl.DataFrame) -> str:
    sums = uses.group_by("use").agg(pl.col("share").sum()).sort("share", descending=True)
    kept_share = float(sums.filter(pl.col("use") == "kept")["share"].sum())
    others = [f"{text.percent(share)} {USES[use]}" for use, share in sums.rows() if use != "kept"]
    wall = text.duration(int(uses["ns"].sum()))
    return (
        f"Of {wall}, {text.percent(kept_share)} were steps that were kept; {', '.join(others[:4])}."
    )


def _choose_colours(theme: Theme) -> dict[str, str]:
    return {
        "kept": theme.faster,
        "repeated": theme.slower,
        "slow_steps": theme.ramp[3],
        "first_step": theme.series[0],
        "checkpoint": theme.categories["checkpoint"],
        "evaluation": theme.series[3],
        "data_preparation": theme.categories["data"],
        "start_up": theme.accent,
        "hanging": theme.loss,
        "shut_down": theme.quiet,
        "dead": theme.categories["idle"],
    }
