"""What every format says of how runs scale, in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens.model import fmt
from tracelens.scaling.forecast import MAX_FACTOR_VALIDATED

if TYPE_CHECKING:
    from tracelens.scaling.curves import Curve, Row, Scaling
    from tracelens.scaling.forecast import Forecast

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


def write_headline(scaling: Scaling) -> str:
    """Write the efficiency of the largest size on the curve with most sizes."""
    curve = scaling.curves[0]
    largest = curve.rows[-1]
    loss = f", lost most in {WORDS[largest.main_loss_factor]}" if largest.main_loss_factor else ""
    efficiency = f"{fmt.percent(largest.efficiency)} efficiency on {_count_ranks(curve, largest)}"
    return f"{write_title(curve).upper()} · {efficiency}{loss}"


def write_title(curve: Curve) -> str:
    """Name a curve."""
    if curve.size_role == "shards":
        return "parameter servers added"
    of = f" of {curve.shard_count}" if curve.shard_count else ""
    return f"{curve.scaling_kind} scaling, {curve.system}{of}"


def explain_loss(scaling: Scaling) -> str:
    """State which factor loses most, and its values at the smallest and largest size."""
    curve = scaling.curves[0]
    smallest, largest = curve.rows[0], curve.rows[-1]
    name = largest.main_loss_factor
    if name is None:
        return f"Hardly anything is lost from {_count_ranks(curve, smallest)} on."
    phrase = f"{fmt.percent(min(largest.loss_share, 1.0))} of the loss: {_MEANS[name]}"
    if name == "computation":
        smallest_text, largest_text = (
            fmt.duration(row.median_point.useful_ns) for row in (smallest, largest)
        )
        return f"{phrase} ({smallest_text} to {largest_text} of computation a step and rank)."
    smallest_text, largest_text = (
        fmt.percent(row.median_point.share_by_factor[name]) for row in (smallest, largest)
    )
    return f"{phrase} ({WORDS[name]} efficiency {smallest_text} to {largest_text})."


def write_advice(scaling: Scaling) -> str:
    """Return one thing to do next."""
    name = scaling.curves[0].rows[-1].main_loss_factor
    return _NEXT[name] if name else "Measure more workers: where efficiency falls is not seen yet."


def describe_scope(scaling: Scaling) -> str:
    """Describe the runs that were compared."""
    run_count = sum(row.run_count for curve in scaling.curves for row in curve.rows)
    curve = scaling.curves[0]
    sizes = fmt.join_words([str(row.process_count) for row in curve.rows])
    smallest = _count_ranks(curve, curve.rows[0])
    return (
        f"{fmt.count(run_count, 'run')}; {sizes} {_noun(curve)}; efficiency is against {smallest}."
    )


def list_cautions(scaling: Scaling) -> list[str]:
    """List the limitations, a sentence for each."""
    sentences = []
    for curve in scaling.curves:
        if not curve.is_kind_clear:
            sentences.append(
                f"{fmt.capital(write_title(curve))}: whether ranks keep their work or share it is not "
                f"clear (it grows as workers to the power {curve.work_exponent:.2f}): say --weak or "
                "--strong."
            )
        if any(row.run_count > 1 for row in curve.rows):
            max_spread = max(row.step_spread_share or 0.0 for row in curve.rows)
            sentences.append(
                f"Of several runs of a size the one with the median step is shown; they differ by up to "
                f"{fmt.percent(max_spread)}."
            )
        if any(forecast.method == "replay" for forecast in curve.forecasts):
            sentences.append(
                f"{fmt.capital(write_title(curve))}: forecasts replay the largest run with more "
                "workers, as tracelens whatif --what ranks=N does."
            )
        if any(not forecast.is_validated for forecast in curve.forecasts):
            sentences.append(
                f"Forecasts beyond {MAX_FACTOR_VALIDATED} times the largest run were never validated."
            )
    return list(dict.fromkeys(sentences))


def make_size_cells(row: Row) -> tuple[str, ...]:
    """Return a size as the cells of a table; factors as shares of the smallest run's."""
    ratios = (fmt.percent(row.ratio_by_factor[name]) for name in WORDS)
    lost = WORDS[row.main_loss_factor] if row.main_loss_factor else ""
    return fmt.duration(row.median_point.step_ns), fmt.percent(row.efficiency), *ratios, lost


def make_forecast_cells(curve: Curve, forecast: Forecast) -> tuple[str, ...]:
    """Return a forecast as text: step, its interval, efficiency, and whether to trust it."""
    smallest = curve.rows[0]
    growth = forecast.rank_count / smallest.process_count if curve.scaling_kind == "strong" else 1.0
    low, high = map(fmt.duration, forecast.interval_ns)
    return (
        fmt.duration(forecast.step_ns),
        f"{low} to {high}",
        fmt.percent(smallest.median_point.step_ns / (forecast.step_ns * growth)),
        "" if forecast.is_validated else "not validated",
    )


def compare_systems(scaling: Scaling) -> list[tuple[str, ...]]:
    """Make a table of sizes with several systems: the step of each, and the faster one."""
    systems = list(dict.fromkeys(curve.system for curve in scaling.curves))
    shared_sizes = scaling.rows_by_shared_size
    rows: list[tuple[str, ...]] = [("workers", *systems, "faster")] if shared_sizes else []
    for size, rows_by_system in shared_sizes:
        steps_ns = {name: row.median_point.step_ns for name, row in rows_by_system.items()}
        fastest, slowest_ns = min(steps_ns, key=steps_ns.__getitem__), max(steps_ns.values())
        times = (
            fmt.duration(steps_ns[name]) if name in steps_ns else "\N{EN DASH}" for name in systems
        )
        rows.append((str(size), *times, f"{fastest}, {slowest_ns / steps_ns[fastest]:.2g} x"))
    return rows


def _count_ranks(curve: Curve, row: Row) -> str:
    return fmt.count(row.process_count, _noun(curve)[:-1])


def _noun(curve: Curve) -> str:
    return "workers" if curve.size_role == "workers" else "servers"
