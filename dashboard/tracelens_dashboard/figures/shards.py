"""Parameter-server shards: load, traffic with workers, tensors, placement, and staleness of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, drawing
from tracelens_dashboard.figures.axes import BYTES, TIMES, Units, scale_to_unit, write_cell_values
from tracelens_dashboard.figures.drawing import Drawing, bars, dots, empty, figure, panels

if TYPE_CHECKING:
    from tracelens.arrays import Floats
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
    """One measure of all shards, [shard], in a unit that suits its size."""

    title: str
    unit_name: str
    value_by_shard: Floats

    @property
    def heading(self) -> str:
        """Its name with its unit, in two lines."""
        return f"{self.title} ({self.unit_name})" if self.unit_name else self.title


def scale_measures(shards: pl.DataFrame) -> list[Measure]:
    """Return the `MEASURES` of all shards; a shard is a row, with its totals of the run."""
    requests = pl.max_horizontal("requests", pl.lit(1))
    shard_rows = shards.with_columns(  # ns per request
        service=pl.col("service_ns") / requests, queue=pl.col("queue_ns") / requests
    )
    return [
        Measure(
            title, *scale_to_unit(shard_rows[name].fill_null(0).to_numpy().astype(float), units)
        )
        for name, title, units in MEASURES
    ]


def load(shards: pl.DataFrame, theme: Theme, marked_shard: int | None = None) -> Drawing:
    """Draw a panel of dots per measure of shards (rows); the line is the mean, far dots are red."""
    if shards.is_empty():
        return empty(theme, NO_REQUESTS)
    measures, shard_numbers = scale_measures(shards), shards["shard"].to_list()
    labels = [f"shard {number}" for number in shard_numbers]
    plot = panels(
        [measure.heading for measure in measures], theme, spacing_share=0.03, margin={"t": 44}
    )
    for panel, measure in enumerate(measures, start=1):
        cell = {"row": 1, "col": panel}
        mean = float(measure.value_by_shard.mean())
        is_far = measure.value_by_shard > FAR_RATIO * mean
        marker = {"size": 11, "color": np.where(is_far, theme.loss_colour, theme.accent_colour)}
        hover = f"%{{y}}: %{{x:,.2f}} {measure.unit_name}"
        plot.add_trace(
            dots(measure.value_by_shard, labels, marker, hover, customdata=shard_numbers), **cell
        )
        plot.add_vline(x=mean, line={"dash": "dot", "color": theme.secondary_colour}, **cell)
        plot.update_xaxes(range=[0, max(measure.value_by_shard.max(), 1e-9) * 1.15], **cell)
    plot.update_xaxes(fixedrange=True, nticks=4)
    plot.update_yaxes(fixedrange=True, range=[len(labels) - 0.5, -0.5], ticksuffix=" ")
    if marked_shard in shard_numbers:
        marked_row = shard_numbers.index(marked_shard)
        band = {"y0": marked_row - 0.45, "y1": marked_row + 0.45}
        plot.add_hrect(**band, fillcolor=theme.loss_colour, opacity=0.14, line_width=0)
    table_columns = {"shard": shard_numbers, "host": shards["host"].to_list()}
    table_columns |= {
        measure.heading.replace("<br>", " "): measure.value_by_shard.round(3).tolist()
        for measure in measures
    }
    table_rows = zip(*table_columns.values(), strict=True)
    table = [dict(zip(table_columns, row, strict=True)) for row in table_rows]
    return Drawing(plot, describe_load(shards), table)


def describe_load(shards: pl.DataFrame) -> str:
    """Return the fullest shard, and its bytes in relation to the mean; a shard is a row."""
    shard_bytes = shards["bytes"].to_numpy()
    if not shard_bytes.sum():
        return "Shard requests have no byte counts."
    fullest_index = int(shard_bytes.argmax())
    ratio_to_mean = shard_bytes[fullest_index] / shard_bytes.mean()
    if ratio_to_mean < EVEN_RATIO:
        return f"The {len(shard_bytes)} shards are balanced: {text.size(shard_bytes.mean())} each."
    return (
        f"Shard {shards['shard'][fullest_index]} carries "
        f"{text.size(float(shard_bytes[fullest_index]))}, {ratio_to_mean:.1f} times the mean of "
        f"{len(shard_bytes)} shards; its utilization while requested is "
        f"{text.percent(float(shards['busy_share'][fullest_index] or 0))}. Dotted line: mean."
    )


def traffic(requests: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw how many bytes each worker moves with each shard.

    `requests` has one row per worker, shard and kind of request, with its bytes; those that do not
    say which shard they are for are left out. The map is [worker, shard].
    """
    requests = requests.drop_nulls("shard")
    if requests.is_empty():
        return empty(theme, NO_REQUESTS)
    pair_bytes = requests.group_by("rank", "shard").agg(pl.col("bytes").sum()).sort("shard", "rank")
    bytes_by_worker = pair_bytes.pivot(on="shard", index="rank", values="bytes").sort("rank")
    shard_names = [name for name in bytes_by_worker.columns if name != "rank"]
    cell_bytes = bytes_by_worker.select(shard_names).fill_null(0).to_numpy().astype(float)
    unit_name, cell_sizes = scale_to_unit(cell_bytes, BYTES)
    trace = go.Heatmap(
        z=cell_sizes,
        customdata=[
            [write_cell_values(rank, int(shard)) for shard in shard_names]
            for rank in bytes_by_worker["rank"]
        ],
        x=[f"shard {name}" for name in shard_names],
        y=[f"worker {rank} " for rank in bytes_by_worker["rank"]],
        colorscale=[[0, theme.ramp_colours[0]], [1, theme.accent_colour]],
        zmin=0,
        zmax=float(cell_sizes.max()) or 1.0,
        colorbar={"ticksuffix": f" {unit_name}", "nticks": 5},
        hovertemplate=f"%{{y}}with %{{x}}: %{{z:,.2f}} {unit_name}<extra></extra>",
        xgap=2,
        ygap=2 if len(cell_sizes) <= 64 else 0,
    )
    axis = {"fixedrange": True, "showgrid": False}
    rows = axis | {"range": [len(cell_sizes) - 0.5, -0.5]}
    plot = figure(theme, trace, xaxis=axis, yaxis=rows)
    worker_totals = cell_sizes.sum(axis=1)
    summary = (
        f"Worker {bytes_by_worker['rank'][int(worker_totals.argmax())]} moves the most, "
        f"{worker_totals.max():,.2f} {unit_name}; the least is {worker_totals.min():,.2f} "
        f"{unit_name}."
    )
    if worker_totals.max() < EVEN_RATIO * max(worker_totals.min(), 1e-9):
        summary = "Traffic is balanced across workers."
    return Drawing(plot, summary, requests.to_dicts())


