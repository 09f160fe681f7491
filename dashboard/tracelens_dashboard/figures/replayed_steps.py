"""A step replayed as it was, and below it with edits; and what every single edit would save."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, drawing, quantity
from tracelens_dashboard.figures.drawing import Drawing, Rows, bars, empty, figure, intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plotly import graph_objects as go

    from tracelens.arrays import Flags
    from tracelens.replay.stretches import Stretches
    from tracelens.replay.whatif import WhatIf
    from tracelens_dashboard.theme import Theme

MOST_ROWS: Final = 12
MOST_EDITS: Final = 14
AS_IT_WAS, WITH_EDITS = "as it was", "with the edits"
WORK, WAIT = "own work", "waiting or communicating"
NO_EDIT: Final = "No single edit that is known would make the steps shorter by 0.1 %."
PHASE_EDIT: Final = "phase:"
LEAST_SAVING: Final = 0.001  # of the step
PANEL_DOMAINS: Final = ((0.54, 1.0), (0.0, 0.46))  # shares of the plot's height


def steps(
    before_and_after: tuple[Stretches, Stretches], step: int, ranks: Sequence[int], theme: Theme
) -> Drawing:
    """Draw ranks in a step as it was and with edits; time counts from the end of the step before."""
    # Stretches are what each rank does one after the other: work, or waiting and communicating.
    # They begin before 0 on ranks that were done earlier.
    ends_ns = [float(stretches.end_ns.max(initial=0.0)) for stretches in before_and_after]
    traces = [
        _stretch_bars(stretches, panel, activity, ranks, theme)
        for panel, stretches in enumerate(before_and_after)
        for activity in (WORK, WAIT)
    ]
    begin_ns = min(float(stretches.begin_ns.min(initial=0.0)) for stretches in before_and_after)
    end_ns = max(ends_ns)
    time_axis = axes.durations(end_ns) | {"range": [begin_ns, end_ns * 1.02], "anchor": "y2"}
    labels = [f"rank {rank} " for rank in ranks]
    category_axis = {"type": "category", "categoryorder": "array", "categoryarray": labels}
    row_axis = axes.rows_of(len(labels), theme, showgrid=False) | category_axis
    names_and_ends = zip((AS_IT_WAS, WITH_EDITS), ends_ns, strict=True)
    plot = figure(
        theme,
        *traces,
        barmode="overlay",
        bargap=0.25,
        xaxis=time_axis,
        yaxis=row_axis | {"domain": list(PANEL_DOMAINS[0])},
        yaxis2=row_axis | {"domain": list(PANEL_DOMAINS[1])},
        showlegend=True,
        legend={"x": 1, "xanchor": "right"},
        shapes=[_end_line(ns, panel, theme) for panel, ns in enumerate(ends_ns)],
        annotations=[
            _panel_title(f"{name}: {text.duration(ns)}", panel, theme)
            for panel, (name, ns) in enumerate(names_and_ends)
        ],
        margin={"l": 8, "r": 12, "t": 34, "b": 8},
    )
    summary = (
        f"Step {step} on {text.count(len(ranks), 'rank')}: {text.duration(ends_ns[0])} as it was, "
        f"{text.duration(ends_ns[1])} with the edits."
    )
    return Drawing(plot, summary, _times_of_ranks(before_and_after, ranks))


def _is_activity(stretches: Stretches, activity: str) -> Flags:
    """Return a mask, [stretch], of those that are own work (`WORK`), or waiting (`WAIT`)."""
    return np.asarray(stretches.is_work == (activity == WORK))


def _stretch_bars(
    stretches: Stretches, panel_index: int, activity: str, ranks: Sequence[int], theme: Theme
) -> go.Bar:
    """Draw the stretches of one activity, work or waiting, of some ranks, in one panel."""
    is_drawn = _is_activity(stretches, activity) & np.isin(stretches.rank, list(ranks))
    begins_ns, stretch_ranks = stretches.begin_ns[is_drawn], stretches.rank[is_drawn]
    lengths_ns = stretches.end_ns[is_drawn] - begins_ns
    return bars(
        [f"rank {rank} " for rank in stretch_ranks.tolist()],
        lengths_ns,
        theme.accent_colour if activity == WORK else theme.colour_by_category["wait"],
        f"%{{y}}{activity}: %{{customdata}}",
        name=activity,
        legendgroup=activity,
        showlegend=panel_index == 0,
        base=begins_ns,
        yaxis="y" if panel_index == 0 else "y2",
        customdata=[text.duration(ns) for ns in lengths_ns.tolist()],
    )


def _end_line(end_ns: float, panel: int, theme: Theme) -> dict[str, Any]:
    """Return the line at which a step is over, through one panel."""
    line = {"color": theme.text_colour, "width": 1, "dash": "dot"}
    return drawing.vertical_line(end_ns, line, PANEL_DOMAINS[panel])


def _panel_title(title: str, panel: int, theme: Theme) -> dict[str, Any]:
    corner = {"x": 0, "xanchor": "left", "y": PANEL_DOMAINS[panel][1], "yanchor": "bottom"}
    return drawing.label(title, theme.secondary_colour, corner, size=12, xref="paper", yref="paper")


def _times_of_ranks(before_and_after: tuple[Stretches, Stretches], ranks: Sequence[int]) -> Rows:
    """List for each rank how long it works and waits in the step, as it was and with edits."""
    # A stretch is of a rank, from its begin to its end, and work or not; all are [stretch].
    rows: Rows = [{"rank": rank} for rank in ranks]
    for name, stretches in zip((AS_IT_WAS, WITH_EDITS), before_and_after, strict=True):
        lengths_ns = stretches.end_ns - stretches.begin_ns
        for activity in (WORK, WAIT):
            is_active = _is_activity(stretches, activity)
            for row in rows:
                spent_ns = lengths_ns[is_active & (stretches.rank == row["rank"])].sum()
                row[f"{activity}, {name}"] = quantity.time(float(spent_ns))
    return rows


def savings(whatif: WhatIf, theme: Theme) -> Drawing:
    """Draw the share of the mean step that each edit alone would save, with 95 % intervals."""
    # An answer has its edits, their saving (a share), and the mean step before and after.
    answers = [answer for answer in whatif.answers if answer.saving >= LEAST_SAVING]
    if not answers:
        return empty(theme, NO_EDIT)
    drawn_answers = answers[:MOST_EDITS]
    labels = [text.escape_name(" + ".join(answer.edits) + " ") for answer in drawn_answers]
    saving_shares = np.array([answer.saving for answer in drawn_answers])
    low_shares, high_shares = np.array([answer.interval for answer in drawn_answers]).T
    low_shares = np.minimum(low_shares, saving_shares)
    high_shares = np.maximum(high_shares, saving_shares)
    trace = bars(
        labels,
        saving_shares,
        theme.faster_colour,
        "%{y}%{customdata[1]} less, %{customdata[2]} a step",
        error_x=intervals(
            low_shares, saving_shares, high_shares, theme.secondary_colour, thickness=1
        ),
        customdata=[
            [answer.edits[0], text.percent(answer.saving), text.duration(answer.after_ns)]
            for answer in drawn_answers
        ],
    )
    title = {"title": {"text": "saving, of the mean step"}}
    row_axis = {"range": [len(labels) - 0.5, -0.5], "fixedrange": True, "showgrid": False}
    plot = figure(
        theme,
        trace,
        xaxis={"tickformat": ".0%", "rangemode": "tozero", "fixedrange": True} | title,
        yaxis={"type": "category"} | row_axis,
    )
    # To leave out a whole phase is a limit, and nothing that can be done.
    feasible_answers = (answer for answer in answers if not answer.edits[0].startswith(PHASE_EDIT))
    best_answer = next(feasible_answers, answers[0])
    summary = (
        f"Most would be saved by {best_answer.edits[0]}: {text.percent(best_answer.saving)} of "
        f"the mean step of {text.duration(best_answer.before_ns)}; phases without any time are "
        "limits. Click a bar to see it above."
    )
    table = [
        {
            "edit": " + ".join(answer.edits),
            "step before": quantity.time(answer.before_ns),
            "step after": quantity.time(answer.after_ns),
            "saving": quantity.share(answer.saving),
            "at least": quantity.share(answer.interval[0]),
            "at most": quantity.share(answer.interval[1]),
        }
        for answer in whatif.answers
    ]
    return Drawing(plot, summary, table)
