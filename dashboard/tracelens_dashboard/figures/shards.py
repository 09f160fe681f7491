"""Parameter-server shards: load, traffic with workers, the tensors of one, variable placement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from tracelens_dashboard import text
from tracelens_dashboard import theme as themes
from tracelens_dashboard.figures.axes import BYTES, TIMES, cell_lead, scaled
from tracelens_dashboard.figures.drawing import Drawing, empty, figure

if TYPE_CHECKING:
    from tracelens.arrays import Array, Floats
    from tracelens_dashboard.figures.axes import Units
    from tracelens_dashboard.theme import Theme


MEASURES: Final[tuple[tuple[str, str, Units], ...]] = (
    ("bytes", "bytes<br>moved", BYTES),
    ("requests", "requests", ((1, ""),)),
    ("service", "service time<br>per request", TIMES),
    ("queue", "queue time<br>per request", TIMES),
    ("busy_share", "utilization<br>while requested", ((0.01, "%"),)),
)
FAR: Final = 1.5  # times the mean: named in red
EVEN: Final = 1.1
MOST_TENSORS: Final = 14  # that are drawn; the table has more
FEW_TENSORS: Final = 5  # bars would be as thick as a page's heading
UNNAMED: Final = "Requests of shard {shard} do not name their tensors."
PLACEMENT_NAMES: Final = {
    "now": "current",
    "greedy": "least-loaded (arrival order)",
    "largest_first": "largest first (LPT)",
    "chunked": "partitioned into chunks",
}
BESIDE: Final = "\N{NO-BREAK SPACE}" * 3  # where the diamond is
WORTH_IT: Final = 0.005  # of the job: less is no reason to move anything


@dataclass(frozen=True)
class Measure:
    """One measure of all shards, in a unit that suits its size."""

    title: str
    unit: str
    values: Floats

    @property
    def heading(self) -> str:
        """Name it with its unit, in two lines."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def name(self) -> str:
        """Name it with its unit, in one line."""
        return self.heading.replace("<br>", " ")


def measures(shards: pl.DataFrame) -> list[Measure]:
    """Scale every measure of `tracelens.analyses.servers.shards.Shards.loads`."""
    requests = pl.max_horizontal("requests", pl.lit(1))
    table = shards.with_columns(
        service=pl.col("service_ns") / requests, queue=pl.col("queue_ns") / requests
    )
    return [
        Measure(title, *scaled(table[name].fill_null(0).to_numpy().astype(float), units))
        for name, title, units in MEASURES
    ]


def load(shards: pl.DataFrame, theme: Theme, marked: int | None = None) -> Drawing:
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
        drawn.add_trace(_load_dots(labels, list(shards["shard"]), measure, theme), **place)
        mean = float(measure.values.mean())
        drawn.add_vline(x=mean, line={"dash": "dot", "color": theme.secondary}, **place)
        drawn.update_xaxes(range=[0, max(measure.values.max(), 1e-9) * 1.15], **place)
    drawn.update_xaxes(fixedrange=True, nticks=4)
    drawn.update_yaxes(fixedrange=True, range=[len(labels) - 0.5, -0.5], ticksuffix=" ")
    if marked in set(shards["shard"]):
        row = list(shards["shard"]).index(marked)
        band = {"y0": row - 0.45, "y1": row + 0.45}
        drawn.add_hrect(**band, fillcolor=theme.loss, opacity=0.14, line_width=0)
    return Drawing(drawn, load_summary(shards), _load_rows(shards, found))


