"""A step replayed as it was, and below it with edits; and what every single edit would save."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import Drawing, bars, empty, figure, intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plotly import graph_objects as go

    from tracelens.arrays import Flags
    from tracelens.replay.stretches import Stretches
    from tracelens.replay.whatif import WhatIf
    from tracelens_dashboard.figures.drawing import Rows
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
    pair: tuple[Stretches, Stretches], step: int, ranks: Sequence[int], theme: Theme
) -> Drawing:
    """Draw both, a row a rank, from when the step before was over; `ranks` are those to show."""
    ends_ns = [float(stretches.end_ns.max(initial=0.0)) for stretches in pair]
    traces = [
        _stretch_bars(stretches, panel, activity, ranks, theme)
        for panel, stretches in enumerate(pair)
        for activity in (WORK, WAIT)
    ]
    begin_ns = min(float(stretches.begin_ns.min(initial=0.0)) for stretches in pair)
    time_axis = axes.durations(max(ends_ns)) | {
        "range": [begin_ns, max(ends_ns) * 1.02],
        "anchor": "y2",
    }
    labels = [f"rank {rank} " for rank in ranks]
    order = {"type": "category", "categoryorder": "array", "categoryarray": labels}
    rows = axes.rows_of(len(labels), theme, showgrid=False) | order
    titles = zip((AS_IT_WAS, WITH_EDITS), ends_ns, strict=True)
    plot = figure(
        theme,
        *traces,
        barmode="overlay",
        bargap=0.25,
        xaxis=time_axis,
        yaxis=rows | {"domain": list(PANEL_DOMAINS[0])},
        yaxis2=rows | {"domain": list(PANEL_DOMAINS[1])},
        showlegend=True,
        legend={"x": 1, "xanchor": "right"},
        shapes=[_end_line(end_ns, panel, theme) for panel, end_ns in enumerate(ends_ns)],
        annotations=[
            _panel_title(f"{name}: {text.duration(end_ns)}", panel, theme)
            for panel, (name, end_ns) in enumerate(titles)
        ],
        margin={"l": 8, "r": 12, "t": 34, "b": 8},
    )
    sentence = (
        f"Step {step} on {text.count(len(ranks), 'rank')}: {text.duration(ends_ns[0])} as it was, "
        f"{text.duration(ends_ns[1])} with the edits."
    )
    return Drawing(plot, sentence, _times_of_ranks(pair, ranks))


def _is_activity(stretches: Stretches, activity: str) -> Flags:
    return np.asarray(stretches.is_work == (activity == WORK))


def _stretch_bars(
    stretches: Stretches, panel: int, activity: str, ranks: Sequence[int], theme: Theme
) -> go.Bar:
    is_drawn = _is_activity(stretches, activity) & np.isin(stretches.rank, list(ranks))
    begin_ns, rank = stretches.begin_ns[is_drawn], stretches.rank[is_drawn]
    length_ns = stretches.end_ns[is_drawn] - begin_ns
    return bars(
        [f"rank {one} " for one in rank.tolist()],
        length_ns,
        theme.accent if activity == WORK else theme.categories["wait"],
        f"%{{y}}{activity}: %{{customdata}}",
        name=activity,
        legendgroup=activity,
        showlegend=panel == 0,
        base=begin_ns,
        yaxis="y" if panel == 0 else "y2",
        customdata=[text.duration(ns) for ns in length_ns.tolist()],
    )


def _end_line(end_ns: float, panel: int, theme: Theme) -> dict[str, Any]:
    """Return the line at which a step is over."""
    low, high = PANEL_DOMAINS[panel]
    line = {"color": theme.text, "width": 1, "dash": "dot"}
    sides = {"x0": end_ns, "x1": end_ns, "y0": low, "y1": high}
    return {"type": "line", "yref": "paper", "line": line} | sides


def _panel_title(title: str, panel: int, theme: Theme) -> dict[str, Any]:
    return {
        "text": title,
        "x": 0,
        "y": PANEL_DOMAINS[panel][1],
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"color": theme.secondary, "size": 12},
    }


def _times_of_ranks(pair: tuple[Stretches, Stretches], ranks: Sequence[int]) -> Rows:
    rows: Rows = [{"rank": rank} for rank in ranks]
    for name, stretches in zip((AS_IT_WAS, WITH_EDITS), pair, strict=True):
        length_ns = stretches.end_ns - stretches.begin_ns
        for activity in (WORK, WAIT):
            is_active = _is_activity(stretches, activity)
            for row in rows:
                spent_ns = length_ns[is_active & (stretches.rank == row["rank"])].sum()
                row[f"{activity}, {name}"] = quantity.time(float(spent_ns))
    return rows


def savings(whatif: WhatIf, theme: Theme) -> Drawing:
    """Draw what every single edit would save, with 95 % intervals, the largest on top."""
    answers = [answer for answer in whatif.answers if answer.saving >= LEAST_SAVING]
    if not answers:
        return empty(theme, NO_EDIT)
    drawn = answers[:MOST_EDITS]
    labels = [text.safe(" + ".join(answer.edits) + " ") for answer in drawn]
    saving = np.array([answer.saving for answer in drawn])
    low, high = np.array([answer.interval for answer in drawn]).T
    low, high = np.minimum(low, saving), np.maximum(high, saving)
    trace = bars(
        labels,
        saving,
        theme.faster,
        "%{y}%{customdata[1]} less, %{customdata[2]} a step",
        error_x=intervals(low, saving, high, theme.secondary, thickness=1),
        customdata=[
            [answer.edits[0], text.percent(answer.saving), text.duration(answer.after_ns)]
            for answer in drawn
        ],
    )
    title = {"title": {"text": "saving, of the mean step"}}
    rows = {"range": [len(labels) - 0.5, -0.5], "fixedrange": True, "showgrid": False}
    plot = figure(
        theme,
        trace,
        xaxis={"tickformat": ".0%", "rangemode": "tozero", "fixedrange": True} | title,
        yaxis={"type": "category"} | rows,
    )
    single = (answer for answer in answers if not answer.edits[0].startswith(PHASE_EDIT))
    top = next(single, answers[0])
    sentence = (
        f"Most would be saved by {top.edits[0]}: {text.percent(top.saving)} of the mean step of "
        f"{text.duration(top.before_ns)}; phases without any time are limits. Click a bar to see it "
        "above."
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
    return Drawing(plot, sentence, table)
