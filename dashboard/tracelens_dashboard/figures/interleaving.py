"""Communication overlap: by step and bucket, gradient latency, gaps between updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from tracelens.model import fmt
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, histogram, quantity, stacked_steps
from tracelens_dashboard.figures.drawing import Drawing, bars, dots, empty, figure, pairs
from tracelens_dashboard.figures.stacked_steps import Layer

if TYPE_CHECKING:
    from tracelens_dashboard.theme import Theme


class Stage(NamedTuple):
    """A stage of a gradient's way to its weights: its column (ns), and the category of its colour."""

    column_name: str
    label: str
    colour_category: str


MOST_BUCKETS: Final = 40
NO_COMMUNICATION: Final = "No communication within steps."
NO_BUCKETS: Final = (
    "No call names its gradient bucket: the hooks of PyTorch DDP and Horovod record it; a span "
    "of your own does with bucket=…"
)
MOST_LANES: Final = 40
STAGES: Final = (
    Stage("waiting_ns", "wait for communication", "ps_queue"),
    Stage("reducing_ns", "reduction", "transfer"),
    Stage("until_update_ns", "wait for optimizer", "uninstrumented"),
    Stage("updating_ns", "optimizer update", "update"),
    Stage("until_use_ns", "wait for next forward", "idle"),
)
NOT_KNOWN: Final = "-"
NO_CHAINS: Final = (
    "No gradient can be traced: that needs reductions that name their bucket, or requests to "
    "shards, and weight updates (kind update) in the same steps. Hooks of frameworks record both."
)
CHAIN_COLUMNS: Final[quantity.Columns] = {
    "of": "of",
    "number": "number",
    "ready after": ("ready_ns", quantity.time),
    **{stage.label: (stage.column_name, quantity.time) for stage in STAGES},
    "total": ("whole_ns", quantity.time),
    "p90": ("whole_p90_ns", quantity.time),
}
COUNTED: Final = "gaps"
NO_GAPS: Final = (
    "No two weight updates of a rank were recorded: optimizer hooks record them; in your own code, "
    "“with tl.span('update', kind='update'): …” does."
)


def has_no_communication(steps: pl.DataFrame) -> bool:
    """Return True if no step has any communication."""
    return steps.is_empty() or not steps.drop("step").sum_horizontal().sum()


def _layers(theme: Theme) -> tuple[Layer, Layer, Layer]:
    return (
        Layer("hidden_ns", "overlapped with compute", theme.accent_colour),
        Layer("transfer_ns", "exposed communication", theme.colour_by_category["transfer"]),
        Layer("wait_ns", "wait", theme.colour_by_category["wait"]),
    )


def _share_text(share: float) -> str:
    return text.percent(share) if share else "nothing"


