"""The report as OpenTelemetry's metrics: a line of OTLP/JSON, as collectors read and exporters send it.

The gauges are those of the Prometheus text. Their unit is a field of its own and not in their name: a
collector that writes them for Prometheus puts it back. Their time is that of writing, as a report has
no date; a value that was not measured has no point. Sentences are metadata of the verdict, which tells
series apart nowhere.
Source: OTLP 1.x, "JSON Protobuf Encoding"; OpenTelemetry's "Prometheus and OpenMetrics Compatibility".
"""

from __future__ import annotations

import json
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from tracelens.model.inert import clean
from tracelens.reports.messages import write_note
from tracelens.reports.to_prometheus import HELP, list_gauges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.model.result import Report

_UNITS: Final = {"_seconds": "s", "_ratio": "1"}  # by the end of a gauge's name


def render(report: Report) -> str:
    """Write the report; names begin with ``tracelens.``."""
    now_text = str(time_ns())
    points_by_name: dict[str, list[dict[str, Any]]] = {}
    for gauge in list_gauges(report):
        point = {"timeUnixNano": now_text, "asDouble": float(gauge.value)}
        if gauge.labels:
            point["attributes"] = _make_attributes(dict(gauge.labels))
        points_by_name.setdefault(gauge.name, []).append(point)
    metrics = [_make_metric(name, points_by_name[name]) for name in HELP if name in points_by_name]
    metrics[0]["metadata"] = _make_attributes({"headline": report.verdict.headline})
    metrics[0]["metadata"] += _make_attributes(
        {f"finding {index}": finding.sentence for index, finding in enumerate(report.findings)}
        | {f"note {index}": write_note(note) for index, note in enumerate(report.notes)}
    )
    resource = {"attributes": _make_attributes({"service.name": "tracelens"})}
    scope_metrics = {"scope": {"name": "tracelens"}, "metrics": metrics}
    return json.dumps(
        {"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope_metrics]}]}
    )


def _make_metric(name: str, points: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a gauge as OTLP has it; its unit is a field, and not the end of its name."""
    unit_suffix = next((suffix for suffix in _UNITS if name.endswith(suffix)), "")
    return {
        "name": f"tracelens.{name.removesuffix(unit_suffix)}",
        "description": HELP[name],
        "unit": _UNITS.get(unit_suffix, ""),
        "gauge": {"dataPoints": points},
    }


def _make_attributes(texts: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": name, "value": {"stringValue": clean(text)}} for name, text in texts.items()]
