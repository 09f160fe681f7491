"""Which phases make a rank late: per rank, the time beyond the peers', stacked by phase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from plotly import graph_objects as go

from tracelens.analyses.phases import OWN_CATEGORIES
from tracelens_dashboard import text
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens.lod.lateness import Lateness
    from tracelens.lod.times import Matrix
    from tracelens_dashboard.theme import Theme

MOST_RANKS: Final = 16
MS: Final = 1e6


def draw(late: Lateness, in_category: Callable[[str], Lateness], theme: Theme) -> Drawing:
    """Draw the latest ranks; a bar's part is the mean excess a step in one category."""
    if not late.steps or len(late.ranks) < 2:
        return empty(theme, "One rank alone has no peers to be compared with.")
    parts = {name: _mean_excess(in_category(name)) for name in OWN_CATEGORIES}
    chosen = np.argsort(-late.total_ns)[:MOST_RANKS]
    labels = [f"rank {late.ranks[i]} " for i in chosen]
    bars = [
        go.Bar(
            orientation="h",
            y=labels,
            x=part[chosen] / MS,
            name=name_of(name),
            marker={"color": theme.categories[name], "line": {"width": 0}},
            hovertemplate=f"%{{y}}{name_of(name)}: %{{x:.3f}} ms a step<extra></extra>",
        )
        for name, part in parts.items()
        if part[chosen].any()
    ]
    return Drawing(
        figure(theme, *bars, **_axes(theme)),
        _sentence(late, parts, int(chosen[0])),
        _rows(late.ranks, parts, chosen),
    )


def _mean_excess(late: Lateness) -> Matrix:
    """Mean over the steps of how much longer a rank took; shorter counts as nothing."""
    present = np.maximum(np.sum(~np.isnan(late.excess_ns), axis=1), 1)
    return np.asarray(np.nansum(np.maximum(late.excess_ns, 0), axis=1) / present)


def _sentence(late: Lateness, parts: dict[str, Matrix], worst: int) -> str:
    phase = max(parts, key=lambda name: float(parts[name][worst]))
    ns = float(parts[phase][worst])
    if not ns:
        return "No rank takes longer than the others."
    return (
        f"Rank {late.ranks[worst]} takes {text.duration(ns)} a step longer than its peers "
        f"in {name_of(phase)}, more than in any other phase."
    )


def _rows(
    ranks: Sequence[int], parts: dict[str, Matrix], chosen: np.ndarray
) -> list[dict[str, object]]:
    return [
        {"rank": ranks[i]}
        | {f"{name_of(name)} (ms a step)": round(float(p[i]) / MS, 4) for name, p in parts.items()}
        for i in chosen
    ]


def _axes(theme: Theme) -> dict[str, object]:
    return {
        "barmode": "stack",
        "bargap": 0.3,
        "xaxis": {
            "ticksuffix": " ms",
            "fixedrange": True,
            "nticks": 5,
            "title": {"text": "longer than peers, in the mean step"},
        },
        "yaxis": {"autorange": "reversed", "fixedrange": True, "tickfont": {"color": theme.text}},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
