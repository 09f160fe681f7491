"""OpenTelemetry's own messages parse the metrics of a report, which are those of Prometheus."""

from dataclasses import replace
from typing import Final

import pytest
from google.protobuf import json_format
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from support.runs.analysed import RUNS, report

from tracelens.model.result import Report
from tracelens.reports import to_otlp, to_prometheus

SLOW = RUNS["slow rank"][0]
NOW_NS: Final = 1_795_000_000_000_000_000
ENDS: Final = {"s": "_seconds", "1": "_ratio", "": ""}


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_otlp, "time_ns", lambda: NOW_NS)


def parse_points(found: Report) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return all points by Prometheus' name and labels; unknown fields are errors."""
    data = json_format.Parse(to_otlp.render(found), MetricsData())
    values = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        assert metric.description
        name = metric.name.replace(".", "_") + ENDS[metric.unit]
        for point in metric.gauge.data_points:
            assert point.time_unix_nano == NOW_NS
            labels = frozenset((entry.key, entry.value.string_value) for entry in point.attributes)
            assert (name, labels) not in values
            values[name, labels] = point.as_double
    return values


@pytest.mark.parametrize("run", RUNS)
def test_numbers_and_names_are_those_of_prometheus(run: str) -> None:
    run_report = report(RUNS[run][0])
    expected = {
        (f"tracelens_{gauge.name}", frozenset(gauge.labels)): gauge.value
        for gauge in to_prometheus.list_gauges(run_report)
    }
    assert parse_points(run_report) == expected


def test_what_was_not_measured_has_no_point() -> None:
    found = report(SLOW)
    first = replace(found.findings[0], saving=None, cost=None, slowdown=None)
    names = {name for name, _ in parse_points(replace(found, findings=(first,), efficiency=None))}
    assert not {"tracelens_finding_saving_ratio", "tracelens_efficiency_ratio"} & names


def test_names_of_strangers_do_nothing() -> None:
    slow_report = report(SLOW)
    finding = replace(slow_report.findings[0], hosts=('a"b\x1b[2J\nd',))
    text = to_otlp.render(replace(slow_report, findings=(finding,)))
    assert "\x1b" not in text
    assert "\n" not in text
    assert ("hosts", 'a"b\\x1b[2J\\x0ad') in {
        pair
        for _, labels in parse_points(replace(slow_report, findings=(finding,)))
        for pair in labels
    }
