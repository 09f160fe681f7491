"""How runs of several sizes scale: efficiency and its factors, step times, and a forecast."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens.model import fmt
from tracelens.scaling import messages
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, quantity
from tracelens_dashboard.figures.drawing import Drawing, dots, figure

if TYPE_CHECKING:
    from tracelens.scaling import Curve, Row, Scaling
    from tracelens.scaling.forecast import Forecast
    from tracelens_dashboard.theme import Theme

EFFICIENCY: Final = "efficiency"
NO_FACTOR: Final = "little"
DASHES: Final = ("solid", "dash", "dot", "dashdot")  # of curves, one system after the other
HEADROOM: Final = 1.08


def factors(scaling: Scaling, theme: Theme) -> Drawing:
    """Draw efficiency, and the factors that multiply up to it, against the size."""
    traces: list[go.Scatter] = []
    for curve, dash in zip(scaling.curves, cycle(DASHES), strict=False):
        traces += _factor_lines(curve, dash, theme, several=len(scaling.curves) > 1)
    rows = [(curve, row) for curve in scaling.curves for row in curve.rows]
    highest = max((max(row.efficiency, *row.ratios.values()) for _, row in rows), default=1.0)
    share_axis = {
        "range": [0, max(highest, 1.0) * HEADROOM],
        "tickformat": ".0%",
        "fixedrange": True,
        "title": {"text": "share of the smallest run's"},
    }
    plot = figure(theme, *traces, xaxis=_size_axis(scaling), yaxis=share_axis, showlegend=True)
    sentences = (
        f"{messages.title(curve)}: {text.percent(curve.rows[-1].efficiency)} of the efficiency with "
        f"{curve.rows[0].size} {curve.by} is left with {curve.rows[-1].size}"
        for curve in scaling.curves
    )
    summary = fmt.capital("; ".join(sentences)) + "."
    return Drawing(plot, summary, [_factor_row(curve, row) for curve, row in rows])


def _factor_lines(curve: Curve, dash: str, theme: Theme, *, several: bool) -> list[go.Scatter]:
    """Return the efficiency of a curve, and of a single one its factors."""
    title = messages.title(curve) if several else EFFICIENCY
    shares_by_name = {title: [row.efficiency for row in curve.rows]}
    if not several:
        shares_by_name |= {
            name: [row.ratios[factor] for row in curve.rows]
            for factor, name in messages.WORDS.items()
        }
    colours = (theme.text, *theme.series)
    return [
        go.Scatter(
            x=[row.size for row in curve.rows],
            y=shares,
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 2.5 if name == title else 1.4, "dash": dash},
            customdata=[
                [text.percent(share), text.safe(row.point.name)]
                for share, row in zip(shares, curve.rows, strict=True)
            ],
            hovertemplate=(
                f"%{{x}} {curve.by}, {name}: %{{customdata[0]}}<br>%{{customdata[1]}}<extra></extra>"
            ),
        )
        for (name, shares), colour in zip(shares_by_name.items(), colours, strict=False)
    ]


def steps(scaling: Scaling, theme: Theme) -> Drawing:
    """Draw the step against the size; forecasts are hollow, with their interval."""
    traces: list[go.Scatter] = []
    high_ns = 0.0
    for curve, colour in zip(scaling.curves, cycle(theme.series), strict=False):
        steps_ns = [row.point.step_ns for row in curve.rows]
        high_ns = max(high_ns, *steps_ns, *(one.interval[1] for one in curve.forecasts))
        trace = go.Scatter(
            x=[row.size for row in curve.rows],
            y=steps_ns,
            name=messages.title(curve),
            mode="lines+markers",
            line={"color": colour},
            customdata=[text.duration(ns) for ns in steps_ns],
            hovertemplate=f"%{{x}} {curve.by}: %{{customdata}}<extra></extra>",
        )
        traces.append(trace)
        if curve.forecasts:
            traces.append(_forecasts(curve, colour))
    limits = {"range": [0, high_ns * HEADROOM], "title": {"text": "step"}}
    time_axis = axes.durations(high_ns) | limits
    plot = figure(theme, *traces, xaxis=_size_axis(scaling), yaxis=time_axis, showlegend=True)
    table = [
        _forecast_row(curve, forecast) for curve in scaling.curves for forecast in curve.forecasts
    ]
    table = table or [_step_row(row) for curve in scaling.curves for row in curve.rows]
    return Drawing(plot, _steps_sentence(scaling.curves[0]), table)


def _forecasts(curve: Curve, colour: str) -> go.Scatter:
    steps_ns = np.array([forecast.step_ns for forecast in curve.forecasts])
    low, high = np.array([forecast.interval for forecast in curve.forecasts]).T
    reach = {"array": (high - steps_ns).tolist(), "arrayminus": (steps_ns - low).tolist()}
    return dots(
        [forecast.ranks for forecast in curve.forecasts],
        steps_ns,
        {"color": colour, "symbol": "circle-open", "size": 9},
        "%{x} workers, forecast: %{customdata[0]} (%{customdata[1]} to %{customdata[2]})",
        name="forecast",
        error_y={"type": "data", "symmetric": False, "color": colour} | reach,
        customdata=[
            [text.duration(forecast.step_ns), *map(text.duration, forecast.interval)]
            for forecast in curve.forecasts
        ],
    )


def _size_axis(scaling: Scaling) -> dict[str, Any]:
    """Return the axis of sizes: every size that was run or asked for, as far apart as factors of it."""
    sizes = {row.size for curve in scaling.curves for row in curve.rows}
    sizes |= {forecast.ranks for curve in scaling.curves for forecast in curve.forecasts}
    ticks = sorted(sizes)
    return {
        "type": "log",
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [f"{size:,}" for size in ticks],
        "fixedrange": True,
        "title": {"text": scaling.curves[0].by},
    }


def _steps_sentence(curve: Curve) -> str:
    smallest, largest = curve.rows[0], curve.rows[-1]
    growth = (
        f"A step takes {text.duration(smallest.point.step_ns)} with {smallest.size} {curve.by}, "
        f"{text.duration(largest.point.step_ns)} with {largest.size}."
    )
    if not curve.forecasts:
        return growth
    forecast = curve.forecasts[-1]
    step, low, high = map(text.duration, (forecast.step_ns, *forecast.interval))
    return f"{growth} Forecast for {forecast.ranks:,}: {step} ({low} to {high})."


def _factor_row(curve: Curve, row: Row) -> dict[str, Any]:
    return (
        {"curve": messages.title(curve), curve.by: row.size, "run": row.point.name}
        | {"step": quantity.time(row.point.step_ns), EFFICIENCY: quantity.share(row.efficiency)}
        | {name: quantity.share(row.ratios[factor]) for factor, name in messages.WORDS.items()}
        | {"lost in": messages.WORDS[row.lost_in] if row.lost_in else NO_FACTOR}
    )


def _step_row(row: Row) -> dict[str, Any]:
    return {
        "workers": row.point.workers,
        "servers": row.point.shards,
        "run": row.point.name,
        "step": quantity.time(row.point.step_ns),
    }


def _forecast_row(curve: Curve, forecast: Forecast) -> dict[str, Any]:
    low, high = forecast.interval
    return {
        "curve": messages.title(curve),
        "workers": forecast.ranks,
        "step, forecast": quantity.time(forecast.step_ns),
        "at least": quantity.time(low),
        "at most": quantity.time(high),
        "validated": "yes" if forecast.validated else "no",
    }
