"""How runs scale, for programs: one JSON object, format `tracelens.scaling/1` (docs/scaling.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tracelens.scaling import messages

if TYPE_CHECKING:
    from tracelens.scaling.curves import Curve, Row, Scaling

__all__ = ["render"]

SCALING_FORMAT: Final = "tracelens.scaling/1"


def render(found: Scaling, /) -> str:
    """Write it as indented JSON; what is not known is null."""
    whole = {
        "format": SCALING_FORMAT,
        "summary": messages.headline(found),
        "curves": [_curve(curve) for curve in found.curves],
        "side_by_side": [
            {"workers": size, "step_ns": {name: row.point.step_ns for name, row in rows.items()}}
            for size, rows in found.both
        ],
        "notes": messages.cautions(found),
    }
    return json.dumps(whole, indent=2, allow_nan=False) + "\n"


def _curve(curve: Curve) -> dict[str, Any]:
    return {
        "system": curve.system,
        "by": curve.by,
        "kind": curve.kind,
        "shards": curve.shards,
        "growth": curve.growth,
        "sizes": [_row(row) for row in curve.rows],
        "forecasts": [
            {
                "workers": one.ranks,
                "step_ns": one.step_ns,
                "interval_ns": list(one.interval),
                "slowest_ns": one.slowest_ns,
                "validated": one.validated,
                "method": one.method,
            }
            for one in curve.forecasts
        ],
    }


def _row(row: Row) -> dict[str, Any]:
    one = row.point
    return {
        "name": one.name,
        "workers": one.workers,
        "shards": one.shards,
        "steps": one.steps,
        "runs": row.runs,
        "spread": row.spread,
        "step_ns": one.step_ns,
        "useful_ns": one.useful_ns,
        "parallel_efficiency": one.efficiency,
        "factors": dict(one.factors),
        "efficiency": row.efficiency,
        "ratios": row.ratios,
        "lost_in": row.lost_in,
        "part": row.part,
    }
