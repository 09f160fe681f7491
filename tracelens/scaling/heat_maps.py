"""A sweep as heat maps: for a terminal, as a page, for programs; what is best, and what nearly is."""

from __future__ import annotations

import json
from html import escape
from itertools import product
from typing import TYPE_CHECKING, Final, TypeAlias

from tracelens.model import fmt
from tracelens.scaling.points import FACTORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracelens.scaling.sweep import Axis, Cell

SWEEP_FORMAT: Final = "tracelens.sweep/1"
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
# share of the best: a cell from here on is as good as the best [policy]
MIN_SHARE_OF_BEST_THROUGHPUT: Final = 0.95
_WRITE: Final[dict[str, Callable[[float], str]]] = {
    "throughput": lambda value: f"{value:,.{0 if value >= 100 else 1}f}",
    "efficiency": fmt.percent,
    "step": fmt.duration,
}
_TITLES: Final = {
    "throughput": "samples a second, all workers",
    "efficiency": "parallel efficiency",
    "step": "step",
}
_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body{{color:#1f2328;background:#fff;font:14px/1.5 system-ui,sans-serif;padding:8px 16px}}
table{{border-collapse:separate;border-spacing:2px;margin:6px 0 18px}}
th{{font-weight:600;padding:4px 10px;text-align:right}}
td{{padding:6px 12px;text-align:right;min-width:64px;font-variant-numeric:tabular-nums}}
caption{{text-align:left;padding:4px 0}}
</style></head><body>
<h1 style="font-size:20px">{title}</h1>
{body}
</body></html>
"""
# RGB: the smallest value has this shade; more is darker, of one hue [policy]
_LIGHT: Final = (237, 244, 250)
_DARK: Final = (8, 64, 129)  # RGB: the largest value has this shade [policy]
# share of the way to dark: text turns white where black is not legible [policy]
MIN_SHADE_FOR_WHITE_TEXT: Final = 0.55


def write_headline(cells: Sequence[Cell], axes: Sequence[Axis]) -> str:
    """Name the run with the highest throughput, and the smallest one that nearly reaches it."""
    best_cell = max(cells, key=lambda cell: cell.samples_per_s)
    near_best = [
        cell
        for cell in cells
        if cell.samples_per_s >= MIN_SHARE_OF_BEST_THROUGHPUT * best_cell.samples_per_s
    ]
    smallest = min(
        near_best, key=lambda cell: (cell.worker_count + cell.shard_count, -cell.samples_per_s)
    )
    samples_per_s = _WRITE["throughput"](best_cell.samples_per_s)
    text = f"{_label_cell(best_cell, axes)}: {samples_per_s} samples a second"
    text += f", {fmt.percent(best_cell.efficiency)} parallel efficiency"
    if (
        smallest.worker_count + smallest.shard_count
        < best_cell.worker_count + best_cell.shard_count
    ):
        share = fmt.percent(smallest.samples_per_s / best_cell.samples_per_s)
        text += f". {_label_cell(smallest, axes)} does {share} of it"
    return f"{text}."


def to_text(cells: Sequence[Cell], axes: Sequence[Axis], measure: str) -> str:
    """Write the maps of a measure (a key of `_TITLES`) for a terminal, with a block per number."""
    to_level = _make_level_function(cells, measure)
    lines = [f"Best     {write_headline(cells, axes)}", f"Shown    {_TITLES[measure]}"]
    for title, headings, rows in _iterate_maps(cells, axes):
        table = [headings]
        for name, row in rows:
            texts = [f"{_write_value(cell, measure)} {_draw_block(to_level(cell))}" for cell in row]
            table.append((name, *texts))
        lines += ["", *([title] if title else []), *fmt.align_cells(table, ">")]
    return "\n".join(lines) + "\n"


def to_html(cells: Sequence[Cell], axes: Sequence[Axis], measure: str, name: str) -> str:
    """Write the maps as one page without scripts."""
    to_level = _make_level_function(cells, measure)
    sections = [f"<p>Best: {escape(write_headline(cells, axes))}</p>"]
    for title, headings, rows in _iterate_maps(cells, axes):
        head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
        body = "".join(
            f"<tr><th>{escape(value)}</th>"
            f"{''.join(_write_cell(cell, measure, to_level) for cell in row)}</tr>"
            for value, row in rows
        )
        caption = ", ".join(filter(None, (_TITLES[measure], title)))
        sections.append(f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>")
    return _PAGE.format(title=escape(f"Sweep of {name}"), body="\n".join(sections))


def to_json(cells: Sequence[Cell], axes: Sequence[Axis]) -> str:
    """Write all numbers, a row a run."""
    document = {
        "format": SWEEP_FORMAT,
        "summary": write_headline(cells, axes),
        "axes": [{"name": axis.name, "values": list(axis.value_texts)} for axis in axes],
        "runs": [cell.make_row(axes) for cell in cells],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


# Title, headings, and rows: the value of the row's axis, and the cells.
_Map: TypeAlias = tuple[str, tuple[str, ...], list[tuple[str, list["Cell"]]]]


def _iterate_maps(cells: Sequence[Cell], axes: Sequence[Axis]) -> Iterator[_Map]:
    """Yield title, headings and rows of each map; a row is the value of its axis, and its cells.

    There is a map for each combination of the values of all axes but the last two.
    """
    *outer_axes, column_axis = axes
    row_axis = outer_axes.pop() if outer_axes else None
    cell_by_values = {cell.axis_values: cell for cell in cells}
    for outer_values in product(*(axis.value_texts for axis in outer_axes)):
        title = ", ".join(f"{a.name} {v}" for a, v in zip(outer_axes, outer_values, strict=True))
        corner = f"{row_axis.name} \\ {column_axis.name}" if row_axis else column_axis.name
        rows = [
            (
                name,
                [
                    cell_by_values[*outer_values, *([name] if row_axis else []), value]
                    for value in column_axis.value_texts
                ],
            )
            for name in (row_axis.value_texts if row_axis else ("",))
        ]
        yield title, (corner, *column_axis.value_texts), rows


def _make_level_function(cells: Sequence[Cell], measure: str) -> Callable[[Cell], float]:
    """Return a function from a cell to its level between the smallest value (0) and largest (1)."""
    values = [_get_value(cell, measure) for cell in cells]
    least, most = min(values), max(values)
    return lambda cell: (
        (_get_value(cell, measure) - least) / (most - least) if most > least else 1.0
    )


def _get_value(cell: Cell, measure: str) -> float:
    return {
        "throughput": cell.samples_per_s,
        "efficiency": cell.efficiency,
        "step": cell.step_ns,
    }[measure]


def _write_value(cell: Cell, measure: str) -> str:
    return _WRITE[measure](_get_value(cell, measure))


def _draw_block(level: float) -> str:
    return _BLOCKS[min(int(level * len(_BLOCKS)), len(_BLOCKS) - 1)]


def _write_cell(cell: Cell, measure: str, to_level: Callable[[Cell], float]) -> str:
    """Return a cell of a table in HTML, darker the higher its level (0 to 1, by `to_level`) is."""
    level = to_level(cell)
    rgb = [light + (dark - light) * level for light, dark in zip(_LIGHT, _DARK, strict=True)]
    background = ",".join(f"{value:.0f}" for value in rgb)
    text_color = "#fff" if level > MIN_SHADE_FOR_WHITE_TEXT else "#1f2328"
    shares = cell.share_by_factor
    factors = ", ".join(f"{n.replace('_', ' ')} {fmt.percent(shares[n])}" for n in FACTORS)
    tooltip = f"{fmt.duration(cell.step_ns)} a step; {factors}"
    text = escape(_write_value(cell, measure))
    style = f"background:rgb({background});color:{text_color}"
    return f'<td style="{style}" title="{escape(tooltip)}">{text}</td>'


def _label_cell(cell: Cell, axes: Sequence[Axis]) -> str:
    return ", ".join(
        f"{axis.name} {value}" for axis, value in zip(axes, cell.axis_values, strict=True)
    )