def load_summary(shards: pl.DataFrame) -> str:
    """Return how unevenly the shards are loaded."""
    values = shards["bytes"].to_numpy()
    if not values.sum():
        return "Shard requests have no byte counts."
    most = int(values.argmax())
    ratio = values[most] / values.mean()
    if ratio < EVEN:
        return f"The {len(values)} shards are balanced: {text.size(values.mean())} each."
    return (
        f"Shard {shards['shard'][most]} carries {text.size(float(values[most]))}, "
        f"{ratio:.1f} times the mean of {len(values)} shards; its utilization while requested is "
        f"{text.percent(float(shards['busy_share'][most] or 0))}. Dotted line: mean."
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
        customdata=[[cell_lead(rank, int(shard)) for shard in shards] for rank in pivot["rank"]],
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


def _load_dots(labels: list[str], shards: list[int], measure: Measure, theme: Theme) -> go.Scatter:
    far = measure.values > FAR * measure.values.mean()
    return go.Scatter(
        x=measure.values,
        y=labels,
        customdata=shards,
        mode="markers",
        marker={"size": 11, "color": np.where(far, theme.loss, theme.accent)},
        hovertemplate=f"%{{y}}: %{{x:,.2f}} {measure.unit}<extra></extra>",
    )


def _load_rows(shards: pl.DataFrame, found: list[Measure]) -> list[dict[str, Any]]:
    columns = {measure.name: measure.values.round(3).tolist() for measure in found}
    names = {"shard": shards["shard"].to_list(), "host": shards["host"].to_list()}
    table = names | columns
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def _unevenness(workers: list[int], totals: Array, unit: str) -> str:
    if totals.max() < EVEN * max(totals.min(), 1e-9):
        return "Traffic is balanced across workers."
    return (
        f"Worker {workers[int(totals.argmax())]} moves the most, {totals.max():,.2f} {unit}; "
        f"the least is {totals.min():,.2f} {unit}."
    )


def tensor_bars(
    tensors: pl.DataFrame, shard: int, mean_bytes: float | None, theme: Theme
) -> Drawing:
    """Draw a bar a tensor, largest first (LPT); red is one that alone outweighs the mean shard.

    `tensors` as in `analyses.shards`; `mean_bytes` is what a worker moves one way to the mean shard in
    a step.
    """
    mine = tensors if tensors.is_empty() else tensors.filter(pl.col("shard") == shard)
    if mine.is_empty():
        return empty(theme, UNNAMED.format(shard=shard))
    top = mine.head(MOST_TENSORS)
    unit, sizes = scaled(top["step_bytes"].to_numpy().astype(float), BYTES)
    labels = [text.safe(name) for name in top["tensor"]]
    bounding = top["step_bytes"].to_numpy() > (mean_bytes or np.inf)
    bars = go.Bar(
        orientation="h",
        y=list(range(len(labels))),
        x=sizes,
        marker={"color": np.where(bounding, theme.loss, theme.accent), "line": {"width": 0}},
        customdata=[[shard, row] for row in range(len(labels))],
        text=[text.percent(share) for share in top["share"]],
        textposition="outside",
        cliponaxis=False,
        hovertext=labels,
        hovertemplate=f"%{{hovertext}}: %{{x:,.2f}} {unit} per step<extra></extra>",
    )
    drawn = figure(theme, bars, **_tensor_axes(labels, sizes, unit, theme))
    if mean_bytes:
        _mean_line(drawn, mean_bytes * sizes[0] / top["step_bytes"][0], theme)
    return Drawing(drawn, _tensor_sentence(mine, shard, mean_bytes), _tensor_rows(mine))


def _tensor_sentence(mine: pl.DataFrame, shard: int, mean_bytes: float | None) -> str:
    first = mine.row(0, named=True)
    name, size = text.safe(first["tensor"]), text.size(first["step_bytes"])
    held = text.count(mine.height, "tensor")
    share = text.percent(first["share"])
    largest = (
        f"Shard {shard} serves {held}; {name} ({size} per step, one way) is {share} of its bytes"
    )
    if mean_bytes and first["step_bytes"] > mean_bytes:
        return (
            f"{largest}. Alone it exceeds the mean shard's {text.size(mean_bytes)}: unless it is "
            "partitioned, no placement can balance its shard."
        )
    return f"{largest}."


def _tensor_rows(mine: pl.DataFrame) -> list[dict[str, Any]]:
    lasted = (pl.col("longest_end_ns") - pl.col("longest_start_ns")) / 1e6
    return mine.select(
        "tensor",
        pl.col("step_bytes").alias("bytes per step, one way"),
        (100 * pl.col("share")).round(2).alias("% of the shard"),
        pl.col("bytes").alias("total bytes"),
        "requests",
        lasted.round(3).alias("longest request (ms)"),
        pl.col("rank").alias("of rank"),
    ).to_dicts()


def _tensor_axes(labels: list[str], sizes: Array, unit: str, theme: Theme) -> dict[str, Any]:
    return {
        "xaxis": {
            "fixedrange": True,
            "range": [0, 1.15 * float(sizes.max(initial=0)) or 1],
            "title": {"text": f"{unit} per step, one way"},
        },
        "yaxis": {
            "tickvals": list(range(len(labels))),
            "ticktext": [f"{label} " for label in labels],
            "range": [len(labels) - 0.5, -0.5],
            "fixedrange": True,
            "tickfont": {"color": theme.text},
        },
        "bargap": 0.3 if len(labels) > FEW_TENSORS else 0.6,
        "margin": {"t": 26},
    }


def _mean_line(drawn: go.Figure, at: float, theme: Theme) -> None:
    drawn.add_vline(x=at, line={"dash": "dot", "color": theme.secondary, "width": 1.5})
    drawn.add_annotation(
        x=at, y=1, yref="paper", yanchor="bottom", text="mean shard", showarrow=False,
        font={"color": theme.secondary, "size": 11},
    )  # fmt: skip


def placement_bars(placements: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a bar a placement; the diamond is the least that any placement of its kind could have."""
    if placements.is_empty():
        return empty(theme, "No request has a byte count: placements cannot be evaluated.")
    rows = placements.to_dicts()
    unit, most = scaled(placements["most_bytes"].to_numpy().astype(float), BYTES)
    factor = rows[0]["most_bytes"] / most[0]
    labels = [f"{PLACEMENT_NAMES.get(row['placement'], row['placement'])} " for row in rows]
    colours = [theme.quiet if row["placement"] == "now" else theme.accent for row in rows]
    bars = go.Bar(
        orientation="h",
        y=labels,
        x=most,
        marker={"color": colours, "line": {"width": 0}},
        text=[_gain(row) for row in rows],
        textposition="outside",
        cliponaxis=False,
        customdata=[f"{row['effective_shards']:.1f}" for row in rows],
        hovertemplate=(
            f"%{{y}}: %{{x:,.2f}} {unit} on the max shard, %{{customdata}} effective shards"
            "<extra></extra>"
        ),
    )
    bounds = go.Scatter(
        x=placements["least_bytes"].to_numpy() / factor,
        y=labels,
        mode="markers",
        marker={"symbol": "diamond", "size": 10, "color": theme.text},
        hovertemplate=f"lower bound %{{x:,.2f}} {unit}<extra></extra>",
    )
    drawn = figure(theme, bars, bounds, **_placement_axes(labels, float(most.max()), unit, theme))
    drawn.add_vline(
        x=rows[0]["mean_bytes"] / factor,
        line={"dash": "dot", "color": theme.secondary, "width": 1.5},
        annotation={
            "text": "mean shard",
            "yanchor": "bottom",
            "font": {"size": 11, "color": theme.secondary},
        },
        annotation_position="top",
    )
    return Drawing(drawn, placement_sentence(placements), _placement_rows(placements))


def placement_sentence(placements: pl.DataFrame) -> str:
    """Return the effective shards, and what the best placement would save."""
    rows = {row["placement"]: row for row in placements.to_dicts()}
    now = rows.pop("now")
    shards = round(now["effective_shards"] * now["most_bytes"] / max(now["mean_bytes"], 1))
    current = f"Effective shards: {now['effective_shards']:.1f} of {shards}"
    if any(row["saving"] is None for row in rows.values()):
        return f"{current}; its requests cannot be replayed: what a placement saves is not known."
    best = max(rows.values(), key=lambda row: row["saving"], default=now)
    if best["saving"] < WORTH_IT:
        return f"{current}; no other placement would shorten the job."
    how = PLACEMENT_NAMES.get(best["placement"], best["placement"])
    return (
        f"{current}; placement “{how}”: {best['effective_shards']:.1f}, and the job would be "
        f"{text.percent(best['saving'])} shorter, by replay of its requests."
    )


def _gain(row: dict[str, Any]) -> str:
    if row["placement"] == "now":
        return ""
    if row["saving"] is None:
        return f"{BESIDE}saving not known"
    if row["saving"] < WORTH_IT:
        return f"{BESIDE}no saving"
    return f"{BESIDE}saves {text.percent(row['saving'])}"


def _placement_axes(labels: list[str], most: float, unit: str, theme: Theme) -> dict[str, Any]:
    return {
        "xaxis": {
            "fixedrange": True,
            "range": [0, 1.3 * most or 1],
            "title": {"text": f"{unit} per step on the max shard"},
        },
        "yaxis": {
            "fixedrange": True,
            "range": [len(labels) - 0.5, -0.5],
            "tickfont": {"color": theme.text},
        },
        "bargap": 0.35,
        "margin": {"t": 22},
    }


def _placement_rows(placements: pl.DataFrame) -> list[dict[str, Any]]:
    return placements.select(
        pl.col("placement").replace(PLACEMENT_NAMES),
        pl.col("most_bytes").alias("max shard (bytes)"),
        pl.col("mean_bytes").alias("mean shard (bytes)"),
        pl.col("least_bytes").alias("lower bound (bytes)"),
        pl.col("effective_shards").round(2).alias("effective shards"),
        (100 * pl.col("saving")).round(2).alias("saving (% of job time)"),
    ).to_dicts()
