"""How runs of several sizes scale: efficiency and its factors, step times, and a forecast."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens.model import fmt
from tracelens.scaling import Curve, Row, Scaling, messages
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, drawing, quantity
from tracelens_dashboard.figures.drawing import Drawing, dots, figure

if TYPE_CHECKING:
    from plotly import graph_objects as go

    from tracelens.scaling.forecast import Forecast
    from tracelens_dashboard.theme import Theme

EFFICIENCY: Final = "efficiency"
NO_FACTOR: Final = "little"
DASHES: Final = ("solid", "dash", "dot", "dashdot")  # of curves, one system after the other
HEADROOM: Final = 1.08


def factors(scaling: Scaling, theme: Theme) -> Drawing:
    """Draw efficiency, and the factors that multiply up to it, against workers or shards."""
    # A curve is of one system: a row per size, with its efficiency and factors as shares of the
    # smallest run's. Sizes are numbers of what the curve is `by`.
    traces: list[go.Scatter] = []
    for curve, dash in zip(scaling.curves, cycle(DASHES), strict=False):
        traces += _factor_lines(curve, dash, theme, several=len(scaling.curves) > 1)
    curves_and_rows = [(curve, row) for curve in scaling.curves for row in curve.rows]
    row_maxima = [max(row.efficiency, *row.ratio_by_factor.values()) for _, row in curves_and_rows]
    share_axis = {
        "range": [0, max([*row_maxima, 1.0]) * HEADROOM],
        "tickformat": ".0%",
        "fixedrange": True,
        "title": {"text": "share of the smallest run's"},
    }
    plot = figure(theme, *traces, xaxis=_size_axis(scaling), yaxis=share_axis, showlegend=True)
    sentences = (
        f"{messages.write_title(curve)}: {text.percent(curve.rows[-1].efficiency)} of the efficiency "
        f"with {curve.rows[0].process_count} {curve.size_role} is left with "
        f"{curve.rows[-1].process_count}"
        for curve in scaling.curves
    )
    summary = fmt.capital("; ".join(sentences)) + "."
    return Drawing(plot, summary, [_factor_row(curve, row) for curve, row in curves_and_rows])


def _factor_lines(curve: Curve, dash: str, theme: Theme, *, several: bool) -> list[go.Scatter]:
    """Return the line of a curve's efficiency; of a single curve (not `several`) also its factors'."""
    # A row of a curve is a size, and the run of that size (`point`).
    efficiency_name = messages.write_title(curve) if several else EFFICIENCY
    shares_by_name = {efficiency_name: [row.efficiency for row in curve.rows]}
    if not several:
        shares_by_name |= {
            name: [row.ratio_by_factor[factor] for row in curve.rows]
            for factor, name in messages.WORDS.items()
        }
    colours = (theme.text_colour, *theme.series_colours)
    return [
        drawing.lines(
            [row.process_count for row in curve.rows],
            factor_shares,
            {"color": colour, "width": 2.5 if name == efficiency_name else 1.4, "dash": dash},
            f"%{{x}} {curve.size_role}, {name}: %{{customdata[0]}}<br>%{{customdata[1]}}",
            name=name,
            mode="lines+markers",
            customdata=[
                [text.percent(factor_share), text.escape_name(row.median_point.name)]
                for factor_share, row in zip(factor_shares, curve.rows, strict=True)
            ],
        )
        for (name, factor_shares), colour in zip(shares_by_name.items(), colours, strict=False)
    ]


def steps(scaling: Scaling, theme: Theme) -> Drawing:
    """Draw a step's length against the size; forecasts are hollow, with their 95 % interval (ns)."""
    # A row of a curve is a size and its run (`point`); without forecasts, the table has the runs.
    traces: list[go.Scatter] = []
    longest_ns = 0.0
    for curve, colour in zip(scaling.curves, cycle(theme.series_colours), strict=False):
        steps_ns = [row.median_point.step_ns for row in curve.rows]
        longest_ns = max(longest_ns, *steps_ns, *(one.interval_ns[1] for one in curve.forecasts))
        line = drawing.lines(
            [row.process_count for row in curve.rows],
            steps_ns,
            {"color": colour},
            f"%{{x}} {curve.size_role}: %{{customdata}}",
            name=messages.write_title(curve),
            mode="lines+markers",
            customdata=[text.duration(ns) for ns in steps_ns],
        )
        traces.append(line)
        if curve.forecasts:
            traces.append(_draw_forecasts(curve, colour))
    axis_range = {"range": [0, longest_ns * HEADROOM], "title": {"text": "step"}}
    time_axis = axes.durations(longest_ns) | axis_range
    plot = figure(theme, *traces, xaxis=_size_axis(scaling), yaxis=time_axis, showlegend=True)
    table = [
        _forecast_row(curve, forecast) for curve in scaling.curves for forecast in curve.forecasts
    ]
    table = table or [_step_row(row) for curve in scaling.curves for row in curve.rows]
    return Drawing(plot, _describe_growth(scaling.curves[0]), table)


