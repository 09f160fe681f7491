"""How often ranks come how far apart to a collective; a bar leads to its farthest call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens_dashboard import text
from tracelens_dashboard.figures import histogram
from tracelens_dashboard.figures.drawing import Drawing, empty
from tracelens_dashboard.figures.last_arrivers import NOBODY

if TYPE_CHECKING:
    import polars as pl

    from tracelens_dashboard.theme import Theme

COUNTED: Final = "calls"
LEAD: Final = ("first_ns", "over_ns", "last_rank")
TIMES_SURE: Final = 3


def draw(spread: pl.DataFrame, uncertainty_ns: int, theme: Theme) -> Drawing:
    """Draw the skew of all calls by operation; `spread` as `Arrivals.spread`."""
    if spread.is_empty():
        return empty(theme, NOBODY)
    bars = histogram.of_table(spread, "op", LEAD, theme)
    drawn = histogram.draw(bars, "from the first to the last arrival", COUNTED, theme)
    named = [
        ("half", histogram.quantile(spread, 0.5)),
        ("99 in 100", histogram.quantile(spread, 0.99)),
    ]
    if uncertainty_ns:
        named.insert(0, ("clocks are sure from", float(TIMES_SURE * uncertainty_ns)))
    histogram.mark(drawn, named, theme)
    return Drawing(drawn, summary(spread, uncertainty_ns), histogram.rows(bars, COUNTED))


def summary(spread: pl.DataFrame, uncertainty_ns: int) -> str:
    """Say how far apart ranks come, and from where on clocks can tell."""
    half, rare = (text.duration(histogram.quantile(spread, share)) for share in (0.5, 0.99))
    farthest = spread.sort("from_ns").row(-1, named=True)
    calls = text.count(int(spread["count"].sum()), "call")
    said = (
        f"To half of {calls} ranks come within about {half}, to 99 of 100 within {rare}; farthest in "
        f"step {farthest['step']}, rank {farthest['last_rank']} last."
    )
    if not uncertainty_ns:
        return said
    sure = text.duration(TIMES_SURE * uncertainty_ns)
    return f"{said} Clocks tell differences from {sure} on."
