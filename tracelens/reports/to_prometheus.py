"""The report as Prometheus' text format, for a node exporter's folder of text files or a push gateway.

Gauges are named after what the JSON report calls them (docs/report.md). A value that was not measured
has no line; sentences are comments.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens.model.inert import clean
from tracelens.model.verdict import STATES
from tracelens.reports.messages import write_note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.model.findings import Finding
    from tracelens.model.result import Report

HELP: Final = {
    "verdict": "1 for the state that the verdict is in",
    "ranks": "Ranks seen",
    "ranks_expected": "Ranks that the run has",
    "steps": "Steps seen",
    "spans": "Spans recorded",
    "events_dropped": "Events dropped while recording, by reason",
    "job_seconds": "Length of the job",
    "clock_uncertainty_seconds": "How sure times of different hosts compare, at worst",
    "efficiency_ratio": "POP parallel efficiency: useful computation / (ranks x job time)",
    "uninstrumented_ratio": "Share of ranks x job time that no span covers",
    "lost_ratio": "Share of ranks x job time by cause; with the efficiency it sums to 1",
    "pop_ratio": "Factors of the efficiency",
    "unexplained_ratio": "Share of ranks x job time that no finding and no cause explains",
    "findings": "Findings by kind and category",
    "finding_saving_ratio": "Share of job time that fixing the finding would save",
    "finding_cost_ratio": "Waiting of others / (ranks x job time)",
    "finding_slowdown_ratio": "Time beside that of peers",
}


class Gauge(NamedTuple):
    """A number with its name, without the prefix, and its labels."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


def render(report: Report) -> str:
    """Write the report; names begin with ``tracelens_``."""
    lines = [f"# {clean(report.verdict.headline)}"]
    lines += [f"# {clean(finding.sentence)}" for finding in report.findings]
    lines += [f"# {write_note(note)}" for note in report.notes]
    all_gauges = list(list_gauges(report))
    for name, description in HELP.items():
        gauges = [gauge for gauge in all_gauges if gauge.name == name]
        if gauges:
            lines += [f"# HELP tracelens_{name} {description}.", f"# TYPE tracelens_{name} gauge"]
            lines += [
                f"tracelens_{name}{_write_labels(gauge)} {float(gauge.value)!r}" for gauge in gauges
            ]
    return "\n".join(lines) + "\n"


def list_gauges(report: Report) -> Iterator[Gauge]:
    """Yield the numbers of a report; shares are between 0 and 1, times in seconds."""
    for state in STATES:
        yield Gauge("verdict", float(report.verdict.state == state), (("state", state),))
    summary = report.summary
    yield Gauge("ranks", summary.ranks_seen)
    yield Gauge("ranks_expected", summary.ranks_expected)
    yield Gauge("steps", summary.steps)
    yield Gauge("spans", summary.spans)
    for reason, event_count in summary.dropped.items():
        yield Gauge("events_dropped", event_count, (("reason", reason),))
    yield Gauge("clock_uncertainty_seconds", report.clock.uncertainty_ns / 1e9)
    yield from _efficiency_gauges(report)
    if report.ledger:
        yield Gauge("unexplained_ratio", report.ledger.unexplained)
    yield from _finding_gauges(report.findings)


def _efficiency_gauges(report: Report) -> Iterator[Gauge]:
    """Yield the efficiency, the shares lost by cause, and the factors of the efficiency (`pop`)."""
    efficiency = report.efficiency
    if efficiency is None:
        return
    yield Gauge("job_seconds", efficiency.job_ns / 1e9)
    yield Gauge("efficiency_ratio", efficiency.achieved)
    yield Gauge("uninstrumented_ratio", efficiency.uninstrumented)
    for bar in efficiency.waterfall:
        yield Gauge("lost_ratio", bar.share, (("cause", bar.cause),))
    for factor, value in efficiency.pop.items():
        yield Gauge("pop_ratio", value, (("factor", factor),))


def _finding_gauges(findings: tuple[Finding, ...]) -> Iterator[Gauge]:
    """Yield the number of findings by kind and category, and the shares of each finding."""
    counts = Counter((finding.kind, finding.category) for finding in findings)
    for (kind, category), count in counts.items():
        yield Gauge("findings", count, (("kind", kind), ("category", category)))
    for index, finding in enumerate(findings):
        labels = (("place", str(index)), ("kind", finding.kind), *_subject_labels(finding))
        for name in ("saving", "cost", "slowdown"):
            value = getattr(finding, name)
            if value is not None:
                yield Gauge(f"finding_{name}_ratio", value, labels)


def _subject_labels(finding: Finding) -> Iterator[tuple[str, str]]:
    subjects = {"ranks": finding.ranks, "hosts": finding.hosts, "shards": finding.shards}
    for name, values in subjects.items():
        if values:
            yield name, ",".join(map(str, values))
    if finding.phase:
        yield "phase", finding.phase


def _write_labels(gauge: Gauge) -> str:
    if not gauge.labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in gauge.labels) + "}"


def _escape(value: str) -> str:
    return clean(value).replace("\\", "\\\\").replace('"', '\\"')
