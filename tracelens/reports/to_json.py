"""The report for programs: one JSON object, format `tracelens.report/3` (docs/report.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tracelens.model.result import REPORT_FORMAT
from tracelens.reports.tables import OF_FORMAT

if TYPE_CHECKING:
    from tracelens.model.result import Efficiency, Report


def render(report: Report) -> str:
    """Write the report as indented JSON."""
    return json.dumps(to_object(report), indent=2, allow_nan=False)


def to_object(report: Report) -> dict[str, Any]:
    """Return the report as plain lists, objects, numbers and texts; what is absent is null."""
    document: dict[str, Any] = _plain(
        {
            "format": REPORT_FORMAT,
            "verdict": report.verdict.state,
            "summary": {
                **_pick(report.verdict, "headline", "why"),
                "next": report.verdict.action,
                **_pick(report.verdict, "scope", "kind"),
            },
            "trace": vars(report.summary) | {"selected": report.summary.selected or None},
            "clock": {
                "method": report.clock.method,
                "hosts": [
                    _pick(host, "host", "offset_ns", "drift_ppm", "uncertainty_ns", "jumps")
                    for host in report.clock.hosts
                ],
            },
            "efficiency": _efficiency_object(report.efficiency),
            "ledger": report.ledger
            and _pick(report.ledger, "useful", "unexplained")
            | {"losses": list(map(asdict, report.ledger.losses))}
            | _pick(report.ledger, "startup_ns", "awaited_rank", "awaited_share"),
            "life": report.life and asdict(report.life),
            "findings": [finding.to_dict() for finding in report.findings],
            "tables": {
                name: table.to_dicts()
                for name, table in report.tables.items()
                if name in OF_FORMAT  # a plug-in may have others
            },
            "notes": list(map(asdict, report.notes)),
        }
    )
    return document


def _efficiency_object(efficiency: Efficiency | None) -> dict[str, Any] | None:
    if efficiency is None:
        return None
    device_shares = efficiency.devices
    return {
        "definition": "POP parallel efficiency: useful computation / (ranks x job time)",
        **_pick(efficiency, "achieved", "at_most", "uninstrumented", "job_ns", "pop"),
        "waterfall": list(map(asdict, efficiency.waterfall)),
        "devices": device_shares and asdict(device_shares) | {"idle": device_shares.idle},
    }


def _pick(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _plain(value: Any) -> Any:
    """Turn a value into what JSON has: no NaN, no NumPy numbers, no tuples."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if hasattr(value, "item"):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
