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
from tracelens_dashboard.figures.drawing import Drawing, Rows, bars, empty, figure
from tracelens_dashboard.theme import Theme, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracelens.arrays import Array, Floats
    from tracelens.lod.residuals import Residuals

NS_PER_MS: Final = 1e6
MOST_RANKS: Final = 16  # that have bars
NO_STEPS: Final = "No steps recorded."
MAP_TITLE: Final = "Residual by rank and step"
MAP_EXPLANATION: Final = (
    "Compute time of a rank in a step minus its peers' median. The scale ends between a fifth of a "
    "step and a whole one, so noise stays pale."
)


def by_rank(
    residuals: Residuals, theme: Theme, marked_steps: tuple[int, int] | None = None
) -> Drawing:
    """Draw the residuals by rank and step; beyond 160 ranks the worst of neighbours in a row."""
    if not residuals.steps:
        return empty(theme, NO_STEPS)
    rank_count = len(residuals.ranks)
    ranks_per_row = -(-rank_count // MOST_ROWS)
    begins = range(0, rank_count, ranks_per_row)
    rank_groups = [range(begin, min(begin + ranks_per_row, rank_count)) for begin in begins]
    labels = [rank_label([residuals.ranks[index] for index in group]) for group in rank_groups]
    return _draw_map(residuals, rank_groups, labels, theme, marked_steps)


def by_host(residuals: Residuals, host_by_rank: Mapping[int, str], theme: Theme) -> Drawing:
    """Draw a row a host: the worst of its ranks, as a mean would hide a single one."""
    if not residuals.steps:
        return empty(theme, NO_STEPS)
    rank_indexes_by_host: dict[str, list[int]] = {}
    for index, rank in enumerate(residuals.ranks):
        rank_indexes_by_host.setdefault(host_by_rank[rank], []).append(index)
    labels = [text.escape_name(name) for name in rank_indexes_by_host]
    return _draw_map(
        residuals, list(rank_indexes_by_host.values()), labels, theme, marked_steps=None
    )


def worst_cell(residuals: Residuals, rank_indexes: Sequence[int], step: int) -> tuple[int, int]:
    """Return (rank, step) of some ranks' largest residual, in the map's column with `step`."""
    step_index = np.searchsorted(residuals.steps, step)
    column_indexes = next(group for group in _group_steps(residuals) if step_index <= group[-1])
    cell_ns = residuals.residual_ns[np.ix_(np.array(rank_indexes), column_indexes)]  # [rank, step]
    cell_ns = np.nan_to_num(cell_ns, nan=-np.inf)
    row, column = divmod(int(cell_ns.argmax()), cell_ns.shape[1])
    return residuals.ranks[rank_indexes[row]], residuals.steps[int(column_indexes[column])]


def summary(residuals: Residuals) -> str:
    """Return the rank with the largest residual, its step, and with which ranks it is compared."""
    # A rank's `total_delay_ns` is the sum of its positive residuals; `peers_ns` has a row per stage.
    if not residuals.total_delay_ns.any():
        return "No rank exceeds its peers in any step."
    worst_index = int(np.argmax(residuals.total_delay_ns))
    worst_ns = np.nan_to_num(residuals.residual_ns[worst_index])
    step_index = int(np.argmax(worst_ns))
    stage_count = len(residuals.peers_ns)
    peers_text = f" Ranks are compared with those of the same stage (of {stage_count})"
    if len(residuals.ranks) < 2 * stage_count:
        peers_text += "; one alone with its own other steps"
    return (
        f"Largest residual over the run: rank {residuals.ranks[worst_index]}, "
        f"{text.duration(float(residuals.total_delay_ns[worst_index]))} in total and at most "
        f"{text.duration(float(worst_ns[step_index]))}, in step "
        f"{residuals.steps[step_index]}.{f'{peers_text}.' if stage_count > 1 else ''}"
    )


def _draw_map(
    residuals: Residuals,
    rank_groups: Sequence[Sequence[int]],
    labels: list[str],
    theme: Theme,
    marked_steps: tuple[int, int] | None,
) -> Drawing:
    """Draw the largest residual of groups of ranks in groups of steps; `labels` are the rows'."""
    # Groups are of indexes; residuals are [rank, step] in ns, and the colours end at `ceiling_ns`.
    step_groups = _group_steps(residuals)
    rows_ns = _reduce_to_maximum(residuals.residual_ns, rank_groups, axis=0)
    cells_ns = _reduce_to_maximum(rows_ns, step_groups, axis=1)
    trace = go.Heatmap(
        z=(cells_ns / NS_PER_MS).astype(np.float32),
        x=[residuals.steps[group[0]] for group in step_groups],
        y=labels,
        colorscale=theme.colorscale,
        zmin=0,
        zmax=residuals.ceiling_ns / NS_PER_MS,
        hoverongaps=False,
        colorbar={
            "ticksuffix": " ms",
            "title": {"text": "residual", "font": {"color": theme.secondary_colour, "size": 12}},
            "nticks": 5,
        },
        hovertemplate="%{y}, step %{x}: %{z:.2f} ms above peers<extra></extra>",
    )
    plot = figure(theme, trace, **ranks_and_steps(labels, theme, marked_steps))
    return Drawing(plot, summary(residuals), partial(table, residuals))


def _group_steps(residuals: Residuals) -> list[Array]:
    """Return the indexes of the steps of each column; a browser draws no more columns."""
    return np.array_split(np.arange(len(residuals.steps)), min(len(residuals.steps), MOST_COLUMNS))


def table(residuals: Residuals) -> Rows:
    """List the residuals of each rank against its peers, the largest total first."""
    # Times are [rank, step] in ns, NaN where a rank was absent; `peers_ns` has a row per stage.
    median_ns = float(np.nanmedian(residuals.compute_ns)) or 1.0
    step_counts = np.sum(~np.isnan(residuals.compute_ns), axis=1)
    residual_ns = np.nan_to_num(residuals.residual_ns, nan=-np.inf)
    table_columns = {
        "rank": np.array(residuals.ranks),
        **({"stage": residuals.stage_numbers} if len(residuals.peers_ns) > 1 else {}),
        "compute time, median (ms)": np.round(_row_medians(residuals.compute_ns) / NS_PER_MS, 3),
        "residual, median (ms)": np.round(_row_medians(residuals.residual_ns) / NS_PER_MS, 3),
        "residual, max (ms)": np.round(residual_ns.max(axis=1) / NS_PER_MS, 3),
        "step of max": np.array(residuals.steps)[residual_ns.argmax(axis=1)],
        "residual, total (ms)": np.round(residuals.total_delay_ns / NS_PER_MS, 2),
        "steps > 10 % above peers": np.sum(residual_ns > median_ns / 10, axis=1),
        "steps": step_counts,
    }
    rank_order = [index for index in np.argsort(-residuals.total_delay_ns) if step_counts[index]]
    column_lists = (column[rank_order].tolist() for column in table_columns.values())
    return [dict(zip(table_columns, row, strict=True)) for row in zip(*column_lists, strict=True)]


def _row_medians(cells: Floats) -> Floats:
    """Return the median of each row without its NaN; numpy's own is slow for hundreds of rows."""
    ordered = np.sort(cells, axis=1)  # NaN come last
    value_counts = np.sum(~np.isnan(cells), axis=1)
    rows = np.arange(len(cells))
    lower_middle = ordered[rows, np.maximum(value_counts - 1, 0) // 2]
    upper_middle = ordered[rows, value_counts // 2]
    return np.asarray((lower_middle + upper_middle) / 2)


def _reduce_to_maximum(cells: Floats, groups: Sequence[Any], axis: int) -> Floats:
    """Reduce groups of rows (`axis` 0) or columns (1) to their maximum, NaN where all are."""
    group_begins = np.cumsum([0, *map(len, groups[:-1])])
    members = np.take(cells, np.concatenate([np.asarray(group) for group in groups]), axis=axis)
    return np.asarray(np.fmax.reduceat(members, group_begins, axis=axis))


def by_category(
    residuals: Residuals, residuals_of_category: Callable[[str], Residuals], theme: Theme
) -> Drawing:
    """Draw the mean residual per step of the worst ranks, divided by category."""
    # `residuals_of_category` measures those of one category; the worst ranks have most `total_delay_ns`.
    if not residuals.steps or len(residuals.ranks) < 2:
        return empty(theme, "A single rank has no peers to compare with.")
    mean_ns = {
        name: _mean_residual(residuals_of_category(name)) for name in OWN_CATEGORIES
    }  # [rank]
    worst_indexes = np.argsort(-residuals.total_delay_ns)[:MOST_RANKS]
    labels = [f"rank {residuals.ranks[rank_index]} " for rank_index in worst_indexes]
    traces = [
        bars(
            labels,
            category_ns[worst_indexes] / NS_PER_MS,
            theme.colour_by_category[name],
            f"%{{y}}{name_of(name)}: %{{x:.3f}} ms per step",
            name=name_of(name),
        )
        for name, category_ns in mean_ns.items()
        if category_ns[worst_indexes].any()
    ]
    axis_title = {"title": {"text": "residual, mean per step"}}
    plot = figure(
        theme,
        *traces,
        barmode="stack",
        bargap=0.3,
        xaxis={"ticksuffix": " ms", "fixedrange": True, "nticks": 5} | axis_title,
        yaxis=axes.rows_downwards(theme),
        showlegend=True,
        legend={"traceorder": "normal"},
    )
    table_rows = [
        {"rank": residuals.ranks[rank_index]}
        | {
            f"{name_of(name)} (ms per step)": round(float(category_ns[rank_index]) / NS_PER_MS, 4)
            for name, category_ns in mean_ns.items()
        }
        for rank_index in worst_indexes
    ]
    return Drawing(plot, _describe_phase(residuals, mean_ns, int(worst_indexes[0])), table_rows)


def _mean_residual(residuals: Residuals) -> Floats:
    """Return each rank's mean residual over its steps, in ns; a negative one counts as 0."""
    step_counts = np.maximum(np.sum(~np.isnan(residuals.residual_ns), axis=1), 1)
    return np.asarray(np.nansum(np.maximum(residuals.residual_ns, 0), axis=1) / step_counts)


def _describe_phase(residuals: Residuals, mean_ns: dict[str, Floats], rank_index: int) -> str:
    """Return the phase with most of a rank's residual; `mean_ns` is [rank] by category."""
    phase = max(mean_ns, key=lambda name: float(mean_ns[name][rank_index]))
    phase_ns = float(mean_ns[phase][rank_index])
    if not phase_ns:
        return "No rank exceeds its peers."
    return (
        f"Rank {residuals.ranks[rank_index]} takes {text.duration(phase_ns)} per step longer than "
        f"its peers in {name_of(phase)}, more than in any other phase."
    )
