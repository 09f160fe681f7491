"""A comparison for programs: one JSON object, format `tracelens.comparison/1` (docs/compare.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tracelens.comparison import messages
from tracelens.comparison.series import EFFICIENCY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.comparison.changes import Comparison, FindingChange, Metric
    from tracelens.comparison.gates import Outcome
    from tracelens.comparison.series import Steps

__all__ = ["render"]

COMPARISON_FORMAT: Final = "tracelens.comparison/1"


def render(found: Comparison, outcomes: Sequence[Outcome], /) -> str:
    """Write a comparison as indented JSON; what is not known is null."""
    whole = {
        "format": COMPARISON_FORMAT,
        "verdict": messages.verdict(found).lower().replace(" ", "_"),
        "summary": messages.headline(found),
        "baselines": [_run(run) for run in found.baselines],
        "new": _run(found.new),
        "metrics": [_metric(metric) for metric in found.metrics],
        "findings": [_finding(one) for one in found.findings],
        "gates": [
            {
                "condition": one.gate.text,
                "state": one.state,
                "reason": one.reason,
                "probability": one.probability,
            }
            for one in outcomes
        ],
        "notes": messages.cautions(found),
    }
    return json.dumps(whole, indent=2, allow_nan=False) + "\n"


def _run(run: Steps) -> dict[str, Any]:
    return {"name": run.name, "ranks": run.ranks, "shards": run.shards, "steps": run.count}


def _metric(metric: Metric) -> dict[str, Any]:
    change = metric.change
    return {
        "name": metric.name,
        "statistic": metric.statistic,
        "unit": "share" if metric.name == EFFICIENCY else "ns",
        "baseline": change.before,
        "new": change.after,
        "change": change.share(change.delta),
        "interval": None
        if change.low is None
        else [change.share(change.low), change.share(change.high)],
        "between_baselines": change.between,
        "probability": metric.probability,
        "clear": metric.clear,
    }


def _finding(one: FindingChange) -> dict[str, Any]:
    found = one.finding
    return {
        "state": one.state,
        "kind": found.kind,
        "category": found.category,
        "phase": found.phase,
        "ranks": list(found.ranks),
        "hosts": list(found.hosts),
        "shards": list(found.shards),
        "saving_before": one.before,
        "saving": one.after,
        "baselines": one.baselines,
        "sentence": found.sentence,
    }
