"""What ranks do in collectives, step by step: waiting for the last of them, and transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens_dashboard import text
from tracelens_dashboard.figures import stacked_steps
from tracelens_dashboard.figures.drawing import Drawing, empty
from tracelens_dashboard.figures.stacked_steps import Part

if TYPE_CHECKING:
    import polars as pl

    from tracelens_dashboard.theme import Theme

NONE_IN_STEPS: Final = "No collective lies within a step."
MOSTLY: Final = 0.6


def draw(by_step: pl.DataFrame, theme: Theme) -> Drawing:
    """Draw the mean rank's time; `by_step` as `arrivals.STEP_COLUMNS`."""
    if by_step.is_empty():
        return empty(theme, NONE_IN_STEPS)
    parts = (
        Part("transfer_ns", "transfer", theme.categories["transfer"]),
        Part("wait_ns", "waiting for the last rank", theme.categories["wait"]),
    )
    return Drawing(
        stacked_steps.draw(by_step, parts, theme),
        summary(by_step),
        stacked_steps.rows(by_step, parts),
    )


def summary(by_step: pl.DataFrame) -> str:
    """Say which of both it mostly is, and so where to look."""
    waited, moved = (int(by_step[name].sum()) for name in ("wait_ns", "transfer_ns"))
    whole = waited + moved
    if not whole:
        return "Collectives take no time."
    share = waited / whole
    each = text.duration(whole / by_step.height)
    begin = (
        f"A rank spends {each} of a step in collectives, also beside own work: "
        f"{text.percent(share)} waiting for the last rank, {text.percent(1 - share)} in transfer."
    )
    if share > MOSTLY:
        return f"{begin} Who comes late matters more here than the network."
    if share < 1 - MOSTLY:
        return f"{begin} Bytes and links matter more here than who comes late."
    return begin
