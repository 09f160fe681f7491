"""Residuals against peers: by rank (or host) and step as a map, by rank and category as bars."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens.accounting.phases import OWN_CATEGORIES
from tracelens_dashboard import text
from tracelens_dashboard.figures.axes import MOST_COLUMNS, MOST_ROWS, rank_label, ranks_and_steps
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracelens.arrays import Array, Floats
    from tracelens.lod.residuals import Residuals
    from tracelens_dashboard.theme import Theme

MS: Final = 1e6
MOST_RANKS: Final = 16  # that have bars


def by_rank(residuals: Residuals, theme: Theme, marked: tuple[int, int] | None = None) -> Drawing:
    """Draw a row a rank; beyond 160 ranks the worst of some neighbours stands for them."""
    if not residuals.steps:
        return empty(theme, "No steps recorded.")
    size = -(-len(residuals.ranks) // MOST_ROWS)
    count = len(residuals.ranks)
    groups = [range(i, min(i + size, count)) for i in range(0, count, size)]
    labels = [rank_label([residuals.ranks[i] for i in group]) for group in groups]
    rows = _worst(residuals.residual_ns, groups, 0)
    return _draw(residuals, rows, labels, theme, marked)


def by_host(residuals: Residuals, hosts: Mapping[int, str], theme: Theme) -> Drawing:
    """Draw a row a host: the worst of its ranks, as a mean would hide a single one."""
    if not residuals.steps:
        return empty(theme, "No steps recorded.")
    members: dict[str, list[int]] = {}
    for place, rank in enumerate(residuals.ranks):
        members.setdefault(hosts[rank], []).append(place)
    rows = _worst(residuals.residual_ns, list(members.values()), 0)
    return _draw(residuals, rows, [text.safe(name) for name in members], theme, None)


def worst_cell(residuals: Residuals, rows: Sequence[int], step: int) -> tuple[int, int]:
    """Return (rank, step) of the largest residual of some rows of `late`, in a column by its step."""
    first = np.searchsorted(residuals.steps, step)
    column = next(group for group in _columns(residuals) if first <= group[-1])
    cells = np.nan_to_num(residuals.residual_ns[np.ix_(np.array(rows), column)], nan=-np.inf)
    row, place = np.unravel_index(int(cells.argmax()), cells.shape)
    return residuals.ranks[rows[int(row)]], residuals.steps[int(column[int(place)])]


def summary(residuals: Residuals) -> str:
    """Return the largest residual, its rank and step in one sentence."""
    if not residuals.total_ns.any():
        return "No rank exceeds its peers in any step."
    worst = int(np.argmax(residuals.total_ns))
    row = np.nan_to_num(residuals.residual_ns[worst])
    step = int(np.argmax(row))
    subject = f"rank {residuals.ranks[worst]}"
    return (
        f"Largest residual over the run: {subject}, "
        f"{text.duration(float(residuals.total_ns[worst]))} in total "
        f"and at most {text.duration(float(row[step]))}, in step {residuals.steps[step]}."
        f"{_compared_with(residuals)}"
    )


def _compared_with(residuals: Residuals) -> str:
    """Return who the peers are, where they are not all others."""
    stages = len(residuals.peers_ns)
    if stages == 1:
        return ""
    alone = "; one alone with its own other steps" if len(residuals.ranks) < 2 * stages else ""
    return f" Ranks are compared with those of the same stage (of {stages}){alone}."


def _draw(
    residuals: Residuals,
    rows: Floats,
    labels: Sequence[str],
    theme: Theme,
    marked: tuple[int, int] | None,
) -> Drawing:
    columns = _columns(residuals)
    cells = _worst(rows, columns, 1) / MS
    trace = go.Heatmap(
        z=cells.astype(np.float32),
        x=[residuals.steps[group[0]] for group in columns],
        y=list(labels),
        colorscale=theme.colorscale,
        zmin=0,
        zmax=residuals.ceiling_ns / MS,
        hoverongaps=False,
        colorbar=_colour_bar(theme),
        hovertemplate="%{y}, step %{x}: %{z:.2f} ms above peers<extra></extra>",
    )
    drawn = figure(theme, trace, **ranks_and_steps(labels, theme, marked))
    return Drawing(drawn, summary(residuals), partial(table, residuals))


def _columns(residuals: Residuals) -> list[Array]:
    """Group the steps into at most as many columns as a browser draws all of."""
    return np.array_split(np.arange(len(residuals.steps)), min(len(residuals.steps), MOST_COLUMNS))


def table(residuals: Residuals) -> list[dict[str, Any]]:
    """List every rank's residuals, the largest total first."""
    usual = float(np.nanmedian(residuals.compute_ns)) or 1.0
    steps = np.sum(~np.isnan(residuals.compute_ns), axis=1)
    values = np.nan_to_num(residuals.residual_ns, nan=-np.inf)
    worst = values.argmax(axis=1)
    columns = {
        "rank": np.array(residuals.ranks),
        **({"stage": residuals.stage} if len(residuals.peers_ns) > 1 else {}),
        "compute time, median (ms)": np.round(_medians(residuals.compute_ns) / MS, 3),
        "residual, median (ms)": np.round(_medians(residuals.residual_ns) / MS, 3),
        "residual, max (ms)": np.round(values.max(axis=1) / MS, 3),
        "step of max": np.array(residuals.steps)[worst],
        "residual, total (ms)": np.round(residuals.total_ns / MS, 2),
        "steps > 10 % above peers": np.sum(values > usual / 10, axis=1),
        "steps": steps,
    }
    order = [index for index in np.argsort(-residuals.total_ns) if steps[index]]
    listed = (column[order].tolist() for column in columns.values())
    return [dict(zip(columns, row, strict=True)) for row in zip(*listed, strict=True)]


