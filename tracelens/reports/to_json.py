"""The report for programs: one JSON object, format `tracelens.report/3` (docs/report.md)."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tracelens.model.result import REPORT_FORMAT
from tracelens.reports.tables import OF_FORMAT

if TYPE_CHECKING:
    from tracelens.model.findings import Finding
    from tracelens.model.result import DeviceShares, Efficiency, Report
    from tracelens.model.trace import Alignment
    from tracelens.model.verdict import Ledger, Verdict

__all__ = ["render", "to_object"]


def render(report: Report) -> str:
    """Write the report as indented JSON."""
    return json.dumps(to_object(report), indent=2, allow_nan=False)


def to_object(report: Report) -> dict[str, Any]:
    """Return the report as plain lists, objects, numbers and texts; what is absent is null."""
    summary = report.summary
    return {
        "format": REPORT_FORMAT,
        "verdict": report.verdict.state,
        "summary": _verdict_object(report.verdict),
        "trace": {
            "ranks_expected": summary.ranks_expected,
            "ranks_seen": summary.ranks_seen,
            "shards": summary.shards,
            "steps": summary.steps,
            "spans": summary.spans,
            "dropped": dict(summary.dropped),
            "selected": dict(summary.selected) if summary.selected else None,
        },
        "clock": _clock_object(report.clock),
        "efficiency": _efficiency_object(report.efficiency),
        "ledger": _ledger_object(report.ledger),
        "findings": [_finding_object(finding) for finding in report.findings],
        "tables": {
            name: _plain(table.to_dicts())
            for name, table in report.tables.items()
            if name in OF_FORMAT  # a plug-in may have others
        },
        "notes": [asdict(note) for note in report.notes],
    }


def _clock_object(alignment: Alignment) -> dict[str, Any]:
    hosts = [
        {
            "host": host.host,
            "offset_ns": host.offset_ns,
            "drift_ppm": _plain(host.drift_ppm),
            "uncertainty_ns": host.uncertainty_ns,
            "jumps": list(host.jumps),
        }
        for host in alignment.hosts
    ]
    return {"method": alignment.method, "hosts": hosts}


def _efficiency_object(efficiency: Efficiency | None) -> dict[str, Any] | None:
    if efficiency is None:
        return None
    return {
        "definition": "POP parallel efficiency: useful computation / (ranks x job time)",
        "achieved": _plain(efficiency.achieved),
        "at_most": efficiency.at_most,
        "uninstrumented": _plain(efficiency.uninstrumented),
        "job_ns": efficiency.job_ns,
        "pop": {name: _plain(value) for name, value in efficiency.pop.items()},
        "waterfall": [
            {"cause": bar.cause, "share": _plain(bar.share)} for bar in efficiency.waterfall
        ],
        "devices": _devices_object(efficiency.devices),
    }


def _devices_object(shares: DeviceShares | None) -> dict[str, Any] | None:
    return None if shares is None else _plain(asdict(shares) | {"idle": shares.idle})


def _verdict_object(verdict: Verdict) -> dict[str, str | None]:
    return {
        "headline": verdict.headline,
        "why": verdict.why,
        "next": verdict.action,
        "scope": verdict.scope,
        "kind": verdict.kind,
    }


def _ledger_object(ledger: Ledger | None) -> dict[str, Any] | None:
    if ledger is None:
        return None
    return {
        "useful": _plain(ledger.useful),
        "unexplained": _plain(ledger.unexplained),
        "losses": [_plain(asdict(loss)) for loss in ledger.losses],
        "startup_ns": ledger.startup_ns,
        "awaited_rank": ledger.awaited_rank,
        "awaited_share": _plain(ledger.awaited_share),
    }


def _finding_object(finding: Finding) -> dict[str, Any]:
    return {name: _plain(value) for name, value in finding.to_dict().items()}


def _plain(value: Any) -> Any:
    """Turn a value into what JSON has: no NaN, no NumPy numbers, no tuples."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if hasattr(value, "item"):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
