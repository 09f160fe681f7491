"""What became of a job's wall time: a bar per attempt, from its launch to its last exit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.accounting.life.ledger import USES, name_uses
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import Drawing, bars, empty, figure

if TYPE_CHECKING:
    from tracelens_dashboard.theme import Theme

NO_LIFE: Final = "TraceLens did not record this run from its begin to its end."
# The uses of an attempt in the order in which most of them happen.
_IN_ORDER: Final = (
    *(
        "start_up",
        "data_preparation",
        "first_step",
        "kept",
        "slow_steps",
        "repeated",
        "failed_step",
    ),
    *("checkpoint", "evaluation", "hanging", "shut_down", "dead"),
)
USE_COLUMNS: Final[quantity.Columns] = {
    "attempt": "attempt",
    "use": ("use", USES.__getitem__),
    "time (ms)": ("ns", quantity.milliseconds(digits=1)),
    "% of the wall time": ("share", quantity.rounded(digits=2, factor=0.01)),
}


def by_attempt(uses: pl.DataFrame, attempt_rows: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw what each attempt's time was used for, one bar after the other.

    `uses` has one row per attempt and use (`USE_COLUMNS`), with its time and its share of the
    job's. `attempt_rows` has a row per attempt, with its number of kept steps, null if unknown.
    Attempts follow each other on the axis; so do the uses of one, in the usual order.
    """
    if uses.is_empty():
        return empty(theme, NO_LIFE)
    attempts = uses.group_by("attempt", maintain_order=True).agg(pl.col("ns").sum())
    end_ns_by_attempt = dict(zip(attempts["attempt"], attempts["ns"].cum_sum(), strict=True))
    next_begin_ns = {attempt: end_ns_by_attempt[attempt] - ns for attempt, ns in attempts.rows()}
    wall_ns = int(uses["ns"].sum())
    colour_by_use = _choose_colours(theme)
    traces = []
    for use in _IN_ORDER:
        use_rows = uses.filter(pl.col("use") == use)
        begins_ns = [next_begin_ns[attempt] for attempt in use_rows["attempt"]]
        for attempt, ns in use_rows.select("attempt", "ns").rows():
            next_begin_ns[attempt] += ns
        labels = [f"attempt {attempt}" for attempt in use_rows["attempt"]]
        hover_texts = [
            f"{text.duration(ns)}, {text.percent(share)} of the wall time"
            for ns, share in use_rows.select("ns", "share").rows()
        ]
        lengths_ns, hover = use_rows["ns"].to_list(), f"%{{y}}, {USES[use]}: %{{customdata}}"
        options: dict[str, Any] = {"base": begins_ns, "customdata": hover_texts, "name": USES[use]}
        traces.append(bars(labels, lengths_ns, colour_by_use[use], hover, **options))
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
    return Drawing(
        plot, _describe_uses(uses, attempt_rows), lambda: quantity.tabulate(uses, USE_COLUMNS)
    )


def _describe_uses(uses: pl.DataFrame, attempt_rows: pl.DataFrame) -> str:
    """Return the share of the wall time in kept steps, and the four largest other uses."""
    # `uses` has one row per attempt and use, with its time (`ns`) and its share of the job's;
    # `attempt_rows` has one row per attempt, with its number of kept steps, null if unknown.
    is_kept_known = not attempt_rows["kept_steps"].null_count()
    at_least = "" if is_kept_known else "at least "
    share_by_use = uses.group_by("use").agg(pl.col("share").sum()).sort("share", descending=True)
    kept_share = float(share_by_use.filter(pl.col("use") == "kept")["share"].sum())
    other_uses = name_uses(dict(share_by_use.rows()), is_kept_known=is_kept_known)
    wall_text = text.duration(int(uses["ns"].sum()))
    largest = ", ".join(other_uses[:4])
    return f"Of {wall_text}, {at_least}{text.percent(kept_share)} were steps that were kept; {largest}."


def _choose_colours(theme: Theme) -> dict[str, str]:
    return {
        "kept": theme.faster_colour,
        "repeated": theme.slower_colour,
        "failed_step": theme.series_colours[2],
        "slow_steps": theme.ramp_colours[3],
        "first_step": theme.series_colours[0],
        "checkpoint": theme.series_colours[5],
        "evaluation": theme.series_colours[3],
        "data_preparation": theme.series_colours[1],
        "start_up": theme.accent_colour,
        "hanging": theme.loss_colour,
        "shut_down": theme.quiet_colour,
        "dead": theme.grid_colour,
    }
