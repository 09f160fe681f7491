"""The parts of a comparison that every format writes in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens.comparison.gates import write_probability, write_signed_change
from tracelens.comparison.series import EFFICIENCY, STEP_TIME, name_metric
from tracelens.model import fmt
from tracelens.model.finding_kinds import KINDS
from tracelens.model.findings import name_subject, rate_severity
from tracelens.model.inert import clean

if TYPE_CHECKING:
    from tracelens.comparison.changes import Comparison, FindingChange, Metric

ONE_BASELINE: Final = (
    "With one baseline it is not known how much equal runs differ: intervals cover only the noise "
    "within runs. Give several baselines."
)
STATES: Final = {"new": "new", "gone": "gone", "both": "still there"}


class MetricRow(NamedTuple):
    """A metric as tables show it; `mark` is a star where the change is clear."""

    title: str
    before: str
    after: str
    change: str
    interval: str
    probability: str
    mark: str


HEADINGS: Final = MetricRow("per step", "baseline", "new", "change", "95 % CI", "p", mark="")


def name_verdict(comparison: Comparison) -> str:
    """Name the verdict: that of the median step, or WORSE if the new run has a critical fault."""
    # A change is clear if equal runs would rarely differ so far.
    step = comparison.find_metric(STEP_TIME)
    if step is not None and step.is_clear and step.change.difference > 0:
        return "SLOWER"
    if find_new_faults(comparison):
        return "WORSE"
    if step is None:
        return "NOT COMPARABLE"
    return "FASTER" if step.is_clear else "NO CLEAR CHANGE"


def find_new_faults(comparison: Comparison) -> list[FindingChange]:
    """Return the critical faults of the new run that no baseline has."""
    new_changes = [change for change in comparison.finding_changes if change.state == "new"]
    faults = [change for change in new_changes if change.finding.category == "fault"]
    return [change for change in faults if rate_severity(change.finding) == "critical"]


def write_headline(comparison: Comparison) -> str:
    """State the change of the median step, and the critical faults that are new."""
    changes, baseline_count = find_new_faults(comparison), len(comparison.baseline_runs)
    faults = [describe_finding(change, baseline_count) for change in changes]
    step_sentence = _describe_step(comparison)
    return f"{step_sentence} New: {'; '.join(faults)}." if faults else step_sentence


def _describe_step(comparison: Comparison) -> str:
    """Write the change of the median step, in a sentence."""
    step = comparison.find_metric(STEP_TIME)
    if step is None:
        name = next(
            run.name
            for run in (*comparison.baseline_runs, comparison.new_run)
            if not run.step_count
        )
        return f"{clean(name)} has no steps, so only findings are compared."
    baseline_time, new_time = (
        fmt.duration(step.change.value_before),
        fmt.duration(step.change.value_after),
    )
    interval = _write_interval(step)
    ci = f" (95 % CI {interval})" if interval else ""
    change_text = f"{write_signed_change(step.change)}{ci}"
    return f"median step {new_time}, {baseline_time} in the baseline: {change_text}."


def list_cautions(comparison: Comparison) -> list[str]:
    """List the limitations of the comparison, a sentence for each."""
    runs = (*comparison.baseline_runs, comparison.new_run)
    rank_counts = sorted({run.rank_count for run in runs})
    shard_counts = sorted({run.shard_count for run in runs})
    sentences = []
    for noun, counts in (("rank", rank_counts), ("PS shard", shard_counts)):
        if len(counts) > 1:
            counts_text = fmt.join_words([str(count) for count in counts])
            sentences.append(f"The runs are not of one size: {counts_text} {noun}s.")
    if len(comparison.baseline_runs) == 1:
        sentences.append(ONE_BASELINE)
    step = comparison.find_metric(STEP_TIME)
    if step and step.change.low_difference is None:
        sentences.append("Too few steps to judge with one baseline: 30 are needed in each run.")
    return sentences


def describe_runs(comparison: Comparison) -> tuple[str, str]:
    """Describe the baselines, and the new run."""
    # The standard deviation of several baselines is written as a share of their mean.
    baseline_text = fmt.join_words([clean(run.name) for run in comparison.baseline_runs])
    step = comparison.find_metric(STEP_TIME)
    if step and step.change.deviation_of_baselines is not None and step.change.value_before:
        deviation_text = fmt.percent(
            step.change.deviation_of_baselines / step.change.value_before, digits=1
        )
        baseline_text = (
            f"{len(comparison.baseline_runs)} runs whose steps differ by {deviation_text} (standard "
            f"deviation): {baseline_text}"
        )
    new = comparison.new_run
    steps_text, ranks_text = fmt.count(new.step_count, "step"), fmt.count(new.rank_count, "rank")
    return f"{baseline_text}.", f"{steps_text}, {ranks_text}: {clean(new.name)}."


def write_row(metric: Metric) -> MetricRow:
    """Return a metric as the texts of a row; efficiency is a share, all others are times in ns."""
    change = metric.change
    write_value = (
        (lambda share: fmt.percent(share, digits=1)) if metric.name == EFFICIENCY else fmt.duration
    )
    name = name_metric(metric.name)
    if metric.statistic == "mean" and "mean" not in name:
        name += ", mean"
    return MetricRow(
        name,
        write_value(change.value_before),
        write_value(change.value_after),
        write_signed_change(change),
        _write_interval(metric),
        write_probability(metric.p_value),
        "*" if metric.is_clear else "",
    )


def describe_finding(change: FindingChange, baseline_count: int) -> str:
    """Write a finding and its change, in a line; `baseline_count` is that of all baselines."""
    subject_name = name_subject(change.finding)
    title = f"{KINDS[change.finding.kind].title}{subject_name and ', '}{subject_name}"
    if change.finding.phase:
        title += f", {fmt.phase(change.finding.phase)}"
    text_before, text_after = (
        fmt.percent(share) if share is not None else "?"
        for share in (change.saving_share_before, change.saving_share_after)
    )
    if change.state == "new":
        return (
            f"{title}: {text_after} of the job" if change.saving_share_after is not None else title
        )
    note = ""
    if change.baseline_count != baseline_count:
        note = f" (in {change.baseline_count} of {baseline_count} baselines)"
    if change.state == "gone":
        return (
            f"{title}: {text_before} of the job before{note}"
            if change.saving_share_before
            else title + note
        )
    if change.saving_share_before is None and change.saving_share_after is None:
        return title + note
    return f"{title}: {text_after} of the job, {text_before} before{note}"


def _write_interval(metric: Metric) -> str:
    """Write the interval of a change, in percent, or as times if nothing was there before."""
    # The ends of the interval are differences in the metric's unit; empty without an interval.
    low, high = metric.change.low_difference, metric.change.high_difference
    if low is None or high is None:
        return ""
    low_share, high_share = metric.change.to_share(low), metric.change.to_share(high)
    if low_share is None or high_share is None:
        return f"{_write_signed_duration(low)} to {_write_signed_duration(high)}"
    digits = 0 if max(abs(low_share), abs(high_share)) >= 0.995 else 1
    return f"{100 * low_share:+.{digits}f} to {100 * high_share:+.{digits}f} %"


def _write_signed_duration(ns: float) -> str:
    return f"{'+' if np.sign(ns) >= 0 else '-'}{fmt.duration(abs(ns))}"
