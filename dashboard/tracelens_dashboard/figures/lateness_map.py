"""Rank (or host) x step: who was late when, by own time beyond the peers'."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures.drawing import Drawing, empty, figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.lod.lateness import Lateness
    from tracelens.lod.times import Matrix
    from tracelens_dashboard.theme import Theme

# A browser that has fewer pixels than cells drops some: one late rank would be lost.
MOST_ROWS: Final = 160
MOST_COLUMNS: Final = 320
MOST_LABELS: Final = 10
MS: Final = 1e6


def by_rank(late: Lateness, theme: Theme, marked: tuple[int, int] | None = None) -> Drawing:
    """Draw a row a rank; beyond 160 ranks the worst of some neighbours stands for them."""
    if not late.steps:
        return empty(theme, "No step was recorded.")
    size = -(-len(late.ranks) // MOST_ROWS)
    groups = [range(i, min(i + size, len(late.ranks))) for i in range(0, len(late.ranks), size)]
    labels = [rank_label([late.ranks[i] for i in group]) for group in groups]
    rows = _worst(late.excess_ns, groups, 0)
    return _draw(late, rows, labels, theme, marked)


def by_host(late: Lateness, hosts: Mapping[int, str], theme: Theme) -> Drawing:
    """Draw a row a host: the latest of its ranks, as a mean would hide a single one."""
    if not late.steps:
        return empty(theme, "No step was recorded.")
    names = list(dict.fromkeys(hosts[rank] for rank in late.ranks))
    members = [[i for i, r in enumerate(late.ranks) if hosts[r] == name] for name in names]
    rows = _worst(late.excess_ns, members, 0)
    return _draw(late, rows, [text.safe(name) for name in names], theme, None)


def latest(late: Lateness, rows: Sequence[int], step: int) -> tuple[int, int]:
    """Return who of some rows of `late` was latest, and when: (rank, step) of a column by its step."""
    first = np.searchsorted(late.steps, step)
    column = next(group for group in _columns(late) if first <= group[-1])
    cells = np.nan_to_num(late.excess_ns[np.ix_(np.array(rows), column)], nan=-np.inf)
    row, place = np.unravel_index(int(cells.argmax()), cells.shape)
    return late.ranks[rows[int(row)]], late.steps[int(column[int(place)])]


def summary(late: Lateness) -> str:
    """Say who is latest, and when, in one sentence."""
    if not late.total_ns.any():
        return "No rank is later than the others in any step."
    worst = int(np.argmax(late.total_ns))
    row = np.nan_to_num(late.excess_ns[worst])
    step = int(np.argmax(row))
    who = f"rank {late.ranks[worst]}"
    return (
        f"Latest over the run is {who}, by {text.duration(float(late.total_ns[worst]))} in all and "
        f"at most {text.duration(float(row[step]))}, in step {late.steps[step]}."
    )


def _draw(
    late: Lateness,
    rows: Matrix,
    labels: Sequence[str],
    theme: Theme,
    marked: tuple[int, int] | None,
) -> Drawing:
    columns = _columns(late)
    cells = _worst(rows, columns, 1) / MS
    trace = go.Heatmap(
        z=cells.astype(np.float32),
        x=[late.steps[group[0]] for group in columns],
        y=list(labels),
        colorscale=theme.colorscale,
        zmin=0,
        zmax=late.ceiling_ns / MS,
        hoverongaps=False,
        colorbar=_bar(theme),
        hovertemplate="%{y}, step %{x}: %{z:.2f} ms late<extra></extra>",
    )
    drawn = figure(theme, trace, **axes(labels, theme, marked))
    return Drawing(drawn, summary(late), partial(table, late))


def _columns(late: Lateness) -> list[np.ndarray[Any, Any]]:
    """Group the steps into at most as many columns as a browser draws all of."""
    return np.array_split(np.arange(len(late.steps)), min(len(late.steps), MOST_COLUMNS))


def table(late: Lateness) -> list[dict[str, Any]]:
    """List every rank with what it lost, the latest first."""
    usual = float(np.nanmedian(late.own_ns)) or 1.0
    steps = np.sum(~np.isnan(late.own_ns), axis=1)
    excess = np.nan_to_num(late.excess_ns, nan=-np.inf)
    worst = excess.argmax(axis=1)
    columns = {
        "rank": np.array(late.ranks),
        "own time, median (ms)": np.round(_medians(late.own_ns) / MS, 3),
        "late, median (ms)": np.round(_medians(late.excess_ns) / MS, 3),
        "late, worst (ms)": np.round(excess.max(axis=1) / MS, 3),
        "in step": np.array(late.steps)[worst],
        "late in all (ms)": np.round(late.total_ns / MS, 2),
        "steps 10 % late": np.sum(excess > usual / 10, axis=1),
        "steps": steps,
    }
    order = [index for index in np.argsort(-late.total_ns) if steps[index]]
    listed = (column[order].tolist() for column in columns.values())
    return [dict(zip(columns, row, strict=True)) for row in zip(*listed, strict=True)]


def _medians(cells: Matrix) -> Matrix:
    """Return the median of each row without its NaN; numpy's own is slow for hundreds of rows."""
    ordered = np.sort(cells, axis=1)  # NaN come last
    count = np.sum(~np.isnan(cells), axis=1)
    rows = np.arange(len(cells))
    lower, upper = ordered[rows, np.maximum(count - 1, 0) // 2], ordered[rows, count // 2]
    return np.asarray((lower + upper) / 2)


def _worst(cells: Matrix, groups: Sequence[Any], axis: int) -> Matrix:
    """Reduce groups of rows (0) or columns (1) to their maximum; NaN where all are."""
    filled = np.where(np.isnan(cells), -np.inf, cells)
    parts = [np.take(filled, group, axis=axis).max(axis=axis) for group in groups]
    found = np.stack(parts, axis=axis)
    return np.where(np.isinf(found), np.nan, found)


def rank_label(ranks: Sequence[int]) -> str:
    """Name the ranks of a row."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"


def first_rank(label: str) -> int:
    """Return the first rank of a row by its label."""
    return int(label.split()[1].split("-", maxsplit=1)[0])


def _bar(theme: Theme) -> dict[str, Any]:
    return {
        "ticksuffix": " ms",
        "title": {"text": "late by", "font": {"color": theme.secondary, "size": 12}},
        "nticks": 5,
    }


def axes(labels: Sequence[str], theme: Theme, marked: tuple[int, int] | None) -> dict[str, Any]:
    """Return steps to the right, rows from top to bottom, and a frame around marked steps."""
    stride = max(1, -(-len(labels) // MOST_LABELS))
    return {
        "xaxis": {"title": {"text": "step"}, "showgrid": False, "fixedrange": True},
        "yaxis": {
            "type": "category",
            "tickvals": list(labels[::stride]),
            "ticksuffix": " ",
            "range": [len(labels) - 0.5, -0.5],
            "showgrid": False,
            "fixedrange": True,
        },
        "shapes": [_mark(*marked, theme)] if marked else [],
    }


def _mark(first: int, last: int, theme: Theme) -> dict[str, Any]:
    return {
        "type": "rect",
        "yref": "paper",
        "x0": first - 0.5,
        "x1": last + 0.5,
        "y0": 0,
        "y1": 1,
        "line": {"color": theme.secondary, "width": 1, "dash": "dot"},
    }
