"""Parameter-server shards: load, traffic with workers, tensors, placement, and staleness of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures import axes
from tracelens_dashboard.figures.axes import BYTES, TIMES, cell_lead, scaled
from tracelens_dashboard.figures.drawing import Drawing, bars, dots, empty, figure, panels

if TYPE_CHECKING:
    from tracelens.arrays import Floats
    from tracelens_dashboard.figures.axes import Units
    from tracelens_dashboard.theme import Theme

MEASURES: Final[tuple[tuple[str, str, Units], ...]] = (
    ("bytes", "bytes<br>moved", BYTES),
    ("requests", "requests", ((1, ""),)),
    ("service", "service time<br>per request", TIMES),
    ("queue", "queue time<br>per request", TIMES),
    ("busy_share", "utilization<br>while requested", ((0.01, "%"),)),
)
FAR_RATIO: Final = 1.5  # to the mean: drawn in red
EVEN_RATIO: Final = 1.1
MOST_TENSORS: Final = 14  # that are drawn; the table has more
FEW_TENSORS: Final = 5  # bars would be as thick as a page's heading
NO_REQUESTS: Final = "No request between workers and shards was recorded."
UNNAMED: Final = "Requests of shard {shard} do not name their tensors."
PLACEMENT_NAMES: Final = {
    "now": "current",
    "greedy": "least-loaded (arrival order)",
    "largest_first": "largest first (LPT)",
    "chunked": "partitioned into chunks",
}
DIAMOND_ROOM: Final = "\N{NO-BREAK SPACE}" * 3
LEAST_SAVING: Final = 0.005  # of the job: less is no reason to move anything
MOST_WORKERS: Final = 40  # that are drawn; the table has all
SYNCHRONOUS: Final = "No worker trains asynchronously here: there is no staleness."


class Measure(NamedTuple):
    """One measure of all shards, in a unit that suits its size."""

    title: str
    unit: str
    values: Floats

    @property
    def heading(self) -> str:
        """Its name with its unit, in two lines."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


