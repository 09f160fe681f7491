"""Step time over the run: the usual rank and the longest one, its regimes, and what findings mark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens.lod import grid
from tracelens_dashboard import text
from tracelens_dashboard.figures import duration_axis
from tracelens_dashboard.figures.drawing import Drawing, empty, figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.lod.regimes import Regime
    from tracelens.lod.step_times import StepTimes
    from tracelens_dashboard.theme import Theme

MOST_POINTS: Final = 800
MOST_MARKS: Final = 4
FAR: Final = 2.5  # times the usual step: a first step that loads libraries does not set the scale
NO_STEPS: Final = "No step was recorded."


@dataclass(frozen=True)
class Mark:
    """Steps that a finding speaks of."""

    label: str
    first: int
    last: int
    fault: bool


def draw(
    times: StepTimes, found: Sequence[Regime], marks: Sequence[Mark], what: str, theme: Theme
) -> Drawing:
    """Draw the series; of a long run each point is the longest of some neighbouring steps."""
    if not times.steps:
        return empty(theme, NO_STEPS)
    columns = grid.parts(len(times.steps), MOST_POINTS)
    shown = marks[:MOST_MARKS]
    drawn = figure(
        theme,
        _longest(times, columns, theme),
        _usual(times, columns, theme),
        _levels(times, found, theme),
        **_axes(times, shown),
    )
    for row, mark in enumerate(shown):
        _add_mark(drawn, mark, row, _place(mark, times.steps), theme)
    return Drawing(drawn, summary(times, found, what), table(times, found))


def summary(times: StepTimes, found: Sequence[Regime], what: str) -> str:
    """Say how long it usually is, and how that changes."""
    usual = float(np.nanmedian(times.usual_ns))
    worst = int(np.argmax(times.longest_ns))
    longest = (
        f"the longest is {text.duration(float(times.longest_ns[worst]))}, on rank "
        f"{times.longest_rank[worst]} in step {times.steps[worst]}."
    )
    begin = f"{what[:1].upper()}{what[1:]}: {text.duration(usual)} on the median rank; {longest}"
    if len(found) < 2:
        return f"{begin} It keeps this level over the whole run."
    parts = [
        f"{text.duration(part.level)} in {text.steps(times.steps[part.first], times.steps[part.last])}"
        for part in found[:5]
    ]
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return f"{begin} It changes its level: {', '.join(parts)}{more}."


def table(times: StepTimes, found: Sequence[Regime]) -> list[dict[str, Any]]:
    """List the regimes."""
    first = found[0].level if found else 1.0
    return [
        {
            "regime": number,
            "first step": times.steps[part.first],
            "last step": times.steps[part.last],
            "level": text.duration(part.level),
            "against the first": f"{100 * (part.level / max(first, 1e-9) - 1):+.1f} %",
            "longest": text.duration(float(times.longest_ns[part.first : part.last + 1].max())),
        }
        for number, part in enumerate(found, 1)
    ]


def _longest(times: StepTimes, columns: list[slice], theme: Theme) -> go.Scatter:
    at = [part.start + int(times.longest_ns[part].argmax()) for part in columns]
    values = [float(times.longest_ns[place]) for place in at]
    steps = [times.steps[place] for place in at]
    return go.Scatter(
        name="longest rank",
        x=steps,
        y=values,
        mode="lines+markers" if len(at) <= MOST_POINTS / 4 else "lines",
        line={"color": theme.quiet, "width": 1},
        marker={"size": 4, "color": theme.quiet},
        customdata=[
            [step, times.longest_rank[place], text.duration(value)]
            for step, place, value in zip(steps, at, values, strict=True)
        ],
        hovertemplate="step %{x}, longest on rank %{customdata[1]}: %{customdata[2]}<extra></extra>",
    )


def _usual(times: StepTimes, columns: list[slice], theme: Theme) -> go.Scatter:
    steps, values = [], []
    for part in columns:
        known = times.usual_ns[part]
        known = known[np.isfinite(known)]
        steps.append(times.steps[part.start])
        values.append(float(np.median(known)) if len(known) else None)
    return go.Scatter(
        name="median rank",
        x=steps,
        y=values,
        mode="lines",
        line={"color": theme.accent, "width": 1.6},
        customdata=[
            [step, None, text.duration(v or 0.0)] for step, v in zip(steps, values, strict=True)
        ],
        hovertemplate="step %{x}, median rank: %{customdata[2]}<extra></extra>",
    )


def _levels(times: StepTimes, found: Sequence[Regime], theme: Theme) -> go.Scatter:
    """Draw each regime's level as a line of its own."""
    steps: list[float | None] = []
    levels: list[float | None] = []
    for part in found if len(found) > 1 else ():
        steps += [times.steps[part.first] - 0.5, times.steps[part.last] + 0.5, None]
        levels += [part.level, part.level, None]
    return go.Scatter(
        name="level of a regime",
        x=steps,
        y=levels,
        mode="lines",
        line={"color": theme.text, "width": 2.2, "dash": "dash"},
        hoverinfo="skip",
    )


def _place(mark: Mark, steps: Sequence[int]) -> str:
    """Choose to which side of its middle a label grows: never out of the plot."""
    share = ((mark.first + mark.last) / 2 - steps[0]) / max(steps[-1] - steps[0], 1)
    return "left" if share < 1 / 3 else "center" if share <= 2 / 3 else "right"


def _add_mark(drawn: go.Figure, mark: Mark, row: int, anchor: str, theme: Theme) -> None:
    colour = theme.loss if mark.fault else theme.secondary
    drawn.add_vrect(
        x0=mark.first - 0.5, x1=mark.last + 0.5, fillcolor=colour, opacity=0.09, line_width=0
    )
    drawn.add_annotation(
        x=(mark.first + mark.last) / 2,
        xanchor=anchor,
        y=1,
        yref="paper",
        yanchor="top",
        yshift=-15 * row,
        text=mark.label,
        showarrow=False,
        font={"size": 11, "color": colour},
    )


def _axes(times: StepTimes, marks: Sequence[Mark]) -> dict[str, Any]:
    usual = float(np.nanmedian(times.usual_ns))
    high = min(float(np.nanmax(times.longest_ns)), max(FAR * usual, _most_usual(times)) or 1.0)
    top = high * (1.12 + 0.08 * len(marks))
    return {
        "xaxis": {"title": {"text": "step"}, "showgrid": False, "fixedrange": True},
        "yaxis": duration_axis.linear(top) | {"range": [0, top]},
        "showlegend": True,
        "hovermode": "closest",
        "margin": {"t": 30},
    }


def _most_usual(times: StepTimes) -> float:
    """Return what nearly all steps stay below."""
    return 1.1 * float(np.quantile(times.longest_ns, 0.98))
