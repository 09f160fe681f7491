"""What is written for Prometheus is read by its own client, and holds the report's numbers."""

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.runs.analysed import RUNS, report

from tracelens.model.result import Report
from tracelens.reports import to_prometheus

SLOW = RUNS["slow rank"][0]

Labels = frozenset[tuple[str, str]]


def parse_samples(found: Report) -> dict[tuple[str, Labels], float]:
    """Parse all samples by name and labels; each occurs once."""
    families = list(text_string_to_metric_families(to_prometheus.render(found)))
    assert all(family.type == "gauge" and family.documentation for family in families)
    samples = [sample for family in families for sample in family.samples]
    values = {(one.name, frozenset(one.labels.items())): one.value for one in samples}
    assert len(values) == len(samples)
    return values


@pytest.mark.parametrize("run", RUNS)
def test_the_client_reads_every_run(run: str) -> None:
    run_report = report(RUNS[run][0])
    values = parse_samples(run_report)
    assert len(values) == len(list(to_prometheus.list_gauges(run_report)))
    states = {dict(k)["state"]: v for (n, k), v in values.items() if n == "tracelens_verdict"}
    assert [state for state, value in states.items() if value] == [run_report.verdict.state]
    assert values["tracelens_ranks", frozenset()] == run_report.summary.ranks_seen


def test_shares_sum_to_one() -> None:
    values = parse_samples(report(SLOW))
    lost = [value for (name, _), value in values.items() if name == "tracelens_lost_ratio"]
    assert values["tracelens_efficiency_ratio", frozenset()] + sum(lost) == pytest.approx(1)


def test_a_finding_is_named_by_its_labels() -> None:
    finding = report(SLOW).findings[0]
    ((labels, value),) = [
        (dict(labels), value)
        for (name, labels), value in parse_samples(report(SLOW)).items()
        if name == "tracelens_finding_saving_ratio" and ("place", "0") in labels
    ]
    assert value == finding.saving
    assert labels["ranks"] == "2"
    assert labels["phase"] == "forward"


def test_labels_are_escaped() -> None:
    """Quotes, backslashes and line ends of a recorded name come back as they were shown."""
    found = report(SLOW)
    first = replace(found.findings[0], hosts=('a"b\\c\nd',))
    for _, labels in parse_samples(replace(found, findings=(first,))):
        if ("place", "0") in labels:
            assert dict(labels)["hosts"] == 'a"b\\c\\x0ad'


def test_what_was_not_measured_has_no_line() -> None:
    found = report(SLOW)
    first = replace(found.findings[0], saving=None, cost=None, slowdown=None)
    names = {name for name, _ in parse_samples(replace(found, findings=(first,), efficiency=None))}
    assert not {"tracelens_finding_saving_ratio", "tracelens_efficiency_ratio"} & names
