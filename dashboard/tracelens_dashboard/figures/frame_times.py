"""When a frame was on the stack: rank x time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures import cells
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.icicle import short

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.lod.window import Window
    from tracelens_dashboard.theme import Theme

BINS: Final = 160
SECOND: Final = 1e9


def draw(
    shares: Mapping[int, np.ndarray[Any, Any]],
    frame: str,
    seen: Window,
    origin_ns: int,
    theme: Theme,
) -> Drawing:
    """Draw, for each rank, the share of each part of a window in which a frame was on its stack."""
    if not frame or not shares:
        return empty(theme, "Click a frame above to see when it was on the stack.")
    percents = 100 * np.stack(list(shares.values()))
    if not percents.any():
        return empty(theme, f"{short(frame)} was on no stack in this window.")
    width = seen.width_ns / percents.shape[1]
    middles = (seen.start_ns - origin_ns + (np.arange(percents.shape[1]) + 0.5) * width) / SECOND
    edges = seen.start_ns - origin_ns + np.arange(percents.shape[1]) * width
    ranks = list(shares)
    heat = go.Heatmap(
        z=percents.astype(np.float32),
        x=middles,
        y=[f"rank {rank} " for rank in ranks],
        customdata=[
            [cells.lead(rank, round(edge), round(edge + width)) for edge in edges] for rank in ranks
        ],
        colorscale=theme.colorscale,
        zmin=0,
        zmax=100,
        ygap=2,
        colorbar={"ticksuffix": " %", "nticks": 4},
        hovertemplate="%{y}at %{x:.3f} s: on the stack %{z:.0f} % of the time<extra></extra>",
    )
    layout = {
        "xaxis": {
            "title": {"text": "time since the start"},
            "ticksuffix": " s",
            "showgrid": False,
            "fixedrange": True,
        },
        "yaxis": {
            "range": [len(ranks) - 0.5, -0.5],
            "showgrid": False,
            "fixedrange": True,
            "tickfont": {"color": theme.text},
        },
    }
    rows = [
        {"rank": rank, "on the stack (ms)": round(float(row.sum()) * width / 1e6, 3)}
        for rank, row in shares.items()
    ]
    return Drawing(figure(theme, heat, **layout), _sentence(shares, frame, width), rows)


def _sentence(shares: Mapping[int, np.ndarray[Any, Any]], frame: str, width: float) -> str:
    total = {rank: float(row.sum()) * width for rank, row in shares.items()}
    most = max(total, key=lambda rank: total[rank])
    return (
        f"{short(frame)} was on rank {most}'s stack for {text.duration(total[most])}, longer than on "
        "any other that is shown. Click a cell to see its spans."
    )