def scale_measures(shards: pl.DataFrame) -> list[Measure]:
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
        return empty(theme, NO_REQUESTS)
    measures, numbers = scale_measures(shards), shards["shard"].to_list()
    labels = [f"shard {number}" for number in numbers]
    plot = panels([measure.heading for measure in measures], theme, 0.03, margin={"t": 44})
    for column, measure in enumerate(measures, start=1):
        panel = {"row": 1, "col": column}
        mean = float(measure.values.mean())
        is_far = measure.values > FAR_RATIO * mean
        marker = {"size": 11, "color": np.where(is_far, theme.loss, theme.accent)}
        hover = f"%{{y}}: %{{x:,.2f}} {measure.unit}"
        plot.add_trace(dots(measure.values, labels, marker, hover, customdata=numbers), **panel)
        plot.add_vline(x=mean, line={"dash": "dot", "color": theme.secondary}, **panel)
        plot.update_xaxes(range=[0, max(measure.values.max(), 1e-9) * 1.15], **panel)
    plot.update_xaxes(fixedrange=True, nticks=4)
    plot.update_yaxes(fixedrange=True, range=[len(labels) - 0.5, -0.5], ticksuffix=" ")
    if marked in numbers:
        row = numbers.index(marked)
        band = {"y0": row - 0.45, "y1": row + 0.45}
        plot.add_hrect(**band, fillcolor=theme.loss, opacity=0.14, line_width=0)
    columns = {"shard": numbers, "host": shards["host"].to_list()}
    columns |= {
        measure.heading.replace("<br>", " "): measure.values.round(3).tolist()
        for measure in measures
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return Drawing(plot, load_summary(shards), rows)


def load_summary(shards: pl.DataFrame) -> str:
    """Describe how unevenly the shards are loaded."""
    nbytes = shards["bytes"].to_numpy()
    if not nbytes.sum():
        return "Shard requests have no byte counts."
    fullest = int(nbytes.argmax())
    ratio = nbytes[fullest] / nbytes.mean()
    if ratio < EVEN_RATIO:
        return f"The {len(nbytes)} shards are balanced: {text.size(nbytes.mean())} each."
    return (
        f"Shard {shards['shard'][fullest]} carries {text.size(float(nbytes[fullest]))}, "
        f"{ratio:.1f} times the mean of {len(nbytes)} shards; its utilization while requested is "
        f"{text.percent(float(shards['busy_share'][fullest] or 0))}. Dotted line: mean."
    )


def traffic(requests: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw which worker moves how many bytes with which shard; `requests` as in `Shards.traffic`.

    Requests that do not say which shard they are for are left out.
    """
    requests = requests.drop_nulls("shard")
    if requests.is_empty():
        return empty(theme, NO_REQUESTS)
    sums = requests.group_by("rank", "shard").agg(pl.col("bytes").sum()).sort("shard", "rank")
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
    plot = figure(theme, trace, xaxis=fixed, yaxis=fixed | {"range": [len(cells) - 0.5, -0.5]})
    totals = cells.sum(axis=1)
    summary = (
        f"Worker {pivot['rank'][int(totals.argmax())]} moves the most, {totals.max():,.2f} {unit}; "
        f"the least is {totals.min():,.2f} {unit}."
    )
    if totals.max() < EVEN_RATIO * max(totals.min(), 1e-9):
        summary = "Traffic is balanced across workers."
    return Drawing(plot, summary, requests.to_dicts())


def tensor_bars(
    tensors: pl.DataFrame, shard: int, mean_bytes: float | None, theme: Theme
) -> Drawing:
    """Draw a bar a tensor, largest first (LPT); red if it alone outweighs the mean shard.

    `tensors` as in `analyses.shards`; `mean_bytes` is what a worker moves one way to the mean shard in
    a step.
    """
    tensors_of_shard = tensors if tensors.is_empty() else tensors.filter(pl.col("shard") == shard)
    if tensors_of_shard.is_empty():
        return empty(theme, UNNAMED.format(shard=shard))
    drawn = tensors_of_shard.head(MOST_TENSORS)
    step_bytes = drawn["step_bytes"].to_numpy()
    unit, sizes = scaled(step_bytes.astype(float), BYTES)
    labels = [text.safe(name) for name in drawn["tensor"]]
    trace = bars(
        list(range(len(labels))),
        sizes,
        np.where(step_bytes > (mean_bytes or np.inf), theme.loss, theme.accent),
        f"%{{hovertext}}: %{{x:,.2f}} {unit} per step",
        customdata=[[shard, row] for row in range(len(labels))],
        text=[text.percent(share) for share in drawn["share"]],
        textposition="outside",
        cliponaxis=False,
        hovertext=labels,
    )
    plot = figure(
        theme,
        trace,
        xaxis=_size_axis(f"{unit} per step, one way", 1.15 * float(sizes.max(initial=0))),
        yaxis=axes.labelled_rows([f"{label} " for label in labels], theme),
        bargap=0.3 if len(labels) > FEW_TENSORS else 0.6,
        margin={"t": 26},
    )
    if mean_bytes:
        mean_size = mean_bytes * sizes[0] / step_bytes[0]
        font = {"color": theme.secondary, "size": 11}
        plot.add_vline(x=mean_size, line={"dash": "dot", "color": theme.secondary, "width": 1.5})
        plot.add_annotation(
            x=mean_size, y=1, yref="paper", yanchor="bottom", text="mean shard", showarrow=False,
            font=font,
        )  # fmt: skip
    length_ms = (pl.col("longest_end_ns") - pl.col("longest_start_ns")) / 1e6
    table = tensors_of_shard.select(
        "tensor",
        pl.col("step_bytes").alias("bytes per step, one way"),
        (100 * pl.col("share")).round(2).alias("% of the shard"),
        pl.col("bytes").alias("total bytes"),
        "requests",
        length_ms.round(3).alias("longest request (ms)"),
        pl.col("rank").alias("of rank"),
    )
    return Drawing(plot, _tensor_sentence(tensors_of_shard, shard, mean_bytes), table.to_dicts())


def _size_axis(title: str, high: float) -> dict[str, Any]:
    return {"fixedrange": True, "range": [0, high or 1], "title": {"text": title}}


def _tensor_sentence(tensors: pl.DataFrame, shard: int, mean_bytes: float | None) -> str:
    largest = tensors.row(0, named=True)
    name, size = text.safe(largest["tensor"]), text.size(largest["step_bytes"])
    sentence = (
        f"Shard {shard} serves {text.count(tensors.height, 'tensor')}; {name} ({size} per step, one "
        f"way) is {text.percent(largest['share'])} of its bytes."
    )
    if not mean_bytes or largest["step_bytes"] <= mean_bytes:
        return sentence
    return (
        f"{sentence} Alone it exceeds the mean shard's {text.size(mean_bytes)}: unless it is "
        "partitioned, no placement can balance its shard."
    )


def placement_bars(placements: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a bar a placement; the diamond is the least that any placement of its kind could have."""
    if placements.is_empty():
        return empty(theme, "No request has a byte count: placements cannot be evaluated.")
    rows = placements.to_dicts()
    unit, fullest_size = scaled(placements["most_bytes"].to_numpy().astype(float), BYTES)
    factor = rows[0]["most_bytes"] / fullest_size[0]
    labels = [f"{_name_placement(row)} " for row in rows]
    trace = bars(
        labels,
        fullest_size,
        [theme.quiet if row["placement"] == "now" else theme.accent for row in rows],
        f"%{{y}}: %{{x:,.2f}} {unit} on the max shard, %{{customdata}} effective shards",
        text=[_saving_text(row) for row in rows],
        textposition="outside",
        cliponaxis=False,
        customdata=[f"{row['effective_shards']:.1f}" for row in rows],
    )
    diamonds, hover = {"symbol": "diamond", "size": 10}, f"lower bound %{{x:,.2f}} {unit}"
    bound_size = placements["least_bytes"].to_numpy() / factor
    bounds = dots(bound_size, labels, diamonds | {"color": theme.text}, hover)
    plot = figure(
        theme,
        trace,
        bounds,
        xaxis=_size_axis(f"{unit} per step on the max shard", 1.3 * float(fullest_size.max())),
        yaxis=axes.rows_of(len(labels), theme),
        bargap=0.35,
        margin={"t": 22},
    )
    font = {"size": 11, "color": theme.secondary}
    plot.add_vline(
        x=rows[0]["mean_bytes"] / factor,
        line={"dash": "dot", "color": theme.secondary, "width": 1.5},
        annotation={"text": "mean shard", "yanchor": "bottom", "font": font},
        annotation_position="top",
    )
    table = placements.select(
        pl.col("placement").replace(PLACEMENT_NAMES),
        pl.col("most_bytes").alias("max shard (bytes)"),
        pl.col("mean_bytes").alias("mean shard (bytes)"),
        pl.col("least_bytes").alias("lower bound (bytes)"),
        pl.col("effective_shards").round(2).alias("effective shards"),
        (100 * pl.col("saving")).round(2).alias("saving (% of job time)"),
    )
    return Drawing(plot, placement_sentence(placements), table.to_dicts())


def _name_placement(row: dict[str, Any]) -> str:
    return PLACEMENT_NAMES.get(row["placement"], row["placement"])


def placement_sentence(placements: pl.DataFrame) -> str:
    """Return the effective shards, and what the best placement would save."""
    alternatives = {row["placement"]: row for row in placements.to_dicts()}
    row = alternatives.pop("now")
    shards = round(row["effective_shards"] * row["most_bytes"] / max(row["mean_bytes"], 1))
    sentence = f"Effective shards: {row['effective_shards']:.1f} of {shards}"
    if any(row["saving"] is None for row in alternatives.values()):
        return f"{sentence}; its requests cannot be replayed: what a placement saves is not known."
    option = max(alternatives.values(), key=lambda row: row["saving"], default=row)
    if option["saving"] < LEAST_SAVING:
        return f"{sentence}; no other placement would shorten the job."
    return (
        f"{sentence}; placement “{_name_placement(option)}”: {option['effective_shards']:.1f}, and the "
        f"job would be {text.percent(option['saving'])} shorter, by replay of its requests."
    )


def _saving_text(row: dict[str, Any]) -> str:
    if row["placement"] == "now":
        return ""
    if row["saving"] is None:
        return f"{DIAMOND_ROOM}saving not known"
    if row["saving"] < LEAST_SAVING:
        return f"{DIAMOND_ROOM}no saving"
    return f"{DIAMOND_ROOM}saves {text.percent(row['saving'])}"


class _Panel(NamedTuple):
    column: str
    title: str
    factor: float
    unit: str
    even: float | None = None  # the value where all workers are served alike


PANELS: Final = (
    _Panel("rate", "updates made,<br>times the mean worker's", 1, "times", 1.0),
    _Panel("staleness", "staleness of an update<br>(versions; ring: max)", 1, "versions"),
    _Panel("turn_share", "serialized at the server,<br>% of the job", 100, "%"),
)


def staleness(workers: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a row a worker, the stalest first if they are many; `workers` as in `analyses.asynchrony`."""
    if workers.is_empty():
        return empty(theme, SYNCHRONOUS)
    order = pl.max_horizontal(pl.col("staleness").fill_null(0), pl.col("turn_share").fill_null(0))
    drawn = workers.sort(order, descending=True).head(MOST_WORKERS).sort("rank")
    measured = [panel for panel in PANELS if (drawn[panel.column].fill_null(0) > 0).any()]
    titles = [panel.title for panel in measured]
    plot = panels(titles, theme, 0.05, margin={"t": 48}, bargap=0.3)
    labels, ranks = [f"worker {rank} " for rank in drawn["rank"]], drawn["rank"].to_list()
    for column, panel in enumerate(measured, start=1):
        cell, hover = {"row": 1, "col": column}, f"%{{y}}: %{{x:.2f}} {panel.unit}"
        values = drawn[panel.column] * panel.factor
        plot.add_trace(bars(labels, values, theme.accent, hover, customdata=ranks), **cell)
        if panel.column == "staleness":
            ring = {"symbol": "circle-open", "size": 9, "color": theme.loss, "line": {"width": 2}}
            hover, options = "%{y}: at most %{x} versions", {"cliponaxis": False}
            worst = dots(drawn["staleness_max"], labels, ring, hover, customdata=ranks, **options)
            plot.add_trace(worst, **cell)
        if panel.even:
            plot.add_vline(x=panel.even, line={"dash": "dot", "color": theme.secondary}, **cell)
    plot.update_xaxes(fixedrange=True, rangemode="tozero", nticks=5)
    plot.update_yaxes(fixedrange=True, range=[len(labels) - 0.5, -0.5])
    table = workers.select(
        pl.col("rank").alias("worker"),
        "updates",
        pl.col("rate").round(3).alias("times the mean"),
        pl.col("staleness").round(2).alias("staleness, mean"),
        pl.col("staleness_max").alias("staleness, max"),
        (pl.col("turn_ns") / 1e6).round(2).alias("serialized at the server (ms)"),
        (100 * pl.col("turn_share")).round(2).alias("% of the job"),
    )
    return Drawing(plot, staleness_sentence(workers), table.to_dicts())


def staleness_sentence(workers: pl.DataFrame) -> str:
    """Return the stalest worker, how even updates are, and how long workers are serialized."""
    sentences = []
    stale = workers.drop_nulls("staleness").sort("staleness", descending=True)
    if not stale.is_empty():
        stalest = stale.row(0, named=True)
        sentences.append(
            f"Worker {stalest['rank']}'s updates are the stalest: made from weights "
            f"{stalest['staleness']:.1f} versions old on average, {stalest['staleness_max']} at most."
            if stalest["staleness"]
            else "Every update is made from the newest weights."
        )
    rates = workers["rate"].drop_nulls().to_list()
    if len(rates) > 1:
        lowest, highest = min(rates), max(rates)
        sentences.append(
            f"Workers make between {lowest:.2f} and {highest:.2f} times the mean number of updates."
        )
    shares = workers["turn_share"].drop_nulls().to_list()
    if shares:
        mean = text.percent(sum(shares) / len(shares))
        sentences.append(f"They are serialized at the server {mean} of the time.")
    return " ".join(sentences) or SYNCHRONOUS
