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
from tracelens_dashboard.figures.drawing import Drawing, figure

if TYPE_CHECKING:
    from tracelens.scaling import Curve, Row, Scaling
    from tracelens_dashboard.theme import Theme


EFFICIENCY: Final = "efficiency"
NO_FACTOR: Final = "little"
_DASHES: Final = ("solid", "dash", "dot", "dashdot")  # of curves, one system after the other
_HEADROOM: Final = 1.08


def factors(found: Scaling, theme: Theme) -> Drawing:
    """Draw efficiency, and the factors that multiply up to it, against the size."""
    traces: list[go.Scatter] = []
    for curve, dash in zip(found.curves, cycle(_DASHES), strict=False):
        traces += _of_curve(curve, dash, theme, several=len(found.curves) > 1)
    rows = [row for curve in found.curves for row in curve.rows]
    highest = max((max(row.efficiency, *row.ratios.values()) for row in rows), default=1.0)
    layout = _sizes(found) | {
        "yaxis": {
            "range": [0, max(highest, 1.0) * _HEADROOM],
            "tickformat": ".0%",
            "fixedrange": True,
            "title": {"text": "share of the smallest run's"},
        },
        "showlegend": True,
    }
    table = [_row(curve, row) for curve in found.curves for row in curve.rows]
    return Drawing(figure(theme, *traces, **layout), _fallen(found), table)


def _fallen(found: Scaling) -> str:
    """Return from what to what efficiency goes, on each curve, as a sentence."""
    parts = (
        f"{messages.title(curve)}: {text.percent(curve.rows[-1].efficiency)} of the efficiency with "
        f"{curve.rows[0].size} {curve.by} is left with {curve.rows[-1].size}"
        for curve in found.curves
    )
    return fmt.capital("; ".join(parts)) + "."


def _of_curve(curve: Curve, dash: str, theme: Theme, *, several: bool) -> list[go.Scatter]:
    """Return the efficiency of a curve, and of the first system its factors."""
    name = messages.title(curve) if several else EFFICIENCY
    values = {name: [row.efficiency for row in curve.rows]}
    if not several:
        values |= {
            word: [row.ratios[factor] for row in curve.rows]
            for factor, word in messages.WORDS.items()
        }
    colours = dict(zip(values, (theme.text, *theme.series), strict=False))
    return [
        go.Scatter(
            x=[row.size for row in curve.rows],
            y=shares,
            name=word,
            mode="lines+markers",
            line={
                "color": colours[word],
                "width": 2.5 if word == name else 1.4,
                "dash": dash,
            },
            customdata=[
                [text.percent(share), text.safe(row.point.name)]
                for share, row in zip(shares, curve.rows, strict=True)
            ],
            hovertemplate=(
                f"%{{x}} {curve.by}, {word}: %{{customdata[0]}}<br>%{{customdata[1]}}<extra></extra>"
            ),
        )
        for word, shares in values.items()
    ]


def steps(found: Scaling, theme: Theme) -> Drawing:
    """Draw the step against the size; forecasts are hollow, with their interval."""
    traces: list[go.Scatter] = []
    high = 0.0
    for curve, colour in zip(found.curves, cycle(theme.series), strict=False):
        name = messages.title(curve)
        lengths = [row.point.step_ns for row in curve.rows]
        high = max(high, *lengths, *(one.interval[1] for one in curve.forecasts))
        traces.append(
            go.Scatter(
                x=[row.size for row in curve.rows],
                y=lengths,
                name=name,
                mode="lines+markers",
                line={"color": colour},
                customdata=[text.duration(ns) for ns in lengths],
                hovertemplate=f"%{{x}} {curve.by}: %{{customdata}}<extra></extra>",
            )
        )
        if curve.forecasts:
            traces.append(_forecasts(curve, colour))
    layout = _sizes(found) | {
        "yaxis": axes.durations(high) | {"range": [0, high * _HEADROOM], "title": {"text": "step"}},
        "showlegend": True,
    }
    table = [
        _ahead(curve, place) for curve in found.curves for place in range(len(curve.forecasts))
    ]
    return Drawing(
        figure(theme, *traces, **layout),
        _longest(found),
        table or [_step(row) for curve in found.curves for row in curve.rows],
    )


def _forecasts(curve: Curve, colour: str) -> go.Scatter:
    lengths = np.array([one.step_ns for one in curve.forecasts])
    low, high = np.array([one.interval for one in curve.forecasts]).T
    return go.Scatter(
        x=[one.ranks for one in curve.forecasts],
        y=lengths,
        name="forecast",
        mode="markers",
        marker={"color": colour, "symbol": "circle-open", "size": 9},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": (high - lengths).tolist(),
            "arrayminus": (lengths - low).tolist(),
            "color": colour,
        },
        customdata=[
            [text.duration(one.step_ns), *map(text.duration, one.interval)]
            for one in curve.forecasts
        ],
        hovertemplate=(
            "%{x} workers, forecast: %{customdata[0]} (%{customdata[1]} to %{customdata[2]})"
            "<extra></extra>"
        ),
    )


def _sizes(found: Scaling) -> dict[str, Any]:
    """Return the axis of sizes: every size that was run or asked for, as far apart as factors of it."""
    known = {row.size for curve in found.curves for row in curve.rows}
    known |= {one.ranks for curve in found.curves for one in curve.forecasts}
    ticks = sorted(known)
    axis = {
        "type": "log",
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [f"{size:,}" for size in ticks],
        "fixedrange": True,
        "title": {"text": found.curves[0].by},
    }
    return {"xaxis": axis}


def _longest(found: Scaling) -> str:
    curve = found.curves[0]
    first, last = curve.rows[0], curve.rows[-1]
    grown = (
        f"A step takes {text.duration(first.point.step_ns)} with {first.size} {curve.by}, "
        f"{text.duration(last.point.step_ns)} with {last.size}."
    )
    if not curve.forecasts:
        return grown
    one = curve.forecasts[-1]
    low, high = map(text.duration, one.interval)
    return f"{grown} Forecast for {one.ranks:,}: {text.duration(one.step_ns)} ({low} to {high})."


def _row(curve: Curve, row: Row) -> dict[str, Any]:
    factors = {word: quantity.share(row.ratios[name]) for name, word in messages.WORDS.items()}
    lost = messages.WORDS[row.lost_in] if row.lost_in else NO_FACTOR
    return (
        {"curve": messages.title(curve), curve.by: row.size, "run": row.point.name}
        | {"step": quantity.time(row.point.step_ns), EFFICIENCY: quantity.share(row.efficiency)}
        | factors
        | {"lost in": lost}
    )


def _step(row: Row) -> dict[str, Any]:
    return {
        "workers": row.point.workers,
        "servers": row.point.shards,
        "run": row.point.name,
        "step": quantity.time(row.point.step_ns),
    }


def _ahead(curve: Curve, place: int) -> dict[str, Any]:
    one = curve.forecasts[place]
    low, high = one.interval
    return {
        "curve": messages.title(curve),
        "workers": one.ranks,
        "step, forecast": quantity.time(one.step_ns),
        "at least": quantity.time(low),
        "at most": quantity.time(high),
        "validated": "yes" if one.validated else "no",
    }
