"""Communication, hidden under own work and exposed: step by step, and by bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures import duration_axis, stacked_steps
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.figures.stacked_steps import Part

if TYPE_CHECKING:
    import polars as pl

    from tracelens_dashboard.theme import Theme

MOST_BUCKETS: Final = 40
NO_COMMUNICATION: Final = "No communication lies within a step."
NO_BUCKETS: Final = (
    "No call names its gradient bucket: the hooks of PyTorch DDP and Horovod note it; a span of your "
    "own does with bucket=…"
)


def is_empty(table: pl.DataFrame) -> bool:
    """Say whether no step has any communication."""
    return table.is_empty() or not table.drop("step").sum_horizontal().sum()


def by_step(table: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the mean rank's communication; `table` as `Interleaving.by_step`."""
    if is_empty(table):
        return empty(theme, NO_COMMUNICATION)
    parts = _parts(theme)
    hidden, moved, waited = (float(table[part.column].sum()) for part in parts)
    whole = hidden + moved + waited
    each = text.duration(whole / table.height)
    summary = (
        f"Of {each} of communication a step, own work hides {_share(hidden / whole)}; "
        f"{text.percent(moved / whole)} is exposed transfer, {text.percent(waited / whole)} waiting for "
        "late ranks or in queues."
    )
    return Drawing(
        stacked_steps.draw(table, parts, theme), summary, stacked_steps.rows(table, parts)
    )


def by_bucket(table: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw a mean call of every bucket; `table` as `_bucket_overlap.BUCKET_COLUMNS`."""
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
        for part in _parts(theme)
    ]
    high = float(
        shown.select(part.column for part in _parts(theme)).sum_horizontal().to_numpy().max()
    )
    return Drawing(figure(theme, *bars, **_axes(high, theme)), _worst(table), _rows(table, theme))


def _parts(theme: Theme) -> tuple[Part, ...]:
    return (
        Part("hidden_ns", "hidden under own work", theme.accent),
        Part("transfer_ns", "exposed transfer", theme.categories["transfer"]),
        Part("wait_ns", "waiting", theme.categories["wait"]),
    )


def _worst(table: pl.DataFrame) -> str:
    rows = table.with_columns(exposed=table["wait_ns"] + table["transfer_ns"]).sort("exposed")
    worst = rows.row(-1, named=True)
    whole = max(worst["exposed"] + worst["hidden_ns"], 1.0)
    return (
        f"Bucket {worst['bucket']} ({text.size(worst['bytes'] or 0)}) is exposed longest: "
        f"{text.duration(worst['exposed'])} of {text.duration(whole)} a call; own work hides "
        f"{_share(worst['hidden_ns'] / whole)} of it. What runs beside two calls counts for both."
    )


def _share(share: float) -> str:
    return text.percent(share) if share else "nothing"


def _rows(table: pl.DataFrame, theme: Theme) -> list[dict[str, Any]]:
    return [
        {"bucket": row["bucket"], "calls": row["calls"], "bytes": text.size(row["bytes"] or 0)}
        | {part.name: text.duration(row[part.column]) for part in _parts(theme)}
        for row in table.iter_rows(named=True)
    ]


def _axes(high: float, theme: Theme) -> dict[str, Any]:
    return {
        "barmode": "stack",
        "bargap": 0.3,
        "xaxis": duration_axis.linear(high * 1.05),
        "yaxis": {"autorange": "reversed", "fixedrange": True, "tickfont": {"color": theme.text}},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
        "margin": {"t": 30},
    }
