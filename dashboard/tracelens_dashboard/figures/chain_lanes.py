"""A gradient's way, bucket by bucket: ready, reduced, applied, first used; stages follow each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl
from plotly import graph_objects as go

from tracelens import words
from tracelens_dashboard import text
from tracelens_dashboard.figures import duration_axis
from tracelens_dashboard.figures.drawing import Drawing, empty, figure

if TYPE_CHECKING:
    from tracelens_dashboard.theme import Theme

MOST_LANES: Final = 40
STAGES: Final = (
    ("waiting_ns", "waits for ranks, wire or shard", "ps_queue"),
    ("reducing_ns", "is reduced", "transfer"),
    ("until_update_ns", "waits for its update", "unknown"),
    ("updating_ns", "weights are updated", "update"),
    ("until_use_ns", "until first use", "idle"),
)
NO_CHAINS: Final = (
    "No gradient can be followed: that needs reductions that name their bucket, or requests to shards, "
    "and weight updates (kind update) in the same steps. Hooks of frameworks record both."
)


def draw(chains: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw medians; a lane begins when its gradient is ready. `chains` as `chains.SHOWN_COLUMNS`."""
    if chains.is_empty():
        return empty(theme, NO_CHAINS)
    shown = chains.sort("of", "ready_ns", "number").head(MOST_LANES)
    base, bars = shown["ready_ns"].fill_null(0), []
    for stage in STAGES:
        bars.append(_stage(shown, base, stage, theme))
        base = base + shown[stage[0]].fill_null(0)
    last = base.to_numpy().max()
    return Drawing(
        figure(theme, *bars, **_axes(float(last), theme)), summary(chains), table(chains)
    )


def summary(chains: pl.DataFrame) -> str:
    """Say which chain is longest, and where most of it goes."""
    known = chains.drop_nulls("whole_ns")
    rows = known if known.height else chains
    longest = rows.sort(pl.col("whole_ns").fill_null(0)).row(-1, named=True)
    spent = {name: longest[column] or 0 for column, name, _ in STAGES}
    most = max(spent, key=lambda name: spent[name])
    whole = longest["whole_ns"] or sum(spent.values())
    return (
        f"{words.capital(longest['of'])} {longest['number']} has the longest way, "
        f"{text.duration(whole)} from ready to first use; most of it, {text.duration(spent[most])}, is "
        f"the stage “{most}”."
    )


def table(chains: pl.DataFrame) -> list[dict[str, Any]]:
    """List all chains."""
    return [
        {"of": row["of"], "number": row["number"], "ready after": _say(row["ready_ns"])}
        | {name: _say(row[column]) for column, name, _ in STAGES}
        | {"in all": _say(row["whole_ns"]), "9 of 10 less than": _say(row["whole_p90_ns"])}
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
        customdata=[[_say(ns), list(lead)] for ns, lead in zip(shown[column], leads, strict=True)],
        hovertemplate=f"%{{y}}{name}: %{{customdata[0]}}<extra></extra>",
    )


def _say(ns: float | None) -> str:
    return "-" if ns is None else text.duration(ns)


def _axes(last: float, theme: Theme) -> dict[str, Any]:
    return {
        "barmode": "overlay",
        "bargap": 0.35,
        "xaxis": duration_axis.linear(last * 1.03)
        | {"title": {"text": "after the first gradient of the step is ready"}},
        "yaxis": {"autorange": "reversed", "fixedrange": True, "tickfont": {"color": theme.text}},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
        "margin": {"t": 30},
    }
