"""How runs scale, for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from tracelens.model import fmt
from tracelens.scaling import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.scaling.curves import Curve, Scaling

__all__ = ["render"]

COLUMNS: Final = 80  # columns: a line is no longer [policy]
_COLUMNS_OF_NAME: Final = 9  # columns: the word before a line has as many [policy]
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
        lines += ["", *fmt.aligned(both, _sides(both))]
    return "\n".join(lines) + "\n"


def _curve(curve: Curve) -> list[str]:
    rows: list[Sequence[str]] = [
        (curve.by, *_SHORT),
        *((str(row.size), *messages.cells(row)) for row in curve.rows),
    ]
    foot = "Factors are shares of the smallest run's; efficiency is their product."
    lines = [messages.title(curve), *fmt.aligned(rows, _sides(rows)), foot]
    if curve.forecasts:
        ahead: list[Sequence[str]] = [("forecast", "step", "95 % interval", "effic.", "")]
        ahead += [(str(f.ranks), *messages.forecast_cells(curve, f)) for f in curve.forecasts]
        lines += fmt.aligned(ahead, _sides(ahead))
    return lines


def _sides(rows: Sequence[Sequence[str]]) -> str:
    """Return where cells go: numbers to the right; the last column, of words, to the left."""
    return ">" * (len(rows[0]) - 1) + "<"


def _wrapped(name: str, text: str) -> list[str]:
    indent = " " * _COLUMNS_OF_NAME
    return textwrap.wrap(
        f"{name:{_COLUMNS_OF_NAME}}{text}",
        COLUMNS,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
