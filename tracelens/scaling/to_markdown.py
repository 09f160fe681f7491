"""How runs scale, for an issue or a report: the same as the text, as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.reports.to_markdown import escaped
from tracelens.scaling import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.scaling.curves import Curve, Scaling

__all__ = ["render"]


def render(found: Scaling, /) -> str:
    """Write the verdict, each curve, its forecasts, and systems side by side."""
    lines = [f"**TraceLens: {escaped(messages.headline(found))}**", ""]
    lines += [f"- {text(found)}" for text in (messages.why, messages.advice, messages.scope)]
    lines += [f"- {escaped(sentence)}" for sentence in messages.cautions(found)]
    for curve in found.curves:
        lines += ["", *_curve(curve)]
    both = messages.side_by_side(found)
    if both:
        lines += ["", *_table(both)]
    return "\n".join(lines) + "\n"


def _curve(curve: Curve) -> list[str]:
    rows: list[Sequence[str]] = [(curve.by, *messages.HEADINGS)]
    rows += [(str(row.size), *messages.cells(row)) for row in curve.rows]
    lines = [f"{messages.title(curve)}:", "", *_table(rows)]
    if curve.forecasts:
        ahead: list[Sequence[str]] = [("forecast", "step", "95 % interval", "efficiency", "")]
        ahead += [(str(f.ranks), *messages.forecast_cells(curve, f)) for f in curve.forecasts]
        lines += ["", *_table(ahead)]
    return lines


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    columns = len(rows[0])
    ruled = [rows[0], ["---:"] * (columns - 1) + ["---"], *rows[1:]]
    return [f"| {' | '.join(map(escaped, row))} |" for row in ruled]