def tensor_bars(
    tensors: pl.DataFrame, shard: int, mean_bytes: float | None, theme: Theme
) -> Drawing:
    """Draw a bar per tensor of a shard, the largest first; red if it exceeds the mean shard.

    `tensors` has one row per tensor and shard, the largest first: `step_bytes` is what a
    worker pushes in a step, `share` its part of the shard's bytes. `mean_bytes` are the mean
    shard's, None where not known.
    """
    tensors_of_shard = tensors if tensors.is_empty() else tensors.filter(pl.col("shard") == shard)
    if tensors_of_shard.is_empty():
        return empty(theme, UNNAMED.format(shard=shard))
    drawn_tensors = tensors_of_shard.head(MOST_TENSORS)
    step_bytes = drawn_tensors["step_bytes"].to_numpy()
    unit_name, scaled_sizes = scale_to_unit(step_bytes.astype(float), BYTES)
    labels = [text.escape_name(name) for name in drawn_tensors["tensor"]]
    trace = bars(
        list(range(len(labels))),
        scaled_sizes,
        np.where(step_bytes > (mean_bytes or np.inf), theme.loss_colour, theme.accent_colour),
        f"%{{hovertext}}: %{{x:,.2f}} {unit_name} per step",
        customdata=[[shard, row] for row in range(len(labels))],
        text=[text.percent(share) for share in drawn_tensors["share"]],
        textposition="outside",
        cliponaxis=False,
        hovertext=labels,
    )
    plot = figure(
        theme,
        trace,
        xaxis=_size_axis(
            f"{unit_name} per step, one way", 1.15 * float(scaled_sizes.max(initial=0))
        ),
        yaxis=axes.labelled_rows([f"{label} " for label in labels], theme),
        bargap=0.3 if len(labels) > FEW_TENSORS else 0.6,
        margin={"t": 26},
    )
    if mean_bytes:
        mean_size = mean_bytes * scaled_sizes[0] / step_bytes[0]
        position = {"x": mean_size, "y": 1, "yref": "paper", "yanchor": "bottom"}
        plot.add_vline(
            x=mean_size, line={"dash": "dot", "color": theme.secondary_colour, "width": 1.5}
        )
        plot.add_annotation(drawing.label("mean shard", theme.secondary_colour, position))
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
    return Drawing(plot, _describe_tensors(tensors_of_shard, shard, mean_bytes), table.to_dicts())


