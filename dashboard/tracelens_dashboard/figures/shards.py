"""Parameter-server shards side by side, each measure against its mean; and who talks to which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from tracelens_dashboard import text
from tracelens_dashboard import theme as themes
from tracelens_dashboard.figures.cells import lead
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.units import BYTES, TIMES, scaled

if TYPE_CHECKING:
    from tracelens_dashboard.figures.units import Units
    from tracelens_dashboard.theme import Theme

MEASURES: Final[tuple[tuple[str, str, Units], ...]] = (
    ("bytes", "bytes<br>moved", BYTES),
    ("requests", "requests", ((1, ""),)),
    ("service", "service of<br>a request", TIMES),
    ("queue", "queue of<br>a request", TIMES),
    ("busy_share", "busy when<br>asked", ((0.01, "%"),)),
)
FAR: Final = 1.5  # times the mean: named in red
EVEN: Final = 1.1


@dataclass(frozen=True)
class Measure:
    """One measure of all shards, in a unit that suits its size."""

    title: str
    unit: str
    values: np.ndarray[Any, np.dtype[np.float64]]

    @property
    def heading(self) -> str:
        """Name it with its unit, in two lines."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def name(self) -> str:
        """Name it with its unit, in one line."""
        return self.heading.replace("<br>", " ")


def measures(shards: pl.DataFrame) -> list[Measure]:
    """Scale every measure of `tracelens.analyses.shards.Shards.loads`."""
    requests = pl.max_horizontal("requests", pl.lit(1))
    table = shards.with_columns(
        service=pl.col("service_ns") / requests, queue=pl.col("queue_ns") / requests
    )
    return [
        Measure(title, *scaled(table[name].fill_null(0).to_numpy().astype(float), units))
        for name, title, units in MEASURES
    ]


def dots(shards: pl.DataFrame, theme: Theme, marked: int | None = None) -> Drawing:
    """Draw one column of dots a measure; the line is the mean, far dots are red."""
    if shards.is_empty():
        return empty(theme, "No request between workers and shards was recorded.")
    found = measures(shards)
    labels = [f"shard {shard}" for shard in shards["shard"]]
    drawn = make_subplots(
        cols=len(found),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        subplot_titles=[measure.heading for measure in found],
    )
    drawn.update_layout(template=themes.template(theme.name), margin={"t": 44})
    drawn.update_annotations(font={"size": 12, "color": theme.secondary})
    for column, measure in enumerate(found, start=1):
        place = {"row": 1, "col": column}
        drawn.add_trace(_dots(labels, list(shards["shard"]), measure, theme), **place)
        mean = float(measure.values.mean())
        drawn.add_vline(x=mean, line={"dash": "dot", "color": theme.secondary}, **place)
        drawn.update_xaxes(range=[0, max(measure.values.max(), 1e-9) * 1.15], **place)
    drawn.update_xaxes(fixedrange=True, nticks=4)
    drawn.update_yaxes(fixedrange=True, range=[len(labels) - 0.5, -0.5], ticksuffix=" ")
    if marked in set(shards["shard"]):
        row = list(shards["shard"]).index(marked)
        band = {"y0": row - 0.45, "y1": row + 0.45}
        drawn.add_hrect(**band, fillcolor=theme.loss, opacity=0.14, line_width=0)
    return Drawing(drawn, summary(shards), _rows(shards, found))


def summary(shards: pl.DataFrame) -> str:
    """Say how unevenly the shards are loaded."""
    values = shards["bytes"].to_numpy()
    if not values.sum():
        return "The shards' requests carry no byte counts."
    most = int(values.argmax())
    ratio = values[most] / values.mean()
    if ratio < EVEN:
        return f"The {len(values)} shards carry about the same: {text.size(values.mean())} each."
    return (
        f"Shard {shards['shard'][most]} carries {text.size(float(values[most]))}, "
        f"{ratio:.1f} times the mean of {len(values)} shards, and is "
        f"busy {text.percent(float(shards['busy_share'][most] or 0))} of the time in which it is asked. "
        "The dotted line is the mean."
    )


def traffic(table: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw which worker moves how many bytes with which shard; `table` as in `Shards.traffic`.

    Requests that do not say which shard they are for have no place in it.
    """
    table = table.drop_nulls("shard")
    if table.is_empty():
        return empty(theme, "No request between workers and shards was recorded.")
    sums = table.group_by("rank", "shard").agg(pl.col("bytes").sum()).sort("shard", "rank")
    pivot = sums.pivot(on="shard", index="rank", values="bytes").sort("rank")
    shards = [name for name in pivot.columns if name != "rank"]
    unit, cells = scaled(pivot.select(shards).fill_null(0).to_numpy().astype(float), BYTES)
    trace = go.Heatmap(
        z=cells,
        customdata=[[lead(rank, int(shard)) for shard in shards] for rank in pivot["rank"]],
        x=[f"shard {name}" for name in shards],
        y=[f"worker {rank} " for rank in pivot["rank"]],
        colorscale=[[0, theme.ramp[0]], [1, theme.accent]],
        zmin=0,
        zmax=float(cells.max()) or 1.0,
        colorbar={"ticksuffix": f" {unit}", "nticks": 5},
        hovertemplate=f"%{{y}}with %{{x}}: %{{z:,.2f}} {unit}<extra></extra>",
        xgap=2,
        ygap=2 if len(cells) <= 64 else 0,
    )
    fixed = {"fixedrange": True, "showgrid": False}
    rows = {"range": [len(cells) - 0.5, -0.5]}
    drawn = figure(theme, trace, xaxis=fixed, yaxis=fixed | rows)
    return Drawing(
        drawn, _unevenness(list(pivot["rank"]), cells.sum(axis=1), unit), table.to_dicts()
    )


def _dots(labels: list[str], shards: list[int], measure: Measure, theme: Theme) -> go.Scatter:
    far = measure.values > FAR * measure.values.mean()
    return go.Scatter(
        x=measure.values,
        y=labels,
        customdata=shards,
        mode="markers",
        marker={"size": 11, "color": np.where(far, theme.loss, theme.accent)},
        hovertemplate=f"%{{y}}: %{{x:,.2f}} {measure.unit}<extra></extra>",
    )


def _rows(shards: pl.DataFrame, found: list[Measure]) -> list[dict[str, Any]]:
    columns = {measure.name: measure.values.round(3).tolist() for measure in found}
    names = {"shard": shards["shard"].to_list(), "host": shards["host"].to_list()}
    table = names | columns
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def _unevenness(workers: list[int], totals: np.ndarray[Any, Any], unit: str) -> str:
    if totals.max() < EVEN * max(totals.min(), 1e-9):
        return "All workers move about the same number of bytes."
    return (
        f"Worker {workers[int(totals.argmax())]} moves the most, {totals.max():,.2f} {unit}; "
        f"the least is {totals.min():,.2f} {unit}."
    )
