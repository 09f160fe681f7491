"""What every format says of how runs scale, in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens.model import fmt
from tracelens.scaling.forecast import MAX_FACTOR_VALIDATED

if TYPE_CHECKING:
    from tracelens.scaling.curves import Curve, Row, Scaling
    from tracelens.scaling.forecast import Forecast

HEADINGS: Final = (
    "step",
    "efficiency",
    "load balance",
    "serialisation",
    "transfer",
    "computation",
    "lost in",
)
WORDS: Final = {
    "load_balance": "load balance",
    "serialisation": "serialisation",
    "transfer": "transfer",
    "computation": "computation",
}
_NEXT: Final = {
    "load_balance": "Find the ranks with more work: 'tracelens analyze' of the largest run.",
    "serialisation": "Find who waits for whom: the critical path and PS queues of the largest run.",
    "transfer": "Ask what would help the largest run: 'tracelens whatif RUN --what all'.",
    "computation": "Compare a rank's own work in both: 'tracelens compare SMALLEST LARGEST'.",
}
_MEANS: Final = {
    "load_balance": "ranks have less even work",
    "serialisation": "ranks wait longer for each other",
    "transfer": "more of the time is exposed communication",
    "computation": "the work itself takes longer",
}


def headline(found: Scaling) -> str:
    """Return what became of efficiency on the curve with most sizes."""
    curve = found.curves[0]
    last = curve.rows[-1]
    lost = f", lost most in {WORDS[last.lost_in]}" if last.lost_in else ""
    reached = f"{fmt.percent(last.efficiency)} efficiency on {_size(curve, last)}"
    return f"{title(curve).upper()} · {reached}{lost}"


def title(curve: Curve) -> str:
    """Name a curve."""
    if curve.by == "shards":
        return "parameter servers added"
    of = f" of {curve.shards}" if curve.shards else ""
    return f"{curve.kind} scaling, {curve.system}{of}"


def why(found: Scaling) -> str:
    """Return which factor loses most, and from what to what it fell."""
    curve = found.curves[0]
    first, last = curve.rows[0], curve.rows[-1]
    name = last.lost_in
    if name is None:
        return f"Hardly anything is lost from {_size(curve, first)} on."
    part = f"{fmt.percent(min(last.part, 1.0))} of the loss: {_MEANS[name]}"
    if name == "computation":
        before, after = (fmt.duration(row.point.useful_ns) for row in (first, last))
        return f"{part} ({before} to {after} of computation a step and rank)."
    before, after = (fmt.percent(row.point.factors[name]) for row in (first, last))
    return f"{part} ({WORDS[name]} efficiency {before} to {after})."


def advice(found: Scaling) -> str:
    """Return one thing to do next."""
    name = found.curves[0].rows[-1].lost_in
    return _NEXT[name] if name else "Measure more workers: where efficiency falls is not seen yet."


def scope(found: Scaling) -> str:
    """Return what was compared."""
    runs = sum(row.runs for curve in found.curves for row in curve.rows)
    curve = found.curves[0]
    sizes = fmt.series([str(row.size) for row in curve.rows])
    base = _size(curve, curve.rows[0])
    return f"{fmt.count(runs, 'run')}; {sizes} {_noun(curve)}; efficiency is against {base}."


def cautions(found: Scaling) -> list[str]:
    """Return what limits what was found, a sentence each."""
    sentences = []
    for curve in found.curves:
        if not curve.clear:
            sentences.append(
                f"{fmt.capital(title(curve))}: whether ranks keep their work or share it is not clear "
                f"(it grows as workers to the power {curve.growth:.2f}): say --weak or --strong."
            )
        if any(row.runs > 1 for row in curve.rows):
            most = max(row.spread or 0.0 for row in curve.rows)
            sentences.append(
                f"Of several runs of a size the one with the median step is shown; they differ by up to "
                f"{fmt.percent(most)}."
            )
        if any(one.method == "replay" for one in curve.forecasts):
            sentences.append(
                f"{fmt.capital(title(curve))}: forecasts replay the largest run with more workers, as "
                "tracelens whatif --what ranks=N does."
            )
        if any(not one.validated for one in curve.forecasts):
            sentences.append(
                f"Forecasts beyond {MAX_FACTOR_VALIDATED} times the largest run were never validated."
            )
    return list(dict.fromkeys(sentences))


def cells(row: Row) -> tuple[str, ...]:
    """Return a size as text, under `HEADINGS`; factors as shares of the smallest run's."""
    ratios = (fmt.percent(row.ratios[name]) for name in WORDS)
    lost = WORDS[row.lost_in] if row.lost_in else ""
    return fmt.duration(row.point.step_ns), fmt.percent(row.efficiency), *ratios, lost


def forecast_cells(curve: Curve, one: Forecast) -> tuple[str, ...]:
    """Return a forecast as text: step, its interval, efficiency, and whether to trust it."""
    first = curve.rows[0]
    grown = one.ranks / first.size if curve.kind == "strong" else 1.0
    low, high = map(fmt.duration, one.interval)
    return (
        fmt.duration(one.step_ns),
        f"{low} to {high}",
        fmt.percent(first.point.step_ns / (one.step_ns * grown)),
        "" if one.validated else "not validated",
    )


def side_by_side(found: Scaling) -> list[tuple[str, ...]]:
    """Return sizes that several systems were run at: step of each, and who is faster by how much."""
    systems = list(dict.fromkeys(curve.system for curve in found.curves))
    rows: list[tuple[str, ...]] = [("workers", *systems, "faster")] if found.both else []
    for size, of in found.both:
        steps = {name: row.point.step_ns for name, row in of.items()}
        best, worst = min(steps, key=steps.__getitem__), max(steps.values())
        times = (fmt.duration(steps[name]) if name in steps else "\N{EN DASH}" for name in systems)
        rows.append((str(size), *times, f"{best}, {worst / steps[best]:.2g} x"))
    return rows


def _size(curve: Curve, row: Row) -> str:
    return fmt.count(row.size, _noun(curve)[:-1])


def _noun(curve: Curve) -> str:
    return "workers" if curve.by == "workers" else "servers"
