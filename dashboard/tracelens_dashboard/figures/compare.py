"""Two runs compared: step time by category, and compute time by rank and step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from plotly import graph_objects as go

from tracelens.comparison.series import CATEGORY_OF
from tracelens.lod.step_times import parts
from tracelens_dashboard import text
from tracelens_dashboard.figures import axes
from tracelens_dashboard.figures.axes import MOST_COLUMNS, MOST_ROWS, rank_label, ranks_and_steps
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.theme import name_of

if TYPE_CHECKING:
    from tracelens.arrays import Floats
    from tracelens.comparison.changes import Metric
    from tracelens.comparison.series import Difference
    from tracelens_dashboard.theme import Theme

NOTHING: Final = "The two runs have no rank, or no step, in common."
TABLE_ROWS: Final = 200
LEAST_NS: Final = 1_000.0  # of the scale: less is nothing
_CEILING: Final = 0.98


def by_rank(found: Difference, theme: Theme, *, step_ns: float = 0.0) -> Drawing:
    """Draw rank by step, teal where this run is faster, orange where it is slower.

    Of neighbours that share a cell the largest difference is shown; the scale never ends below a
    twentieth of a step, so that noise stays pale.
    """
    if not found.compute_ns.size or np.isnan(found.compute_ns).all():
        return empty(theme, NOTHING)
    rows, columns = parts(len(found.ranks), MOST_ROWS), parts(len(found.steps), MOST_COLUMNS)
    cells = _largest(_largest(found.compute_ns, rows, 0), columns, 1)
    labels = [rank_label(found.ranks[part]) for part in rows]
    ceiling = _ceiling(cells, step_ns)
    trace = go.Heatmap(
        z=cells.astype(np.float32),
        x=[found.steps[part.start] for part in columns],
        y=labels,
        colorscale=[[0, theme.faster], [0.5, theme.surface], [1, theme.slower]],
        zmin=-ceiling,
        zmax=ceiling,
        hoverongaps=False,
        colorbar=_bar(ceiling),
        text=[[_signed(float(ns)) for ns in row] for row in np.nan_to_num(cells)],
        hovertemplate="%{y}, step %{x}: %{text}<extra></extra>",
    )
    drawn = figure(theme, trace, **ranks_and_steps(labels, theme, None))
    return Drawing(drawn, summary(found), table(found))


def summary(found: Difference) -> str:
    """Return where the runs differ most, and what was compared."""
    per_rank = _means(found)
    worst = int(np.abs(per_rank).argmax())
    what = text.count(len(found.steps), "step") + " and " + text.count(len(found.ranks), "rank")
    return (
        f"Compute time minus that of the other run, in the {what} of both. Largest difference: rank "
        f"{found.ranks[worst]}, {_signed(float(per_rank[worst]))} per step on average."
    )


def table(found: Difference) -> list[dict[str, Any]]:
    """List ranks, those that differ most first."""
    usual = _means(found)
    rows = []
    for index in np.argsort(-np.abs(usual), kind="stable")[:TABLE_ROWS].tolist():
        mine = np.nan_to_num(found.compute_ns[index])
        place = int(np.abs(mine).argmax())
        rows.append(
            {
                "rank": found.ranks[index],
                "difference, mean (ms)": round(float(usual[index]) / 1e6, 3),
                "difference, largest (ms)": round(float(mine[place]) / 1e6, 3),
                "step of max": found.steps[place],
                "other run's step": found.others[place],
            }
        )
    return rows


def _means(found: Difference) -> Floats:
    there = np.maximum(np.sum(~np.isnan(found.compute_ns), axis=1), 1)
    return np.asarray(np.nansum(found.compute_ns, axis=1) / there)


def by_category(phases: list[Metric], names: tuple[str, str], theme: Theme) -> Drawing:
    """Draw a pair of bars a category: what a usual step has of it, here and in the other run."""
    rows = [(CATEGORY_OF[one.name], one.change.after, one.change.before) for one in phases]
    shown = [row for row in rows if max(row[1], row[2]) >= LEAST_NS]
    if not shown:
        return empty(theme, "No steps recorded.")
    labels = [name_of(name) for name, *_ in shown]
    mine = _bars(labels, [row[1] for row in shown], text.safe(names[0]), theme.accent)
    theirs = _bars(labels, [row[2] for row in shown], text.safe(names[1]), theme.quiet)
    largest = max(max(row[1:]) for row in shown)
    drawn = figure(
        theme,
        theirs,
        mine,
        barmode="group",
        bargap=0.3,
        showlegend=True,
        legend={"traceorder": "reversed"},
        xaxis=axes.durations(1.02 * largest),
        yaxis={"autorange": "reversed", "ticksuffix": " ", "showgrid": False, "fixedrange": True},
    )
    return Drawing(drawn, _most(shown[0]), _category_rows(shown))


def _most(row: tuple[str, float, float]) -> str:
    name, mine, theirs = row
    return (
        f"Largest change: {name_of(name)}, {text.duration(mine)} per step here, "
        f"{text.duration(theirs)} in the other run."
    )


def _category_rows(shown: list[tuple[str, float, float]]) -> list[dict[str, Any]]:
    return [
        {
            "category": name_of(name),
            "here (ms per step)": round(mine / 1e6, 3),
            "other run (ms per step)": round(theirs / 1e6, 3),
            "difference (ms per step)": round((mine - theirs) / 1e6, 3),
        }
        for name, mine, theirs in shown
    ]


def _bars(labels: list[str], values: list[float], name: str, colour: str) -> go.Bar:
    return go.Bar(
        orientation="h",
        x=values,
        y=labels,
        name=name,
        marker={"color": colour, "line": {"width": 0}},
        customdata=[text.duration(value) for value in values],
        hovertemplate="%{y}: %{customdata} per step<extra>" + name + "</extra>",
    )


def _largest(cells: Floats, groups: list[slice], axis: int) -> Floats:
    """Reduce groups of rows (0) or columns (1) to what differs most; NaN where nothing is known."""
    found = []
    for group in groups:
        part = cells[group] if axis == 0 else cells[:, group].T
        sizes = np.where(np.isnan(part), -1.0, np.abs(part))
        found.append(np.take_along_axis(part, sizes.argmax(axis=0)[None], axis=0)[0])
    return np.stack(found, axis=axis)


def _ceiling(cells: Floats, step_ns: float) -> float:
    worst = np.abs(np.nan_to_num(cells)).max(axis=0)
    return max(float(np.quantile(worst, _CEILING)), step_ns / 20, LEAST_NS)


def _signed(ns: float) -> str:
    sign = "+" if ns >= 0 else "\N{MINUS SIGN}"
    return f"{sign}{text.duration(abs(ns))}"


def _bar(ceiling: float) -> dict[str, Any]:
    ends = (-ceiling, 0.0, ceiling)
    return {
        "tickvals": list(ends),
        "ticktext": [_signed(-ceiling), "0", _signed(ceiling)],
    }
