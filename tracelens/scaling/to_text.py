"""How runs scale, for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from tracelens.scaling import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.scaling.curves import Curve, Scaling

__all__ = ["render"]

COLUMNS: Final = 80
_NAME: Final = 9  # columns: of what stands before a line
_SHORT: Final = ("step", "effic.", "balance", "serial.", "transfer", "comput.", "lost most in")


def render(found: Scaling, /) -> str:
    """Write the verdict, each curve, its forecasts, and systems side by side."""
    lines = [
        *_wrapped("Verdict", messages.headline(found)),
        *_wrapped("Why", messages.why(found)),
        *_wrapped("Next", messages.advice(found)),
        *_wrapped("Scope", messages.scope(found)),
    ]
    for sentence in messages.cautions(found):
        lines += _wrapped("Note", sentence)
    for curve in found.curves:
        lines += ["", *_curve(curve)]
    both = messages.side_by_side(found)
    if both:
        lines += ["", *_table(both)]
    return "\n".join(lines) + "\n"


def _curve(curve: Curve) -> list[str]:
    rows: list[Sequence[str]] = [
        (curve.by, *_SHORT),
        *((str(row.size), *messages.cells(row)) for row in curve.rows),
    ]
    foot = "Factors are shares of the smallest run's; efficiency is their product."
    lines = [messages.title(curve), *_table(rows), foot]
    if curve.forecasts:
        ahead: list[Sequence[str]] = [("forecast", "step", "95 % interval", "effic.", "")]
        ahead += [(str(f.ranks), *messages.forecast_cells(curve, f)) for f in curve.forecasts]
        lines += _table(ahead)
    return lines


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns of numbers to the right, and the last one, of words, to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([*map(str.rjust, row[:-1], widths), row[-1]]).rstrip() for row in rows]


def _wrapped(name: str, text: str) -> list[str]:
    indent = " " * _NAME
    return textwrap.wrap(
        f"{name:{_NAME}}{text}", COLUMNS, subsequent_indent=indent, break_on_hyphens=False
    )
