"""Residuals against peers: by rank (or host) and step as a map, by rank and category as bars."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes
from tracelens_dashboard.figures.axes import MOST_COLUMNS, MOST_ROWS, rank_label, ranks_and_steps
from tracelens_dashboard.figures.drawing import Drawing, bars, empty, figure
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracelens.arrays import Array, Floats
    from tracelens.lod.residuals import Residuals
    from tracelens_dashboard.figures.drawing import Rows
    from tracelens_dashboard.theme import Theme

MS: Final = 1e6
MOST_RANKS: Final = 16  # that have bars
NO_STEPS: Final = "No steps recorded."
MAP_TITLE: Final = "Residual by rank and step"
MAP_EXPLANATION: Final = (
    "Compute time of a rank in a step minus its peers' median. The scale ends between a fifth of a "
    "step and a whole one, so noise stays pale."
)


def by_rank(residuals: Residuals, theme: Theme, marked: tuple[int, int] | None = None) -> Drawing:
    """Draw a row a rank; beyond 160 ranks the worst of some neighbours represents them."""
    if not residuals.steps:
        return empty(theme, NO_STEPS)
    count = len(residuals.ranks)
    size = -(-count // MOST_ROWS)
    groups = [range(start, min(start + size, count)) for start in range(0, count, size)]
    labels = [rank_label([residuals.ranks[index] for index in group]) for group in groups]
    return _draw_map(residuals, groups, labels, theme, marked)


def by_host(residuals: Residuals, hosts: Mapping[int, str], theme: Theme) -> Drawing:
    """Draw a row a host: the worst of its ranks, as a mean would hide a single one."""
    if not residuals.steps:
        return empty(theme, NO_STEPS)
    members: dict[str, list[int]] = {}
    for index, rank in enumerate(residuals.ranks):
        members.setdefault(hosts[rank], []).append(index)
    labels = [text.safe(name) for name in members]
    return _draw_map(residuals, list(members.values()), labels, theme, None)


def worst_cell(residuals: Residuals, rows: Sequence[int], step: int) -> tuple[int, int]:
    """Return (rank, step) of the largest residual of some rows, in the column with a step."""
    index = np.searchsorted(residuals.steps, step)
    column = next(group for group in _group_steps(residuals) if index <= group[-1])
    cells = np.nan_to_num(residuals.residual_ns[np.ix_(np.array(rows), column)], nan=-np.inf)
    cell_row, cell_column = np.unravel_index(int(cells.argmax()), cells.shape)
    return residuals.ranks[rows[int(cell_row)]], residuals.steps[int(column[int(cell_column)])]


def summary(residuals: Residuals) -> str:
    """Name the rank with the largest residual, and its step."""
    if not residuals.total_ns.any():
        return "No rank exceeds its peers in any step."
    worst_row = int(np.argmax(residuals.total_ns))
    row_ns = np.nan_to_num(residuals.residual_ns[worst_row])
    step = int(np.argmax(row_ns))
    stages = len(residuals.peers_ns)
    alone = "; one alone with its own other steps" if len(residuals.ranks) < 2 * stages else ""
    peers = f" Ranks are compared with those of the same stage (of {stages}){alone}."
    return (
        f"Largest residual over the run: rank {residuals.ranks[worst_row]}, "
        f"{text.duration(float(residuals.total_ns[worst_row]))} in total "
        f"and at most {text.duration(float(row_ns[step]))}, in step {residuals.steps[step]}."
        f"{peers if stages > 1 else ''}"
    )


def _draw_map(
    residuals: Residuals,
    groups: Sequence[Sequence[int]],
    labels: list[str],
    theme: Theme,
    marked: tuple[int, int] | None,
) -> Drawing:
    columns = _group_steps(residuals)
    cells_ns = _reduce_to_maximum(_reduce_to_maximum(residuals.residual_ns, groups, 0), columns, 1)
    trace = go.Heatmap(
        z=(cells_ns / MS).astype(np.float32),
        x=[residuals.steps[group[0]] for group in columns],
        y=labels,
        colorscale=theme.colorscale,
        zmin=0,
        zmax=residuals.ceiling_ns / MS,
        hoverongaps=False,
        colorbar={
            "ticksuffix": " ms",
            "title": {"text": "residual", "font": {"color": theme.secondary, "size": 12}},
            "nticks": 5,
        },
        hovertemplate="%{y}, step %{x}: %{z:.2f} ms above peers<extra></extra>",
    )
    plot = figure(theme, trace, **ranks_and_steps(labels, theme, marked))
    return Drawing(plot, summary(residuals), partial(table, residuals))


def _group_steps(residuals: Residuals) -> list[Array]:
    """Group the steps into at most as many columns as a browser draws all of."""
    return np.array_split(np.arange(len(residuals.steps)), min(len(residuals.steps), MOST_COLUMNS))


def table(residuals: Residuals) -> Rows:
    """List every rank's residuals, the largest total first."""
    median_ns = float(np.nanmedian(residuals.compute_ns)) or 1.0
    steps = np.sum(~np.isnan(residuals.compute_ns), axis=1)
    residual_ns = np.nan_to_num(residuals.residual_ns, nan=-np.inf)
    columns = {
        "rank": np.array(residuals.ranks),
        **({"stage": residuals.stage} if len(residuals.peers_ns) > 1 else {}),
        "compute time, median (ms)": np.round(_row_medians(residuals.compute_ns) / MS, 3),
        "residual, median (ms)": np.round(_row_medians(residuals.residual_ns) / MS, 3),
        "residual, max (ms)": np.round(residual_ns.max(axis=1) / MS, 3),
        "step of max": np.array(residuals.steps)[residual_ns.argmax(axis=1)],
        "residual, total (ms)": np.round(residuals.total_ns / MS, 2),
        "steps > 10 % above peers": np.sum(residual_ns > median_ns / 10, axis=1),
        "steps": steps,
    }
    order = [index for index in np.argsort(-residuals.total_ns) if steps[index]]
    listed = (column[order].tolist() for column in columns.values())
    return [dict(zip(columns, row, strict=True)) for row in zip(*listed, strict=True)]


