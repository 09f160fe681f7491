"""How runs scale as text for a terminal of 80 columns, as JSON, and as Markdown (docs/scaling.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracelens.model import fmt
from tracelens.reports.lines import escape_markdown, json_text, markdown_row, write_named_lines
from tracelens.scaling import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens.scaling.curves import Curve, Row, Scaling

SCALING_FORMAT: Final = "tracelens.scaling/1"
_HEADINGS: Final = {
    "text": ("step", "effic.", "balance", "serial.", "transfer", "comput.", "lost most in"),
    "markdown": (
        *("step", "efficiency", "load balance", "serialisation", "transfer", "computation"),
        "lost in",
    ),
}
_FORECAST_HEADINGS: Final = ("forecast", "step", "95 % interval")


def to_text(scaling: Scaling, /) -> str:
    """Write the verdict, each curve, its forecasts, and systems side by side."""
    facts = [
        ("Verdict", messages.write_headline(scaling)),
        ("Why", messages.explain_loss(scaling)),
        ("Next", messages.write_advice(scaling)),
        ("Scope", messages.describe_scope(scaling)),
        *(("Note", sentence) for sentence in messages.list_cautions(scaling)),
    ]
    lines = [line for fact in facts for line in write_named_lines(*fact)]
    for curve in scaling.curves:
        sizes, forecasts = _tables(curve, "text")
        lines += ["", messages.write_title(curve), *_align(sizes)]
        lines += ["Factors are shares of the smallest run's; efficiency is their product."]
        lines += _align(forecasts)
    systems = messages.compare_systems(scaling)
    return "\n".join([*lines, *([""] if systems else []), *_align(systems)]) + "\n"


def to_markdown(scaling: Scaling, /) -> str:
    """Write the same for an issue or a report."""
    facts = [
        messages.explain_loss(scaling),
        messages.write_advice(scaling),
        messages.describe_scope(scaling),
    ]
    lines = [f"**TraceLens: {escape_markdown(messages.write_headline(scaling))}**", ""]
    lines += [f"- {escape_markdown(fact)}" for fact in (*facts, *messages.list_cautions(scaling))]
    for curve in scaling.curves:
        sizes, forecasts = _tables(curve, "markdown")
        lines += ["", f"{messages.write_title(curve)}:", *_markdown_table(sizes)]
        lines += _markdown_table(forecasts)
    lines += _markdown_table(messages.compare_systems(scaling))
    return "\n".join(lines) + "\n"


def _tables(curve: Curve, form: str) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return tables, headings first, of a curve's sizes and of its forecasts; the latter may be empty.

    `form` is a key of `_HEADINGS`.
    """
    sizes = [(str(row.process_count), *messages.make_size_cells(row)) for row in curve.rows]
    size_table = [(curve.size_role, *_HEADINGS[form]), *sizes]
    efficiency_heading = _HEADINGS[form][1]
    forecasts = [
        (str(one.rank_count), *messages.make_forecast_cells(curve, one)) for one in curve.forecasts
    ]
    forecast_table = [(*_FORECAST_HEADINGS, efficiency_heading, ""), *forecasts]
    return size_table, forecast_table if forecasts else []


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align numbers to the right, and the last column, which has words, to the left."""
    return fmt.align_cells(rows, ">" * (len(rows[0]) - 1) + "<") if rows else []


def _markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Write a blank line and a table, if there are rows; its first row is the headings."""
    if not rows:
        return []
    ruler = ["---:"] * (len(rows[0]) - 1) + ["---"]
    return ["", *map(markdown_row, (rows[0], ruler, *rows[1:]))]


def to_json(scaling: Scaling, /) -> str:
    """Write the same for programs; what is not known is null."""
    return json_text(
        {
            "format": SCALING_FORMAT,
            "summary": messages.write_headline(scaling),
            "curves": [_curve_object(curve) for curve in scaling.curves],
            "side_by_side": [
                {
                    "workers": size,
                    "step_ns": {name: row.median_point.step_ns for name, row in rows.items()},
                }
                for size, rows in scaling.rows_by_shared_size
            ],
            "notes": messages.list_cautions(scaling),
        }
    )


def _curve_object(curve: Curve) -> dict[str, Any]:
    return {
        "system": curve.system,
        "by": curve.size_role,
        "kind": curve.scaling_kind,
        "shards": curve.shard_count,
        "growth": curve.work_exponent,
        "sizes": [_size_object(row) for row in curve.rows],
        "forecasts": [
            {
                "workers": forecast.rank_count,
                "step_ns": forecast.step_ns,
                "interval_ns": list(forecast.interval_ns),
                "slowest_ns": forecast.slowest_work_ns,
                "validated": forecast.is_validated,
                "method": forecast.method,
            }
            for forecast in curve.forecasts
        ],
    }


def _size_object(row: Row) -> dict[str, Any]:
    point = row.median_point
    return {
        "name": point.name,
        "workers": point.worker_count,
        "shards": point.shard_count,
        "steps": point.step_count,
        "runs": row.run_count,
        "spread": row.step_spread_share,
        "step_ns": point.step_ns,
        "useful_ns": point.useful_ns,
        "parallel_efficiency": point.efficiency,
        "factors": dict(point.share_by_factor),
        "efficiency": row.efficiency,
        "ratios": row.ratio_by_factor,
        "lost_in": row.main_loss_factor,
        "part": row.loss_share,
    }


# Each writes down how runs scale.
SCALINGS: Final[dict[str, Callable[[Scaling], str]]] = {
    "text": to_text,
    "json": to_json,
    "markdown": to_markdown,
}
