"""Where the time went: from all ranks' time down to the share that did useful work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plotly import graph_objects as go

from tracelens.reports.words import cause
from tracelens_dashboard import text
from tracelens_dashboard.figures.drawing import Drawing, empty, figure

if TYPE_CHECKING:
    from tracelens.analyses.result import Efficiency
    from tracelens_dashboard.theme import Theme

AMOUNT_PX: int = 48  # beside the longest bar: its share
SMALLEST: float = 0.0005  # shares below are not drawn; the table has them


def draw(efficiency: Efficiency | None, theme: Theme) -> Drawing:
    """Draw one bar a cause, each beginning where the one above it ended."""
    if efficiency is None:
        return empty(theme, "No step was recorded, so the time cannot be divided.")
    steps = _steps(efficiency, theme)
    labels = [label for label, *_ in steps]
    bars = go.Bar(
        orientation="h",
        y=labels,
        base=[100 * base for _, base, _, _, _ in steps],
        x=[100 * share for _, _, share, _, _ in steps],
        marker={"color": [colour for _, _, _, colour, _ in steps], "line": {"width": 0}},
        customdata=[lost for *_, lost in steps],
        text=[_amount(index, share) for index, (_, _, share, _, _) in enumerate(steps)],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{x:.2f} % of the ranks' time<extra></extra>",
    )
    losses = sorted(efficiency.waterfall, key=lambda part: -part.share)
    first = f"; most is lost to {cause(losses[0].cause)}" if losses else ""
    rows = [{"part": label, "share %": round(100 * share, 3)} for label, share in _all(efficiency)]
    return Drawing(
        figure(theme, bars, **_axes(labels, theme)),
        f"{text.percent(efficiency.achieved)} of the ranks' time is useful work{first}.",
        rows,
    )


def _steps(efficiency: Efficiency, theme: Theme) -> list[tuple[str, float, float, str, str]]:
    """List (label, base, share, colour, cause; empty = no loss) from top to bottom."""
    steps = [("all ranks' time", 0.0, 1.0, theme.quiet, "")]
    left = 1.0
    for part in efficiency.waterfall:
        left -= part.share
        if part.share >= SMALLEST:
            label = text.safe(cause(part.cause))
            steps.append((label, max(left, 0.0), part.share, theme.loss, part.cause))
    return [*steps, ("useful work", 0.0, efficiency.achieved, theme.accent, "")]


def _all(efficiency: Efficiency) -> list[tuple[str, float]]:
    causes = [(cause(part.cause), part.share) for part in efficiency.waterfall]
    return [*causes, ("useful work", efficiency.achieved)]


def _amount(index: int, share: float) -> str:
    if index == 0:
        return "100 %"
    return text.percent(share)


def _axes(labels: list[str], theme: Theme) -> dict[str, Any]:
    return {
        "xaxis": {
            "range": [0, 100],
            "fixedrange": True,
            "tickvals": [0, 50, 100],
            "ticktext": ["0", "50 %", "100 %"],
        },
        "margin": {"r": AMOUNT_PX},
        "yaxis": {
            "autorange": "reversed",
            "fixedrange": True,
            "tickfont": {"color": theme.text},
            "categoryarray": labels,
            "ticksuffix": "  ",
        },
        "bargap": 0.28,
    }
