"""The whole run in a strip: what share of the ranks' time each category took, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    import polars as pl

    from tracelens.lod.times import Times
    from tracelens.lod.window import Window
    from tracelens_dashboard.theme import Theme

LEFT_PX: Final = 120  # as the timeline below it
RIGHT_PX: Final = 16
MOST_POINTS: Final = 500
SECOND: Final = 1e9
NARROW: Final = "\N{NO-BREAK SPACE}" * 3  # between a row and its label: room for a mark


def draw(times: Times, windows: pl.DataFrame, whole: Window, theme: Theme) -> Drawing:
    """Stack the categories' shares over time; `windows` are the steps' (step, start, end)."""
    if not windows.height:
        return empty(theme, "No step was recorded.")
    shares = _shares(times, windows)
    middle = ((windows["start_ns"] + windows["end_ns"]) / 2 - whole.start_ns) / SECOND
    columns = np.array_split(np.arange(windows.height), min(windows.height, MOST_POINTS))
    x = [float(middle[int(group[0])]) for group in columns]
    areas = [
        go.Scatter(
            x=x,
            y=[100 * float(share[group].mean()) for group in columns],
            name=name_of(category),
            stackgroup="all",
            mode="none",
            fillcolor=theme.categories[category],
            hovertemplate="%{y:.0f} % %{fullData.name}<extra></extra>",
        )
        for category, share in shares.items()
        if share.any()
    ]
    biggest = max(shares, key=lambda category: float(shares[category].mean()))
    return Drawing(
        figure(theme, *areas, **_axes(whole)),
        f"Over the run, {name_of(biggest)} takes the largest share of the ranks' time, "
        f"{text.percent(float(shares[biggest].mean()))}.",
    )


def _shares(times: Times, windows: pl.DataFrame) -> dict[str, np.ndarray]:
    """Return the categories' shares in the steps that have a window."""
    column = np.searchsorted(times.steps, windows["step"].to_numpy())
    shares = times.shares()[:, column]
    return dict(zip(times.categories, shares, strict=True))


def _axes(whole: Window) -> dict[str, object]:
    return {
        "margin": {"l": LEFT_PX, "r": RIGHT_PX, "t": 4, "b": 4},
        "xaxis": {
            "range": [0, whole.width_ns / SECOND],
            "fixedrange": True,
            "visible": False,
            "automargin": False,
        },
        "yaxis": {
            "range": [0, 100],
            "fixedrange": True,
            "tickvals": [50],
            "ticktext": ["all ranks" + NARROW],
            "showgrid": False,
            "automargin": False,
        },
        "hovermode": "x unified",
    }
