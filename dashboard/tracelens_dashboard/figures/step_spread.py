"""How often a step takes how long, over all ranks; a bar leads to its longest example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens_dashboard import text
from tracelens_dashboard.figures import histogram
from tracelens_dashboard.figures.drawing import Drawing, empty

if TYPE_CHECKING:
    from tracelens.lod.step_times import StepTimes
    from tracelens.lod.times import Matrix
    from tracelens_dashboard.theme import Theme

COUNTED = "steps of ranks"


def draw(times: StepTimes, what: str, theme: Theme) -> Drawing:
    """Draw the distribution."""
    known = np.isfinite(times.sample_ns)
    values = times.sample_ns[known]
    if not values.size:
        return empty(theme, "No step was recorded.")
    edges = histogram.edges_of(values)
    counts = np.histogram(values, edges)[0].astype(float)
    bars = [histogram.Bars(what, edges, counts, theme.accent, _examples(times, known, edges))]
    quantiles = np.quantile(values, [share for _, share in histogram.NAMED]).tolist()
    names = [name for name, _ in histogram.NAMED]
    drawn = histogram.draw(bars, what, COUNTED, theme)
    histogram.mark(drawn, list(zip(names, quantiles, strict=True)), theme)
    return Drawing(drawn, _summary(times, quantiles), histogram.rows(bars, COUNTED))


def _examples(times: StepTimes, known: Any, edges: Matrix) -> list[list[int] | None]:
    """Return rank and step of the longest of every bar."""
    ranks, columns = np.nonzero(known)
    values = times.sample_ns[known]
    order = np.argsort(values, kind="stable")
    places = np.searchsorted(values[order], edges[1:], side="left") - 1
    sampled = times.steps[:: times.every]
    found = order[np.maximum(places, 0)]
    return [
        [times.ranks[ranks[place]], sampled[columns[place]]] if values[place] >= low else None
        for place, low in zip(found.tolist(), edges[:-1].tolist(), strict=True)
    ]


def _summary(times: StepTimes, quantiles: list[float]) -> str:
    half, most, rare = (text.duration(value) for value in quantiles)
    sampled = f" Every {times.every}th step is counted." if times.every > 1 else ""
    return f"Half take less than {half}, 9 of 10 less than {most}, 99 of 100 less than {rare}.{sampled}"