def overlap_by_step(steps: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw each step's communication on the mean rank; `steps` has one row per step."""
    # A layer is a column of it in ns: time overlapped with compute, exposed, or waiting.
    if has_no_communication(steps):
        return empty(theme, NO_COMMUNICATION)
    layers = _layers(theme)
    sums_ns = [float(steps[layer.column_name].sum()) for layer in layers]
    hidden_share, exposed_share, wait_share = (ns / sum(sums_ns) for ns in sums_ns)
    summary = (
        f"Of {text.duration(sum(sums_ns) / steps.height)} of communication per step, "
        f"{_share_text(hidden_share)} is overlapped with compute; {text.percent(exposed_share)} "
        f"is exposed communication, {text.percent(wait_share)} wait for other ranks or in server "
        "queues."
    )
    plot, rows = stacked_steps.draw(steps, layers, theme), stacked_steps.rows(steps, layers)
    return Drawing(plot, summary, rows)


def overlap_by_bucket(buckets: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the mean call of each bucket (row): overlapped, exposed and waiting time."""
    # A layer is a column in ns; `start_ns`, `end_ns` and `rank` are of the bucket's longest call.
    if buckets.is_empty():
        return empty(theme, NO_BUCKETS)
    drawn_buckets, layers = buckets.head(MOST_BUCKETS), _layers(theme)
    labels = [f"bucket {bucket} " for bucket in drawn_buckets["bucket"]]
    longest_calls = drawn_buckets.select("start_ns", "end_ns", "rank").rows()
    traces = []
    for layer in layers:
        times_ns, hover = (
            drawn_buckets[layer.column_name],
            f"%{{y}}{layer.label}: %{{customdata[0]}}",
        )
        custom_data = pairs(map(text.duration, times_ns), longest_calls)
        options: dict[str, Any] = {"name": layer.label, "customdata": custom_data}
        traces.append(bars(labels, times_ns.to_list(), layer.colour, hover, **options))
    totals_ns = (
        drawn_buckets.select(layer.column_name for layer in layers).sum_horizontal().to_numpy()
    )
    plot = figure(
        theme,
        *traces,
        barmode="stack",
        bargap=0.3,
        xaxis=axes.durations(float(totals_ns.max()) * 1.05),
        yaxis=axes.rows_downwards(theme),
        **axes.LEGEND,
    )
    columns: quantity.Columns = {
        "bucket": "bucket",
        "calls": "calls",
        "bytes": ("bytes", quantity.size),
        **{layer.label: (layer.column_name, quantity.time) for layer in layers},
    }
    return Drawing(plot, _describe_worst_bucket(buckets), quantity.tabulate(buckets, columns))


def _describe_worst_bucket(buckets: pl.DataFrame) -> str:
    """Return the bucket (row) with most exposed communication per call, and its overlap."""
    exposed_ns = buckets["wait_ns"] + buckets["transfer_ns"]
    by_exposure = buckets.with_columns(exposed_ns=exposed_ns).sort("exposed_ns")
    worst_bucket = by_exposure.row(-1, named=True)
    total_ns = max(worst_bucket["exposed_ns"] + worst_bucket["hidden_ns"], 1.0)
    return (
        f"Bucket {worst_bucket['bucket']} ({text.size(worst_bucket['bytes'] or 0)}) has most "
        f"exposed communication: {text.duration(worst_bucket['exposed_ns'])} of "
        f"{text.duration(total_ns)} per call; overlap with compute "
        f"{_share_text(worst_bucket['hidden_ns'] / total_ns)}. Compute beside two calls counts "
        "for both."
    )


def latency(chains: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the median stages of gradients from ready to first use, a row per bucket or shard."""
    # `of` and `number` name it. Stages (columns in ns) follow each other from `ready_ns` on, which
    # counts from the step's first ready gradient; `whole_ns` is from ready to first use. Null: not
    # recorded. `rank` and `step` are those of the longest chain.
    if chains.is_empty():
        return empty(theme, NO_CHAINS)
    drawn_chains = chains.sort("of", "ready_ns", "number").head(MOST_LANES)
    labels = [f"{of} {number} " for of, number in drawn_chains.select("of", "number").iter_rows()]
    links = drawn_chains.select("rank", "step").rows()
    ready_ns = drawn_chains["ready_ns"].fill_null(0)
    begins_ns, traces = ready_ns, []
    for stage in STAGES:
        times_ns = drawn_chains[stage.column_name]
        edge = {"width": 0.5, "color": theme.grid_colour}
        trace = bars(
            labels,
            times_ns.fill_null(0).to_list(),
            colour=None,  # `marker` has it
            hover=f"%{{y}}{stage.label}: %{{customdata[0]}}",
            name=stage.label,
            base=begins_ns.to_list(),
            marker={"color": theme.colour_by_category[stage.colour_category], "line": edge},
            customdata=pairs(map(_duration_text, times_ns), links),
        )
        traces.append(trace)
        begins_ns = begins_ns + times_ns.fill_null(0)
    # Medians of stages do not add up to the median of whole chains, which has a mark of its own.
    ends_ns = ready_ns + drawn_chains["whole_ns"]
    total_marks = dots(
        ends_ns.to_list(),
        labels,
        {"symbol": "line-ns-open", "size": 15, "color": theme.text_colour, "line": {"width": 2}},
        "%{y}from ready to first use: %{customdata[0]}",
        name="ready to first use",
        customdata=pairs(map(_duration_text, drawn_chains["whole_ns"]), links),
    )
    last_ns = max(float(begins_ns.to_numpy().max()), float(ends_ns.fill_null(0).to_numpy().max()))
    title = {"title": {"text": "after the first gradient of the step is ready"}}
    plot = figure(
        theme,
        *traces,
        total_marks,
        barmode="overlay",
        bargap=0.35,
        xaxis=axes.durations(last_ns * 1.03) | title,
        yaxis=axes.rows_downwards(theme),
        **axes.LEGEND,
    )
    return Drawing(plot, latency_summary(chains), quantity.tabulate(chains, CHAIN_COLUMNS))


def _duration_text(ns: float | None) -> str:
    return NOT_KNOWN if ns is None else text.duration(ns)


def latency_summary(chains: pl.DataFrame) -> str:
    """Return the longest latency from ready to first use, and its longest stage."""
    # `chains` has a row per bucket or shard; `whole_ns` is null if a stage is not known.
    complete_chains = chains.drop_nulls("whole_ns")
    ranked_chains = complete_chains if complete_chains.height else chains
    longest_chain = ranked_chains.sort(pl.col("whole_ns").fill_null(0)).row(-1, named=True)
    stages_ns = {stage.label: longest_chain[stage.column_name] or 0 for stage in STAGES}
    longest_stage = max(stages_ns, key=lambda name: stages_ns[name])  # its name
    latency_ns = longest_chain["whole_ns"] or sum(stages_ns.values())
    mark_text = (
        " (the mark; medians of stages need not add up to it)" if longest_chain["whole_ns"] else ""
    )
    return (
        f"{fmt.capital(longest_chain['of'])} {longest_chain['number']} has the longest "
        f"gradient-to-weight latency, in the median {text.duration(latency_ns)} from ready to "
        f"first use{mark_text}. Its longest stage is “{longest_stage}”, in the median "
        f"{text.duration(stages_ns[longest_stage])}."
    )


def update_gaps(gap_bins: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw how long gaps between updates are; `gap_bins` has one row per kind (`of`) and bin."""
    # `rank`, `start_ns` and `gap_ns` are those of the bin's longest gap.
    if gap_bins.is_empty():
        return empty(theme, NO_GAPS)
    series = histogram.from_table(gap_bins, "of", ("rank", "start_ns", "gap_ns"), theme)
    plot = histogram.draw(series, "gap between optimizer updates", COUNTED, theme)
    marks = [
        (name, histogram.quantile(gap_bins, share)) for name, share in (("p50", 0.5), ("p90", 0.9))
    ]
    histogram.mark(plot, marks, theme)
    return Drawing(plot, gaps_summary(gap_bins), histogram.rows(series, COUNTED))


def gaps_summary(gap_bins: pl.DataFrame) -> str:
    """Return the median gap of each kind, and the longest gap."""
    # `gap_bins` has one row per kind (`of`) and bin: its `count` and its longest gap.
    median_texts = [
        f"{text.count(int(bins_of_kind['count'].sum()), 'gap')} {bins_of_kind['of'][0]}, median "
        f"{text.duration(histogram.quantile(bins_of_kind, share=0.5))}"
        for bins_of_kind in gap_bins.partition_by("of", maintain_order=True)
    ]
    longest_gap = gap_bins.sort("gap_ns").row(-1, named=True)
    return (
        f"{'; '.join(median_texts)}. The longest is {text.duration(longest_gap['gap_ns'])}, on "
        f"rank {longest_gap['rank']}."
    )
