"""The parts of a comparison that every format writes in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens.comparison.gates import chance, signed
from tracelens.comparison.series import EFFICIENCY, STEP_TIME, title
from tracelens.model import fmt
from tracelens.model.finding_kinds import KINDS
from tracelens.model.findings import rate_severity, subject
from tracelens.model.inert import clean

if TYPE_CHECKING:
    from tracelens.comparison.changes import Comparison, FindingChange, Metric

ONE_BASELINE: Final = (
    "With one baseline it is not known how much equal runs differ: intervals cover only the noise "
    "within runs. Give several baselines."
)
STATES: Final = {"new": "new", "gone": "gone", "both": "still there"}


class Row(NamedTuple):
    """A metric as tables show it; `mark` is a star where the change is clear."""

    title: str
    before: str
    after: str
    change: str
    interval: str
    probability: str
    mark: str


HEADINGS: Final = Row("per step", "baseline", "new", "change", "95 % CI", "p", "")


def verdict(comparison: Comparison) -> str:
    """Name the verdict: that of the median step, or WORSE if the new run has a critical fault."""
    step = comparison.metric(STEP_TIME)
    if step is not None and step.clear and step.change.delta > 0:
        return "SLOWER"
    if new_faults(comparison):
        return "WORSE"
    if step is None:
        return "NOT COMPARABLE"
    return "FASTER" if step.clear else "NO CLEAR CHANGE"


def new_faults(comparison: Comparison) -> list[FindingChange]:
    """Return the critical faults of the new run that no baseline has."""
    new = [change for change in comparison.findings if change.state == "new"]
    faults = [change for change in new if change.finding.category == "fault"]
    return [change for change in faults if rate_severity(change.finding) == "critical"]


def headline(comparison: Comparison) -> str:
    """State the change of the median step, and the critical faults that are new."""
    faults = [finding(change, len(comparison.baselines)) for change in new_faults(comparison)]
    step_sentence = _describe_step(comparison)
    return f"{step_sentence} New: {'; '.join(faults)}." if faults else step_sentence


def _describe_step(comparison: Comparison) -> str:
    """Write the change of the median step, in a sentence."""
    step = comparison.metric(STEP_TIME)
    if step is None:
        name = next(run.name for run in (*comparison.baselines, comparison.new) if not run.count)
        return f"{clean(name)} has no steps, so only findings are compared."
    baseline_time, new_time = fmt.duration(step.change.before), fmt.duration(step.change.after)
    interval = _write_interval(step)
    ci = f" (95 % CI {interval})" if interval else ""
    return f"median step {new_time}, {baseline_time} in the baseline: {signed(step.change)}{ci}."


def cautions(comparison: Comparison) -> list[str]:
    """List the limitations of the comparison, a sentence for each."""
    ranks = sorted({run.ranks for run in (*comparison.baselines, comparison.new)})
    shards = sorted({run.shards for run in (*comparison.baselines, comparison.new)})
    sentences = []
    for noun, counts in (("rank", ranks), ("PS shard", shards)):
        if len(counts) > 1:
            listed = fmt.series([str(count) for count in counts])
            sentences.append(f"The runs are not of one size: {listed} {noun}s.")
    if len(comparison.baselines) == 1:
        sentences.append(ONE_BASELINE)
    step = comparison.metric(STEP_TIME)
    if step and step.change.low is None:
        sentences.append("Too few steps to judge with one baseline: 30 are needed in each run.")
    return sentences


def scope(comparison: Comparison) -> tuple[str, str]:
    """Describe the baselines, and the new run."""
    names = fmt.series([clean(run.name) for run in comparison.baselines])
    step = comparison.metric(STEP_TIME)
    if step and step.change.between is not None and step.change.before:
        share = fmt.percent(step.change.between / step.change.before, 1)
        count = len(comparison.baselines)
        names = f"{count} runs whose steps differ by {share} (standard deviation): {names}"
    new = comparison.new
    steps, ranks = fmt.count(new.count, "step"), fmt.count(new.ranks, "rank")
    return f"{names}.", f"{steps}, {ranks}: {clean(new.name)}."


def row(metric: Metric) -> Row:
    """Return a metric as text."""
    change = metric.change
    write = (lambda v: fmt.percent(v, 1)) if metric.name == EFFICIENCY else fmt.duration
    name = title(metric.name)
    if metric.statistic == "mean" and "mean" not in name:
        name += ", mean"
    return Row(
        name,
        write(change.before),
        write(change.after),
        signed(change),
        _write_interval(metric),
        chance(metric.probability),
        "*" if metric.clear else "",
    )


def finding(change: FindingChange, baselines: int) -> str:
    """Write a finding and its change, in a line; `baselines` is the number of baseline runs."""
    subject_name = subject(change.finding)
    title = f"{KINDS[change.finding.kind].title}{subject_name and ', '}{subject_name}"
    if change.finding.phase:
        title += f", {fmt.phase(change.finding.phase)}"
    before, after = (
        fmt.percent(share) if share is not None else "?" for share in (change.before, change.after)
    )
    if change.state == "new":
        return f"{title}: {after} of the job" if change.after is not None else title
    in_some = f" (in {change.baselines} of {baselines} baselines)"
    note = "" if change.baselines == baselines else in_some
    if change.state == "gone":
        return f"{title}: {before} of the job before{note}" if change.before else title + note
    if change.before is None and change.after is None:
        return title + note
    return f"{title}: {after} of the job, {before} before{note}"


def _write_interval(metric: Metric) -> str:
    """Write the interval of a change, in percent, or as times if nothing was there before."""
    change = metric.change
    if change.low is None or change.high is None:
        return ""
    low, high = change.share(change.low), change.share(change.high)
    if low is None or high is None:
        return f"{_write_signed(change.low)} to {_write_signed(change.high)}"
    digits = 0 if max(abs(low), abs(high)) >= 0.995 else 1
    return f"{100 * low:+.{digits}f} to {100 * high:+.{digits}f} %"


def _write_signed(ns: float) -> str:
    return f"{'+' if np.sign(ns) >= 0 else '-'}{fmt.duration(abs(ns))}"
