"""Communication overlap: by step and bucket, gradient latency, gaps between updates, idle time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from plotly import graph_objects as go

from tracelens.model import fmt
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes, histogram, quantity, stacked_steps
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.stacked_steps import Part

if TYPE_CHECKING:
    from tracelens_dashboard.theme import Theme


MOST_BUCKETS: Final = 40
NO_COMMUNICATION: Final = "No communication within steps."
NO_BUCKETS: Final = (
    "No call names its gradient bucket: the hooks of PyTorch DDP and Horovod record it; a span of your "
    "own does with bucket=…"
)
MOST_LANES: Final = 40
STAGES: Final = (
    ("waiting_ns", "wait for communication", "ps_queue"),
    ("reducing_ns", "reduction", "transfer"),
    ("until_update_ns", "wait for optimizer", "uninstrumented"),
    ("updating_ns", "optimizer update", "update"),
    ("until_use_ns", "wait for next forward", "idle"),
)
IN_ALL: Final = "ready to first use"
NOT_KNOWN: Final = "-"
NO_CHAINS: Final = (
    "No gradient can be traced: that needs reductions that name their bucket, or requests to shards, "
    "and weight updates (kind update) in the same steps. Hooks of frameworks record both."
)
COUNTED: Final = "gaps"
NO_GAPS: Final = (
    "No two weight updates of a rank were recorded: optimizer hooks record them; in your own code, "
    "“with tl.span('update', kind='update'): …” does."
)
MOST_RANKS: Final = 24
MIB: Final = 1 << 20


def has_no_communication(table: pl.DataFrame) -> bool:
    """Return whether no step has any communication."""
    return table.is_empty() or not table.drop("step").sum_horizontal().sum()


def overlap_by_step(table: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the mean rank's communication; `table` as `Interleaving.by_step`."""
    if has_no_communication(table):
        return empty(theme, NO_COMMUNICATION)
    parts = _overlap_parts(theme)
    hidden, moved, waited = (float(table[part.column].sum()) for part in parts)
    whole = hidden + moved + waited
    each = text.duration(whole / table.height)
    summary = (
        f"Of {each} of communication per step, {_share_text(hidden / whole)} is overlapped with "
        f"compute; {text.percent(moved / whole)} is exposed communication, "
        f"{text.percent(waited / whole)} wait for other ranks or in server queues."
    )
    return Drawing(
        stacked_steps.draw(table, parts, theme), summary, stacked_steps.rows(table, parts)
    )


def overlap_by_bucket(table: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a mean call of every bucket; `table` as `interleaving.BUCKET_COLUMNS`."""
    if table.is_empty():
        return empty(theme, NO_BUCKETS)
    shown = table.head(MOST_BUCKETS)
    labels = [f"bucket {bucket} " for bucket in shown["bucket"]]
    leads = shown.select("start_ns", "end_ns", "rank").rows()
    bars = [
        go.Bar(
            orientation="h",
            name=part.name,
            y=labels,
            x=shown[part.column].to_list(),
            marker={"color": part.colour, "line": {"width": 0}},
            customdata=[
                [text.duration(ns), list(lead)]
                for ns, lead in zip(shown[part.column], leads, strict=True)
            ],
            hovertemplate=f"%{{y}}{part.name}: %{{customdata[0]}}<extra></extra>",
        )
        for part in _overlap_parts(theme)
    ]
    high = float(
        shown.select(part.column for part in _overlap_parts(theme))
        .sum_horizontal()
        .to_numpy()
        .max()
    )
    return Drawing(
        figure(theme, *bars, **_bucket_axes(high, theme)),
        _worst_bucket(table),
        _bucket_rows(table, theme),
    )


def _overlap_parts(theme: Theme) -> tuple[Part, ...]:
    return (
        Part("hidden_ns", "overlapped with compute", theme.accent),
        Part("transfer_ns", "exposed communication", theme.categories["transfer"]),
        Part("wait_ns", "wait", theme.categories["wait"]),
    )


def _worst_bucket(table: pl.DataFrame) -> str:
    rows = table.with_columns(exposed=table["wait_ns"] + table["transfer_ns"]).sort("exposed")
    worst = rows.row(-1, named=True)
    whole = max(worst["exposed"] + worst["hidden_ns"], 1.0)
    return (
        f"Bucket {worst['bucket']} ({text.size(worst['bytes'] or 0)}) has most exposed communication: "
        f"{text.duration(worst['exposed'])} of {text.duration(whole)} per call; overlap with compute "
        f"{_share_text(worst['hidden_ns'] / whole)}. Compute beside two calls counts for both."
    )


def _share_text(share: float) -> str:
    return text.percent(share) if share else "nothing"


def _bucket_rows(table: pl.DataFrame, theme: Theme) -> list[dict[str, Any]]:
    return [
        {"bucket": row["bucket"], "calls": row["calls"], "bytes": quantity.size(row["bytes"])}
        | {part.name: quantity.time(row[part.column]) for part in _overlap_parts(theme)}
        for row in table.iter_rows(named=True)
    ]


def _bucket_axes(high: float, theme: Theme) -> dict[str, Any]:
    return {
        "barmode": "stack",
        "bargap": 0.3,
        "xaxis": axes.durations(high * 1.05),
        "yaxis": {"autorange": "reversed", "fixedrange": True, "tickfont": {"color": theme.text}},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
        "margin": {"t": 30},
    }


def latency(chains: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw medians, from when a gradient is ready; `chains` as `gradient_latency.SHOWN_COLUMNS`."""
    if chains.is_empty():
        return empty(theme, NO_CHAINS)
    shown = chains.sort("of", "ready_ns", "number").head(MOST_LANES)
    base, bars = shown["ready_ns"].fill_null(0), []
    for stage in STAGES:
        bars.append(_stage(shown, base, stage, theme))
        base = base + shown[stage[0]].fill_null(0)
    ends = shown.select(pl.col("ready_ns").fill_null(0) + pl.col("whole_ns"))["ready_ns"]
    last = max(float(base.to_numpy().max()), float(ends.fill_null(0).to_numpy().max()))
    return Drawing(
        figure(theme, *bars, _in_all(shown, ends, theme), **_latency_axes(last, theme)),
        latency_summary(chains),
        latency_table(chains),
    )


def _in_all(shown: pl.DataFrame, ends: pl.Series, theme: Theme) -> go.Scatter:
    """Mark the median of whole chains: medians of parts do not add up to it."""
    return go.Scatter(
        name=IN_ALL,
        x=ends.to_list(),
        y=[f"{of} {number} " for of, number in shown.select("of", "number").iter_rows()],
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 15, "color": theme.text, "line": {"width": 2}},
        customdata=[
            [text.duration(ns) if ns is not None else NOT_KNOWN, list(lead)]
            for ns, lead in zip(shown["whole_ns"], shown.select("rank", "step").rows(), strict=True)
        ],
        hovertemplate="%{y}from ready to first use: %{customdata[0]}<extra></extra>",
    )