def _size_axis(title: str, high: float) -> dict[str, Any]:
    return {"fixedrange": True, "range": [0, high or 1], "title": {"text": title}}


def _describe_tensors(tensors_of_shard: pl.DataFrame, shard: int, mean_bytes: float | None) -> str:
    """Return the largest tensor of a shard, and whether it exceeds the mean shard."""
    # Tensors are rows, the largest first. `step_bytes` is what a rank pushes in a step, `share` the
    # tensor's part of all bytes of the shard.
    largest_tensor = tensors_of_shard.row(0, named=True)
    name, size = text.escape_name(largest_tensor["tensor"]), text.size(largest_tensor["step_bytes"])
    sentence = (
        f"Shard {shard} serves {text.count(tensors_of_shard.height, 'tensor')}; {name} ({size} "
        f"per step, one way) is {text.percent(largest_tensor['share'])} of its bytes."
    )
    if not mean_bytes or largest_tensor["step_bytes"] <= mean_bytes:
        return sentence
    return (
        f"{sentence} Alone it exceeds the mean shard's {text.size(mean_bytes)}: unless it is "
        "partitioned, no placement can balance its shard."
    )


def placement_bars(placements: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the bytes of each placement's (row's) fullest shard; diamond: its lower bound."""
    # The first row is the placement as it is. Bytes per step are of the fullest (`most_bytes`) and
    # the mean shard, and what the fullest has at least (`least_bytes`).
    if placements.is_empty():
        return empty(theme, "No request has a byte count: placements cannot be evaluated.")
    placement_rows = placements.to_dicts()
    fullest_bytes = placements["most_bytes"].to_numpy().astype(float)
    unit_name, fullest_sizes = scale_to_unit(fullest_bytes, BYTES)
    unit_bytes = fullest_bytes[0] / fullest_sizes[0]
    labels = [f"{_name_placement(row)} " for row in placement_rows]
    trace = bars(
        labels,
        fullest_sizes,
        [
            theme.quiet_colour if row["placement"] == "now" else theme.accent_colour
            for row in placement_rows
        ],
        f"%{{y}}: %{{x:,.2f}} {unit_name} on the max shard, %{{customdata}} effective shards",
        text=[_saving_text(row) for row in placement_rows],
        textposition="outside",
        cliponaxis=False,
        customdata=[f"{row['effective_shards']:.1f}" for row in placement_rows],
    )
    marker, hover = {"symbol": "diamond", "size": 10}, f"lower bound %{{x:,.2f}} {unit_name}"
    bound_sizes = placements["least_bytes"].to_numpy() / unit_bytes
    bound_dots = dots(bound_sizes, labels, marker | {"color": theme.text_colour}, hover)
    plot = figure(
        theme,
        trace,
        bound_dots,
        xaxis=_size_axis(
            f"{unit_name} per step on the max shard", 1.3 * float(fullest_sizes.max())
        ),
        yaxis=axes.rows_of(len(labels), theme),
        bargap=0.35,
        margin={"t": 22},
    )
    label_font = {"size": 11, "color": theme.secondary_colour}
    plot.add_vline(
        x=placement_rows[0]["mean_bytes"] / unit_bytes,
        line={"dash": "dot", "color": theme.secondary_colour, "width": 1.5},
        annotation={"text": "mean shard", "yanchor": "bottom", "font": label_font},
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
    return Drawing(plot, describe_placements(placements), table.to_dicts())


def _name_placement(row: dict[str, Any]) -> str:
    return PLACEMENT_NAMES.get(row["placement"], row["placement"])


def describe_placements(placements: pl.DataFrame) -> str:
    """Return the effective shards of now, and what the best placement would save."""
    # `placements` has one row each; `saving` is a share of the job, null if it cannot be replayed.
    # Effective shards are the number of shards x mean load / max load.
    alternatives = {placement["placement"]: placement for placement in placements.to_dicts()}
    current = alternatives.pop("now")
    ratio_to_mean = current["most_bytes"] / max(current["mean_bytes"], 1)
    shard_count = round(current["effective_shards"] * ratio_to_mean)
    effective_text = f"Effective shards: {current['effective_shards']:.1f} of {shard_count}"
    if any(placement["saving"] is None for placement in alternatives.values()):
        return (
            f"{effective_text}; its requests cannot be replayed: what a placement saves is not "
            "known."
        )
    best_alternative = max(alternatives.values(), key=lambda row: row["saving"], default=current)
    if best_alternative["saving"] < LEAST_SAVING:
        return f"{effective_text}; no other placement would shorten the job."
    return (
        f"{effective_text}; placement “{_name_placement(best_alternative)}”: "
        f"{best_alternative['effective_shards']:.1f}, and the job would be "
        f"{text.percent(best_alternative['saving'])} shorter, by replay of its requests."
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
    column_name: str
    title: str
    unit_factor: float
    unit_name: str
    even_value: float | None = None  # where all workers are served alike


PANELS: Final = (
    _Panel(
        "rate",
        "updates made,<br>times the mean worker's",
        unit_factor=1,
        unit_name="times",
        even_value=1.0,
    ),
    _Panel(
        "staleness",
        "staleness of an update<br>(versions; ring: max)",
        unit_factor=1,
        unit_name="versions",
    ),
    _Panel(
        "turn_share", "serialized at the server,<br>% of the job", unit_factor=100, unit_name="%"
    ),
)


def staleness(workers: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a row per worker: its updates, their staleness, its time serialized at the server."""
    # `workers` has one row each. Staleness is in versions, `turn_share` is the share of the job in
    # which the worker waits for its turn. A panel's line is where all workers are served alike.
    if workers.is_empty():
        return empty(theme, SYNCHRONOUS)
    # The stalest workers are drawn; of those without staleness, the ones that wait most.
    severity = pl.max_horizontal(
        pl.col("staleness").fill_null(0), pl.col("turn_share").fill_null(0)
    )
    drawn_workers = workers.sort(severity, descending=True).head(MOST_WORKERS).sort("rank")
    drawn_panels = [
        panel for panel in PANELS if (drawn_workers[panel.column_name].fill_null(0) > 0).any()
    ]
    titles = [panel.title for panel in drawn_panels]
    plot = panels(titles, theme, spacing_share=0.05, margin={"t": 48}, bargap=0.3)
    labels = [f"worker {rank} " for rank in drawn_workers["rank"]]
    ranks = drawn_workers["rank"].to_list()
    for column, panel in enumerate(drawn_panels, start=1):
        cell, hover = {"row": 1, "col": column}, f"%{{y}}: %{{x:.2f}} {panel.unit_name}"
        values = drawn_workers[panel.column_name] * panel.unit_factor
        plot.add_trace(bars(labels, values, theme.accent_colour, hover, customdata=ranks), **cell)
        if panel.column_name == "staleness":
            ring = {
                "symbol": "circle-open",
                "size": 9,
                "color": theme.loss_colour,
                "line": {"width": 2},
            }
            hover, options = "%{y}: at most %{x} versions", {"cliponaxis": False}
            max_versions = drawn_workers["staleness_max"]
            rings = dots(max_versions, labels, ring, hover, customdata=ranks, **options)
            plot.add_trace(rings, **cell)
        if panel.even_value:
            plot.add_vline(
                x=panel.even_value, line={"dash": "dot", "color": theme.secondary_colour}, **cell
            )
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
    return Drawing(plot, describe_staleness(workers), table.to_dicts())