def _medians(cells: Floats) -> Floats:
    """Return the median of each row without its NaN; numpy's own is slow for hundreds of rows."""
    ordered = np.sort(cells, axis=1)  # NaN come last
    count = np.sum(~np.isnan(cells), axis=1)
    rows = np.arange(len(cells))
    lower, upper = ordered[rows, np.maximum(count - 1, 0) // 2], ordered[rows, count // 2]
    return np.asarray((lower + upper) / 2)


def _worst(cells: Floats, groups: Sequence[Any], axis: int) -> Floats:
    """Reduce groups of rows (0) or columns (1) to their maximum; NaN where all are."""
    begins = np.cumsum([0, *map(len, groups[:-1])])
    ordered = np.take(cells, np.concatenate([np.asarray(group) for group in groups]), axis=axis)
    return np.asarray(np.fmax.reduceat(ordered, begins, axis=axis))


def _colour_bar(theme: Theme) -> dict[str, Any]:
    return {
        "ticksuffix": " ms",
        "title": {"text": "residual", "font": {"color": theme.secondary, "size": 12}},
        "nticks": 5,
    }


def by_category(
    residuals: Residuals, in_category: Callable[[str], Residuals], theme: Theme
) -> Drawing:
    """Draw the worst ranks; a bar's part is the mean residual per step in one category."""
    if not residuals.steps or len(residuals.ranks) < 2:
        return empty(theme, "A single rank has no peers to compare with.")
    parts = {name: _mean_residual(in_category(name)) for name in OWN_CATEGORIES}
    chosen = np.argsort(-residuals.total_ns)[:MOST_RANKS]
    labels = [f"rank {residuals.ranks[i]} " for i in chosen]
    bars = [
        go.Bar(
            orientation="h",
            y=labels,
            x=part[chosen] / MS,
            name=name_of(name),
            marker={"color": theme.categories[name], "line": {"width": 0}},
            hovertemplate=f"%{{y}}{name_of(name)}: %{{x:.3f}} ms per step<extra></extra>",
        )
        for name, part in parts.items()
        if part[chosen].any()
    ]
    return Drawing(
        figure(theme, *bars, **_category_axes(theme)),
        _category_sentence(residuals, parts, int(chosen[0])),
        _category_rows(residuals.ranks, parts, chosen),
    )


def _mean_residual(residuals: Residuals) -> Floats:
    """Return each rank's mean residual over the steps; a negative one counts as none."""
    present = np.maximum(np.sum(~np.isnan(residuals.residual_ns), axis=1), 1)
    return np.asarray(np.nansum(np.maximum(residuals.residual_ns, 0), axis=1) / present)


def _category_sentence(residuals: Residuals, parts: dict[str, Floats], worst: int) -> str:
    phase = max(parts, key=lambda name: float(parts[name][worst]))
    ns = float(parts[phase][worst])
    if not ns:
        return "No rank exceeds its peers."
    return (
        f"Rank {residuals.ranks[worst]} takes {text.duration(ns)} per step longer than its peers "
        f"in {name_of(phase)}, more than in any other phase."
    )


def _category_rows(
    ranks: Sequence[int], parts: dict[str, Floats], chosen: Array
) -> list[dict[str, object]]:
    return [
        {"rank": ranks[i]}
        | {
            f"{name_of(name)} (ms per step)": round(float(p[i]) / MS, 4)
            for name, p in parts.items()
        }
        for i in chosen
    ]


def _category_axes(theme: Theme) -> dict[str, object]:
    return {
        "barmode": "stack",
        "bargap": 0.3,
        "xaxis": {
            "ticksuffix": " ms",
            "fixedrange": True,
            "nticks": 5,
            "title": {"text": "residual, mean per step"},
        },
        "yaxis": {"autorange": "reversed", "fixedrange": True, "tickfont": {"color": theme.text}},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