def latency_summary(chains: pl.DataFrame) -> str:
    """Return the longest latency, and its largest stage."""
    known = chains.drop_nulls("whole_ns")
    rows = known if known.height else chains
    longest = rows.sort(pl.col("whole_ns").fill_null(0)).row(-1, named=True)
    spent = {name: longest[column] or 0 for column, name, _ in STAGES}
    most = max(spent, key=lambda name: spent[name])
    whole = longest["whole_ns"] or sum(spent.values())
    mark = " (the mark; medians of stages need not add up to it)" if longest["whole_ns"] else ""
    return (
        f"{fmt.capital(longest['of'])} {longest['number']} has the longest gradient-to-weight latency, "
        f"in the median {text.duration(whole)} from ready to first use{mark}. Its longest stage is "
        f"“{most}”, in the median {text.duration(spent[most])}."
    )


def latency_table(chains: pl.DataFrame) -> list[dict[str, Any]]:
    """List all chains."""
    return [
        {"of": row["of"], "number": row["number"], "ready after": quantity.time(row["ready_ns"])}
        | {name: quantity.time(row[column]) for column, name, _ in STAGES}
        | {
            "total": quantity.time(row["whole_ns"]),
            "p90": quantity.time(row["whole_p90_ns"]),
        }
        for row in chains.iter_rows(named=True)
    ]


def _stage(
    shown: pl.DataFrame, base: pl.Series, stage: tuple[str, str, str], theme: Theme
) -> go.Bar:
    column, name, category = stage
    leads = shown.select("rank", "step").rows()
    return go.Bar(
        orientation="h",
        name=name,
        y=[f"{of} {number} " for of, number in shown.select("of", "number").iter_rows()],
        x=shown[column].fill_null(0).to_list(),
        base=base.to_list(),
        marker={"color": theme.categories[category], "line": {"width": 0.5, "color": theme.grid}},
        customdata=[
            [_stage_hover(ns), list(lead)] for ns, lead in zip(shown[column], leads, strict=True)
        ],
        hovertemplate=f"%{{y}}{name}: %{{customdata[0]}}<extra></extra>",
    )


def _stage_hover(ns: float | None) -> str:
    return NOT_KNOWN if ns is None else text.duration(ns)


def _latency_axes(last: float, theme: Theme) -> dict[str, Any]:
    return {
        "barmode": "overlay",
        "bargap": 0.35,
        "xaxis": axes.durations(last * 1.03)
        | {"title": {"text": "after the first gradient of the step is ready"}},
        "yaxis": {"autorange": "reversed", "fixedrange": True, "tickfont": {"color": theme.text}},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
        "margin": {"t": 30},
    }