def _draw_forecasts(curve: Curve, colour: str) -> go.Scatter:
    """Draw the forecasts of a curve, by ranks, as rings with their 95 % intervals (ns)."""
    steps_ns = np.array([forecast.step_ns for forecast in curve.forecasts])
    low_ns, high_ns = np.array([forecast.interval_ns for forecast in curve.forecasts]).T
    lengths_ns = {
        "array": (high_ns - steps_ns).tolist(),
        "arrayminus": (steps_ns - low_ns).tolist(),
    }
    return dots(
        [forecast.rank_count for forecast in curve.forecasts],
        steps_ns,
        {"color": colour, "symbol": "circle-open", "size": 9},
        "%{x} workers, forecast: %{customdata[0]} (%{customdata[1]} to %{customdata[2]})",
        name="forecast",
        error_y={"type": "data", "symmetric": False, "color": colour} | lengths_ns,
        customdata=[
            [text.duration(forecast.step_ns), *map(text.duration, forecast.interval_ns)]
            for forecast in curve.forecasts
        ],
    )


def _size_axis(scaling: Scaling) -> dict[str, Any]:
    """Return the logarithmic axis of all sizes (workers or shards) that were run or forecast."""
    sizes = {row.process_count for curve in scaling.curves for row in curve.rows}
    sizes |= {forecast.rank_count for curve in scaling.curves for forecast in curve.forecasts}
    ticks = sorted(sizes)
    return {
        "type": "log",
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [f"{size:,}" for size in ticks],
        "fixedrange": True,
        "title": {"text": scaling.curves[0].size_role},
    }


def _describe_growth(curve: Curve) -> str:
    """Return the step's length with least and most workers (or shards), and the last forecast."""
    smallest, largest = curve.rows[0], curve.rows[-1]
    growth_sentence = (
        f"A step takes {text.duration(smallest.median_point.step_ns)} with "
        f"{smallest.process_count} {curve.size_role}, "
        f"{text.duration(largest.median_point.step_ns)} with {largest.process_count}."
    )
    if not curve.forecasts:
        return growth_sentence
    forecast = curve.forecasts[-1]
    step_text, low_text, high_text = map(text.duration, (forecast.step_ns, *forecast.interval_ns))
    forecast_text = f"{step_text} ({low_text} to {high_text})"
    return f"{growth_sentence} Forecast for {forecast.rank_count:,}: {forecast_text}."


def _factor_row(curve: Curve, row: Row) -> dict[str, Any]:
    return (
        {
            "curve": messages.write_title(curve),
            curve.size_role: row.process_count,
            "run": row.median_point.name,
        }
        | {
            "step": quantity.time(row.median_point.step_ns),
            EFFICIENCY: quantity.share(row.efficiency),
        }
        | {
            name: quantity.share(row.ratio_by_factor[factor])
            for factor, name in messages.WORDS.items()
        }
        | {"lost in": messages.WORDS[row.main_loss_factor] if row.main_loss_factor else NO_FACTOR}
    )


def _step_row(row: Row) -> dict[str, Any]:
    return {
        "workers": row.median_point.worker_count,
        "servers": row.median_point.shard_count,
        "run": row.median_point.name,
        "step": quantity.time(row.median_point.step_ns),
    }


def _forecast_row(curve: Curve, forecast: Forecast) -> dict[str, Any]:
    """Return a forecast of a curve as a row of the table."""
    low_ns, high_ns = forecast.interval_ns
    return {
        "curve": messages.write_title(curve),
        "workers": forecast.rank_count,
        "step, forecast": quantity.time(forecast.step_ns),
        "at least": quantity.time(low_ns),
        "at most": quantity.time(high_ns),
        "validated": "yes" if forecast.is_validated else "no",
    }