def describe_staleness(workers: pl.DataFrame) -> str:
    """Return the stalest worker, how even updates are, and how long workers are serialized."""
    # `workers` has one row each: its staleness in versions, its updates over the mean worker's
    # (`rate`), and the share of the job in which it waits for its turn. Null: not known.
    sentences = []
    workers_by_staleness = workers.drop_nulls("staleness").sort("staleness", descending=True)
    if not workers_by_staleness.is_empty():
        stalest_worker = workers_by_staleness.row(0, named=True)
        sentences.append(
            f"Worker {stalest_worker['rank']}'s updates are the stalest: made from weights "
            f"{stalest_worker['staleness']:.1f} versions old on average, "
            f"{stalest_worker['staleness_max']} at most."
            if stalest_worker["staleness"]
            else "Every update is made from the newest weights."
        )
    rates = workers["rate"].drop_nulls().to_list()
    if len(rates) > 1:
        lowest, highest = min(rates), max(rates)
        sentences.append(
            f"Workers make between {lowest:.2f} and {highest:.2f} times the mean number of updates."
        )
    turn_shares = workers["turn_share"].drop_nulls().to_list()
    if turn_shares:
        mean_text = text.percent(sum(turn_shares) / len(turn_shares))
        sentences.append(f"They are serialized at the server {mean_text} of the time.")
    return " ".join(sentences) or SYNCHRONOUS
