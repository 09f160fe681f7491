"""A step replayed as it was, and below it with edits; and what every single edit would save."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import Drawing, empty, figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.replay.stretches import Stretches
    from tracelens.replay.whatif import WhatIf
    from tracelens_dashboard.theme import Theme


MOST_ROWS: Final = 12
MOST_EDITS: Final = 14
AS_IT_WAS, WITH_EDITS = "as it was", "with the edits"
WORK, WAIT = "own work", "waiting or communicating"
NO_EDIT: Final = "No single edit that is known would make the steps shorter by 0.1 %."
_PHASE: Final = "phase:"
_LEAST: Final = 0.001  # of the step
_DOMAINS: Final = ((0.54, 1.0), (0.0, 0.46))


def steps(
    pair: tuple[Stretches, Stretches], step: int, ranks: Sequence[int], theme: Theme
) -> Drawing:
    """Draw both, a row a rank, from when the step before was over; `ranks` are those to show."""
    ends = [_length(stretches) for stretches in pair]
    traces = [
        _bars(stretches, panel, what, ranks, theme)
        for panel, stretches in enumerate(pair)
        for what in (WORK, WAIT)
    ]
    shown = text.count(len(ranks), "rank")
    sentence = (
        f"Step {step} on {shown}: {text.duration(ends[0])} as it was, {text.duration(ends[1])} "
        "with the edits."
    )
    return Drawing(
        figure(theme, *traces, **_panels(pair, ranks, theme)),
        sentence,
        _rows(pair, ranks),
    )


def _length(stretches: Stretches) -> float:
    return float(stretches.end.max(initial=0.0))


def _bars(
    stretches: Stretches, panel: int, what: str, ranks: Sequence[int], theme: Theme
) -> go.Bar:
    mine = np.flatnonzero(
        (stretches.works == (what == WORK)) & np.isin(stretches.rank, list(ranks))
    )
    begin, lasts = stretches.begin[mine], stretches.end[mine] - stretches.begin[mine]
    return go.Bar(
        orientation="h",
        name=what,
        legendgroup=what,
        showlegend=panel == 0,
        base=begin,
        x=lasts,
        y=[f"rank {rank} " for rank in stretches.rank[mine].tolist()],
        yaxis="y" if panel == 0 else "y2",
        marker={
            "color": theme.accent if what == WORK else theme.categories["wait"],
            "line": {"width": 0},
        },
        customdata=[text.duration(ns) for ns in lasts.tolist()],
        hovertemplate=f"%{{y}}{what}: %{{customdata}}<extra></extra>",
    )


def _panels(
    pair: tuple[Stretches, Stretches], ranks: Sequence[int], theme: Theme
) -> dict[str, Any]:
    ends = [_length(stretches) for stretches in pair]
    low, high = min(float(each.begin.min(initial=0.0)) for each in pair), max(ends)
    labels = [f"rank {rank} " for rank in ranks]
    row = {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": labels,
        "range": [len(labels) - 0.5, -0.5],
        "fixedrange": True,
        "showgrid": False,
        "tickfont": {"color": theme.text},
    }
    return {
        "barmode": "overlay",
        "bargap": 0.25,
        "xaxis": axes.durations(high) | {"range": [low, high * 1.02], "anchor": "y2"},
        "yaxis": row | {"domain": list(_DOMAINS[0])},
        "yaxis2": row | {"domain": list(_DOMAINS[1])},
        "showlegend": True,
        "legend": {"x": 1, "xanchor": "right"},
        "shapes": [_edge(end, panel, theme) for panel, end in enumerate(ends)],
        "annotations": [
            _label(words, end, panel, theme)
            for panel, (words, end) in enumerate(zip((AS_IT_WAS, WITH_EDITS), ends, strict=True))
        ],
        "margin": {"l": 8, "r": 12, "t": 34, "b": 8},
    }


def _edge(end: float, panel: int, theme: Theme) -> dict[str, Any]:
    """Return the line at which a step is over."""
    low, high = _DOMAINS[panel]
    line = {"color": theme.text, "width": 1, "dash": "dot"}
    return {
        "type": "line", "x0": end, "x1": end, "y0": low, "y1": high, "yref": "paper", "line": line,
    }  # fmt: skip


def _label(words: str, end: float, panel: int, theme: Theme) -> dict[str, Any]:
    return {
        "text": f"{words}: {text.duration(end)}",
        "x": 0,
        "y": _DOMAINS[panel][1],
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"color": theme.secondary, "size": 12},
    }


def _rows(pair: tuple[Stretches, Stretches], ranks: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {"rank": rank}
        | {
            f"{what}, {when}": quantity.time(_spent(stretches, rank, what))
            for when, stretches in zip((AS_IT_WAS, WITH_EDITS), pair, strict=True)
            for what in (WORK, WAIT)
        }
        for rank in ranks
    ]


def _spent(stretches: Stretches, rank: int, what: str) -> float:
    mine = (stretches.rank == rank) & (stretches.works == (what == WORK))
    return float((stretches.end - stretches.begin)[mine].sum())


def savings(found: WhatIf, theme: Theme) -> Drawing:
    """Draw what every single edit would save, with 95 % intervals, the largest on top."""
    answers = [answer for answer in found.answers if answer.saving >= _LEAST]
    if not answers:
        return empty(theme, NO_EDIT)
    shown = answers[:MOST_EDITS]
    labels = [" + ".join(answer.edits) + " " for answer in shown]
    saved = np.array([answer.saving for answer in shown])
    low, high = np.array([answer.interval for answer in shown]).T
    bars = go.Bar(
        orientation="h",
        x=saved,
        y=[text.safe(label) for label in labels],
        marker={"color": theme.faster, "line": {"width": 0}},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": np.maximum(high - saved, 0),
            "arrayminus": np.maximum(saved - low, 0),
            "color": theme.secondary,
            "thickness": 1,
        },
        customdata=[
            [answer.edits[0], text.percent(answer.saving), text.duration(answer.after_ns)]
            for answer in shown
        ],
        hovertemplate="%{y}%{customdata[1]} less, %{customdata[2]} a step<extra></extra>",
    )
    best = next((one for one in answers if not one.edits[0].startswith(_PHASE)), answers[0])
    sentence = (
        f"Most would be saved by {best.edits[0]}: {text.percent(best.saving)} of the mean step of "
        f"{text.duration(best.before_ns)}; phases without any time are limits. Click a bar to see it "
        "above."
    )
    return Drawing(figure(theme, bars, **_shares(labels)), sentence, _savings_rows(found))


def _shares(labels: Sequence[str]) -> dict[str, Any]:
    return {
        "xaxis": {
            "tickformat": ".0%",
            "rangemode": "tozero",
            "fixedrange": True,
            "title": {"text": "saving, of the mean step"},
        },
        "yaxis": {
            "type": "category",
            "range": [len(labels) - 0.5, -0.5],
            "fixedrange": True,
            "showgrid": False,
        },
    }


def _savings_rows(found: WhatIf) -> list[dict[str, Any]]:
    return [
        {
            "edit": " + ".join(answer.edits),
            "step before": quantity.time(answer.before_ns),
            "step after": quantity.time(answer.after_ns),
            "saving": quantity.share(answer.saving),
            "at least": quantity.share(answer.interval[0]),
            "at most": quantity.share(answer.interval[1]),
        }
        for answer in found.answers
    ]
