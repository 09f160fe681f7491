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

__all__ = ["SWEEP_FORMAT", "headline", "to_html", "to_json", "to_text"]

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


def headline(cells: Sequence[Cell], axes: Sequence[Axis]) -> str:
    """Return which run does most a second, and the smallest that does nearly as much."""
    best = max(cells, key=lambda cell: cell.throughput)
    near = [
        cell for cell in cells if cell.throughput >= MIN_SHARE_OF_BEST_THROUGHPUT * best.throughput
    ]
    small = min(near, key=lambda cell: (cell.workers + cell.shards, -cell.throughput))
    text = f"{_place(best, axes)}: {_WRITE['throughput'](best.throughput)} samples a second"
    text += f", {fmt.percent(best.efficiency)} parallel efficiency"
    if small.workers + small.shards < best.workers + best.shards:
        share = fmt.percent(small.throughput / best.throughput)
        text += f". {_place(small, axes)} does {share} of it"
    return f"{text}."


def to_text(cells: Sequence[Cell], axes: Sequence[Axis], measure: str) -> str:
    """Write the maps for a terminal; a block beside each number shows it from the least to the most."""
    level = _levels(cells, measure)
    lines = [f"Best     {headline(cells, axes)}", f"Shown    {_TITLES[measure]}"]
    for title, headings, rows in _maps(cells, axes):
        table = [headings]
        for name, row in rows:
            shown = [f"{_shown(one, measure)} {_block(level(one))}" for one in row]
            table.append((name, *shown))
        lines += ["", *([title] if title else []), *fmt.aligned(table, ">")]
    return "\n".join(lines) + "\n"


def to_html(cells: Sequence[Cell], axes: Sequence[Axis], measure: str, name: str) -> str:
    """Write the maps as one page without scripts."""
    level = _levels(cells, measure)
    parts = [f"<p>Best: {escape(headline(cells, axes))}</p>"]
    for title, headings, rows in _maps(cells, axes):
        head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
        body = "".join(
            f"<tr><th>{escape(of)}</th>{''.join(_coloured(one, measure, level) for one in row)}</tr>"
            for of, row in rows
        )
        caption = ", ".join(filter(None, (_TITLES[measure], title)))
        parts.append(f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>")
    return _PAGE.format(title=escape(f"Sweep of {name}"), body="\n".join(parts))


def to_json(cells: Sequence[Cell], axes: Sequence[Axis]) -> str:
    """Write all numbers, a row a run."""
    whole = {
        "format": SWEEP_FORMAT,
        "summary": headline(cells, axes),
        "axes": [{"name": axis.name, "values": list(axis.values)} for axis in axes],
        "runs": [cell.row(axes) for cell in cells],
    }
    return json.dumps(whole, indent=2, allow_nan=False) + "\n"


_Map: TypeAlias = tuple[str, tuple[str, ...], list[tuple[str, list["Cell"]]]]


def _maps(cells: Sequence[Cell], axes: Sequence[Axis]) -> Iterator[_Map]:
    """Yield a map for each combination of all axes but the last two: title, headings, rows."""
    *outer, last = axes
    rows = outer.pop() if outer else None
    by_values = {cell.values: cell for cell in cells}
    for fixed in product(*(axis.values for axis in outer)):
        title = ", ".join(f"{a.name} {v}" for a, v in zip(outer, fixed, strict=True))
        corner = f"{rows.name} \\ {last.name}" if rows else last.name
        found = [
            (name, [by_values[*fixed, *([name] if rows else []), value] for value in last.values])
            for name in (rows.values if rows else ("",))
        ]
        yield title, (corner, *last.values), found


def _levels(cells: Sequence[Cell], measure: str) -> Callable[[Cell], float]:
    """Return where a cell is between the least (0) and the most (1)."""
    values = [_value(cell, measure) for cell in cells]
    least, most = min(values), max(values)
    return lambda cell: (_value(cell, measure) - least) / (most - least) if most > least else 1.0


def _value(cell: Cell, measure: str) -> float:
    return cell.step_ns if measure == "step" else float(getattr(cell, measure))


def _shown(cell: Cell, measure: str) -> str:
    return _WRITE[measure](_value(cell, measure))


def _block(level: float) -> str:
    return _BLOCKS[min(int(level * len(_BLOCKS)), len(_BLOCKS) - 1)]


def _coloured(cell: Cell, measure: str, level: Callable[[Cell], float]) -> str:
    at = level(cell)
    shade = ",".join(f"{a + (b - a) * at:.0f}" for a, b in zip(_LIGHT, _DARK, strict=True))
    ink = "#fff" if at > MIN_SHADE_FOR_WHITE_TEXT else "#1f2328"
    factors = ", ".join(f"{n.replace('_', ' ')} {fmt.percent(cell.factors[n])}" for n in FACTORS)
    about = f"{fmt.duration(cell.step_ns)} a step; {factors}"
    text = escape(_shown(cell, measure))
    return f'<td style="background:rgb({shade});color:{ink}" title="{escape(about)}">{text}</td>'


def _place(cell: Cell, axes: Sequence[Axis]) -> str:
    return ", ".join(f"{a.name} {v}" for a, v in zip(axes, cell.values, strict=True))