def update_gaps(spread: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the distribution; `spread` as `Interleaving.gap_spread`."""
    if spread.is_empty():
        return empty(theme, NO_GAPS)
    bars = histogram.of_table(spread, "of", ("rank", "start_ns", "gap_ns"), theme)
    drawn = histogram.draw(bars, "gap between optimizer updates", COUNTED, theme)
    named = [
        ("p50", histogram.quantile(spread, 0.5)),
        ("p90", histogram.quantile(spread, 0.9)),
    ]
    return Drawing(
        histogram.mark(drawn, named, theme), gaps_summary(spread), histogram.rows(bars, COUNTED)
    )


def gaps_summary(spread: pl.DataFrame) -> str:
    """Return the median gaps, and the longest."""
    parts = [
        f"{text.count(int(part['count'].sum()), 'gap')} {part['of'][0]}, median "
        f"{text.duration(histogram.quantile(part, 0.5))}"
        for part in spread.partition_by("of", maintain_order=True)
    ]
    longest = spread.sort("gap_ns").row(-1, named=True)
    where = f"{text.duration(longest['gap_ns'])}, on rank {longest['rank']}"
    return f"{'; '.join(parts)}. The longest is {where}."


def idle_time(
    background: pl.DataFrame, mebibytes: float, gbytes_per_s: float, theme: Theme
) -> Drawing:
    """Draw a row a rank, the least first; `background` as `gradient_latency.BUDGET_COLUMNS`."""
    if background.is_empty():
        return empty(theme, NO_GAPS)
    shown = background.sort("usable_ns", "rank").head(MOST_RANKS)
    labels = [f"rank {rank} " for rank in shown["rank"]]
    drawn = figure(
        theme,
        _idle_bars(shown, labels, "gap_ns", "between updates", theme.quiet),
        _idle_bars(shown, labels, "usable_ns", "overlappable", theme.accent),
        _least_idle(shown, labels, theme),
        **_idle_axes(shown, theme),
    )
    return Drawing(drawn, idle_summary(background, mebibytes, gbytes_per_s), idle_table(background))


def idle_summary(background: pl.DataFrame, mebibytes: float, gbytes_per_s: float) -> str:
    """Return in how many steps so much can be transferred without delaying the job."""
    from tracelens.analyses.gradient_latency import (  # noqa: PLC0415 - a server starts without
        steps_to_write,
    )

    least = background.sort("usable_ns").row(0, named=True)
    begin = (
        f"Rank {least['rank']} has the least idle time: {text.duration(least['usable_ns'])} of "
        f"{text.duration(least['gap_ns'])} between optimizer steps, in overlappable pieces."
    )
    steps = steps_to_write(background, int(mebibytes * MIB), gbytes_per_s)
    amount = f"{text.size(mebibytes * MIB)} per rank at {gbytes_per_s:g} GB/s"
    if math.isinf(steps):
        return f"{begin} Transferring {amount} would delay the job."
    return (
        f"{begin} Transferring {amount} fits into the idle time of "
        f"{text.count(math.ceil(steps), 'step')}."
    )


def idle_table(background: pl.DataFrame) -> list[dict[str, Any]]:
    """List all ranks, those with least first."""
    return [
        {
            "rank": row["rank"],
            "between updates": quantity.time(row["gap_ns"]),
            "overlappable": quantity.time(row["usable_ns"]),
            "p10": quantity.time(row["usable_p10_ns"]),
            "share of step time": quantity.share(row["share"]),
        }
        for row in background.sort("usable_ns", "rank").iter_rows(named=True)
    ]


def _idle_bars(
    shown: pl.DataFrame, labels: list[str], column: str, name: str, colour: str
) -> go.Bar:
    return go.Bar(
        orientation="h",
        name=name,
        y=labels,
        x=shown[column].to_list(),
        marker={"color": colour, "line": {"width": 0}},
        customdata=[
            [text.duration(ns), rank] for ns, rank in shown.select(column, "rank").iter_rows()
        ],
        hovertemplate=f"%{{y}}{name}: %{{customdata[0]}} per step<extra></extra>",
    )


def _least_idle(shown: pl.DataFrame, labels: list[str], theme: Theme) -> go.Scatter:
    return go.Scatter(
        name="overlappable, p10",
        x=shown["usable_p10_ns"].to_list(),
        y=labels,
        mode="markers",
        marker={"symbol": "line-ns", "size": 12, "line": {"width": 2, "color": theme.text}},
        customdata=[
            [text.duration(ns), rank]
            for ns, rank in shown.select("usable_p10_ns", "rank").iter_rows()
        ],
        hovertemplate="%{y}overlappable, p10: %{customdata[0]}<extra></extra>",
    )


def _idle_axes(shown: pl.DataFrame, theme: Theme) -> dict[str, Any]:
    high = float(shown["gap_ns"].to_numpy().max())
    return {
        "barmode": "overlay",
        "bargap": 0.35,
        "xaxis": axes.durations(high * 1.05),
        "yaxis": {"autorange": "reversed", "fixedrange": True, "tickfont": {"color": theme.text}},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
        "margin": {"t": 30},
    }