def _row_medians(cells: Floats) -> Floats:
    """Return the median of each row without its NaN; numpy's own is slow for hundreds of rows."""
    ordered = np.sort(cells, axis=1)  # NaN come last
    count = np.sum(~np.isnan(cells), axis=1)
    rows = np.arange(len(cells))
    lower, upper = ordered[rows, np.maximum(count - 1, 0) // 2], ordered[rows, count // 2]
    return np.asarray((lower + upper) / 2)


def _reduce_to_maximum(cells: Floats, groups: Sequence[Any], axis: int) -> Floats:
    """Reduce groups of rows (0) or columns (1) to their maximum; NaN where all are."""
    begins = np.cumsum([0, *map(len, groups[:-1])])
    ordered = np.take(cells, np.concatenate([np.asarray(group) for group in groups]), axis=axis)
    return np.asarray(np.fmax.reduceat(ordered, begins, axis=axis))


def by_category(
    residuals: Residuals, in_category: Callable[[str], Residuals], theme: Theme
) -> Drawing:
    """Draw the worst ranks; a bar's share is the mean residual per step in one category."""
    if not residuals.steps or len(residuals.ranks) < 2:
        return empty(theme, "A single rank has no peers to compare with.")
    mean_ns = {name: _mean_residual(in_category(name)) for name in OWN_CATEGORIES}
    worst_rows = np.argsort(-residuals.total_ns)[:MOST_RANKS]
    labels = [f"rank {residuals.ranks[index]} " for index in worst_rows]
    traces = [
        bars(
            labels,
            category_ns[worst_rows] / MS,
            theme.categories[name],
            f"%{{y}}{name_of(name)}: %{{x:.3f}} ms per step",
            name=name_of(name),
        )
        for name, category_ns in mean_ns.items()
        if category_ns[worst_rows].any()
    ]
    title = {"title": {"text": "residual, mean per step"}}
    plot = figure(
        theme,
        *traces,
        barmode="stack",
        bargap=0.3,
        xaxis={"ticksuffix": " ms", "fixedrange": True, "nticks": 5} | title,
        yaxis=axes.rows_downwards(theme),
        showlegend=True,
        legend={"traceorder": "normal"},
    )
    rows = [
        {"rank": residuals.ranks[index]}
        | {
            f"{name_of(name)} (ms per step)": round(float(category_ns[index]) / MS, 4)
            for name, category_ns in mean_ns.items()
        }
        for index in worst_rows
    ]
    return Drawing(plot, _category_sentence(residuals, mean_ns, int(worst_rows[0])), rows)


def _mean_residual(residuals: Residuals) -> Floats:
    """Return each rank's mean residual over the steps; a negative one counts as none."""
    present = np.maximum(np.sum(~np.isnan(residuals.residual_ns), axis=1), 1)
    return np.asarray(np.nansum(np.maximum(residuals.residual_ns, 0), axis=1) / present)


def _category_sentence(residuals: Residuals, mean_ns: dict[str, Floats], row: int) -> str:
    phase = max(mean_ns, key=lambda name: float(mean_ns[name][row]))
    phase_ns = float(mean_ns[phase][row])
    if not phase_ns:
        return "No rank exceeds its peers."
    return (
        f"Rank {residuals.ranks[row]} takes {text.duration(phase_ns)} per step longer than its peers "
        f"in {name_of(phase)}, more than in any other phase."
    )
