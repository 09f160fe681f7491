"""How long are the gaps between weight updates? A bar leads to its longest gap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens_dashboard import text
from tracelens_dashboard.figures import histogram
from tracelens_dashboard.figures.drawing import Drawing, empty

if TYPE_CHECKING:
    import polars as pl

    from tracelens_dashboard.theme import Theme

COUNTED: Final = "gaps"
NO_GAPS: Final = (
    "No two weight updates of a rank were recorded: hooks of optimizers note them; in code of your own, "
    "“with tl.span('update', kind='update'): …” does."
)


def draw(spread: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the distribution; `spread` as `Interleaving.gap_spread`."""
    if spread.is_empty():
        return empty(theme, NO_GAPS)
    bars = histogram.of_table(spread, "of", ("rank", "start_ns", "gap_ns"), theme)
    drawn = histogram.draw(bars, "from the end of an update to the next one", COUNTED, theme)
    named = [
        ("half", histogram.quantile(spread, 0.5)),
        ("9 in 10", histogram.quantile(spread, 0.9)),
    ]
    return Drawing(
        histogram.mark(drawn, named, theme), summary(spread), histogram.rows(bars, COUNTED)
    )


def summary(spread: pl.DataFrame) -> str:
    """Say how long gaps are, and where the longest is."""
    parts = [
        f"{text.count(int(part['count'].sum()), 'gap')} {part['of'][0]}, half of them shorter than "
        f"about {text.duration(histogram.quantile(part, 0.5))}"
        for part in spread.partition_by("of", maintain_order=True)
    ]
    longest = spread.sort("gap_ns").row(-1, named=True)
    where = f"{text.duration(longest['gap_ns'])}, on rank {longest['rank']}"
    return f"{'; '.join(parts)}. The longest is {where}."
