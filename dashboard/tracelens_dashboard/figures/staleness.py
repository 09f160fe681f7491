"""Asynchronous training: staleness of each worker's updates, and fairness among workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from tracelens_dashboard import text
from tracelens_dashboard import theme as themes
from tracelens_dashboard.figures.drawing import Drawing, empty

if TYPE_CHECKING:
    from tracelens_dashboard.theme import Theme

MOST: Final = 40  # workers that are drawn; the table has all
SYNCHRONOUS: Final = "No worker trains asynchronously here: there is no staleness."


@dataclass(frozen=True)
class _Panel:
    column: str
    title: str
    factor: float
    unit: str
    even: float | None = None  # what it is where all are served alike


PANELS: Final = (
    _Panel("rate", "updates made,<br>times the mean worker's", 1, "times", 1.0),
    _Panel("staleness", "staleness of an update<br>(versions; ring: max)", 1, "versions", 0.0),
    _Panel("turn_share", "serialized at the server,<br>% of the job", 100, "%"),
)


def draw(workers: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a row a worker, the stalest first if they are many; `workers` as in `analyses.asynchrony`."""
    if workers.is_empty():
        return empty(theme, SYNCHRONOUS)
    order = pl.max_horizontal(pl.col("staleness").fill_null(0), pl.col("turn_share").fill_null(0))
    shown = workers.sort(order, descending=True).head(MOST).sort("rank")
    panels = [panel for panel in PANELS if (shown[panel.column].fill_null(0) > 0).any()]
    drawn = make_subplots(
        cols=max(len(panels), 1),
        shared_yaxes=True,
        horizontal_spacing=0.05,
        subplot_titles=[panel.title for panel in panels],
    )
    drawn.update_layout(template=themes.template(theme.name), margin={"t": 48}, bargap=0.3)
    drawn.update_annotations(font={"size": 12, "color": theme.secondary})
    labels = [f"worker {rank} " for rank in shown["rank"]]
    for column, panel in enumerate(panels, start=1):
        for trace in _traces(panel, shown, labels, theme):
            drawn.add_trace(trace, row=1, col=column)
        if panel.even:
            line = {"dash": "dot", "color": theme.secondary}
            drawn.add_vline(x=panel.even, line=line, row=1, col=column)
    drawn.update_xaxes(fixedrange=True, rangemode="tozero", nticks=5)
    drawn.update_yaxes(fixedrange=True, range=[len(labels) - 0.5, -0.5])
    return Drawing(drawn, sentence(workers), _rows(workers))


def sentence(workers: pl.DataFrame) -> str:
    """Return the stalest worker, how even updates are, and how long workers are serialized."""
    parts = [_stalest(workers), _fairness(workers), _turns(workers)]
    return " ".join(part for part in parts if part) or SYNCHRONOUS


def _stalest(workers: pl.DataFrame) -> str:
    known = workers.drop_nulls("staleness")
    if known.is_empty():
        return ""
    worst = known.sort("staleness", descending=True).row(0, named=True)
    if worst["staleness"] == 0:
        return "Every update is made from the newest weights."
    return (
        f"Worker {worst['rank']}'s updates are the stalest: made from weights "
        f"{worst['staleness']:.1f} versions old on average, {worst['staleness_max']} at most."
    )


def _fairness(workers: pl.DataFrame) -> str:
    rates = workers["rate"].drop_nulls().to_list()
    if len(rates) < 2:
        return ""
    least, most = min(rates), max(rates)
    return f"Workers make between {least:.2f} and {most:.2f} times the mean number of updates."


def _turns(workers: pl.DataFrame) -> str:
    shares = workers["turn_share"].drop_nulls().to_list()
    if not shares:
        return ""
    mean = sum(shares) / len(shares)
    return f"They are serialized at the server {text.percent(mean)} of the time."


def _traces(
    panel: _Panel, shown: pl.DataFrame, labels: list[str], theme: Theme
) -> list[go.Bar | go.Scatter]:
    bars = go.Bar(
        orientation="h",
        y=labels,
        x=shown[panel.column] * panel.factor,
        customdata=shown["rank"].to_list(),
        marker={"color": theme.accent, "line": {"width": 0}},
        hovertemplate=f"%{{y}}: %{{x:.2f}} {panel.unit}<extra></extra>",
    )
    return [bars, _worst(shown, labels, theme)] if panel.column == "staleness" else [bars]


def _worst(shown: pl.DataFrame, labels: list[str], theme: Theme) -> go.Scatter:
    return go.Scatter(
        x=shown["staleness_max"],
        y=labels,
        mode="markers",
        cliponaxis=False,
        customdata=shown["rank"].to_list(),
        marker={"symbol": "circle-open", "size": 9, "color": theme.loss, "line": {"width": 2}},
        hovertemplate="%{y}: at most %{x} versions<extra></extra>",
    )


def _rows(workers: pl.DataFrame) -> list[dict[str, Any]]:
    return workers.select(
        pl.col("rank").alias("worker"),
        "updates",
        pl.col("rate").round(3).alias("times the mean"),
        pl.col("staleness").round(2).alias("staleness, mean"),
        pl.col("staleness_max").alias("staleness, max"),
        (pl.col("turn_ns") / 1e6).round(2).alias("serialized at the server (ms)"),
        (100 * pl.col("turn_share")).round(2).alias("% of the job"),
    ).to_dicts()
