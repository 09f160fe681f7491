"""Conditions on which a comparison fails, such as `step_time>+3%`, and whether they hold.

A condition on a metric fails where the metric changed by more than its limit *and* equal runs would
rarely differ so far, which is judged as the headline judges it. So noise alone fails nothing, and
neither does a change that is certain but small. One on findings fails where the new run has such a
finding and no baseline has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from tracelens.comparison.series import METRICS
from tracelens.errors import InvalidArgument, UnusableInput
from tracelens.model import fmt
from tracelens.model.finding_kinds import KINDS
from tracelens.stats import between_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.comparison.changes import Comparison
    from tracelens.stats.between_runs import Change

FAULTS: Final = "faults"
# ns: of each unit of a limit; of %, a share [definition]
_UNITS: Final = {"%": 0.01, "ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_CONDITION: Final = re.compile(
    r"\s*(?P<name>[a-z_]+(?::[a-z_]+)?)\s*"
    r"(?:(?P<way>[<>])\s*(?P<limit>[+-]?\d+(?:\.\d+)?)\s*(?P<unit>%|ns|us|µs|ms|s))?\s*"
)
EXPECTED: Final = (
    "expected METRIC>+N% (or METRIC<-N%, or N in ms), such as 'step_time>+3%', 'phase:data>+2ms' or "
    "'efficiency<-2%', or findings: 'faults', or a kind of docs/findings, also as KIND>2%"
)


@dataclass(frozen=True)
class Gate:
    """A condition: `text` as it was given, and what it says.

    `limit_share_or_ns` is signed: a share of the baseline if `is_relative`, else ns; of findings a
    share of the job, None if any new finding counts. `is_decrease`: it fails below the limit.
    """

    text: str
    metric_or_kind: str
    limit_share_or_ns: float | None = None
    is_relative: bool = True
    is_decrease: bool = False

    @property
    def is_on_findings(self) -> bool:
        """Whether it is about findings, not about a metric."""
        return self.metric_or_kind == FAULTS or self.metric_or_kind in KINDS


@dataclass(frozen=True)
class Outcome:
    """Whether a gate failed, and why or why not, in words; `p_value` as `judge` says."""

    gate: Gate
    state: Literal["failed", "passed"]
    reason: str
    p_value: float | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the condition holds."""
        return self.state == "failed"


def parse(text: str) -> Gate:
    """Read a condition, such as ``step_time>+3%``; a limit is a share (0.03), or a time in ns.

    Raises:
        InvalidArgument: the text is no condition, or its metric or kind of finding does not exist.
    """
    match = _CONDITION.fullmatch(text)
    if not match:
        raise InvalidArgument(f"--fail-if '{text}': {EXPECTED}.")
    name, direction, unit = match["name"], match["way"], match["unit"]
    name = {"phase:wait": "wait", "phase:transfer": "exposed"}.get(name, name)
    if name not in METRICS and name not in KINDS and name != FAULTS:
        raise InvalidArgument(
            f"--fail-if '{text}': there is no metric or kind of finding '{name}'; metrics are "
            f"{', '.join(METRICS)}; kinds of findings stand in docs/findings."
        )
    if direction is None:
        if name in METRICS:
            raise InvalidArgument(f"--fail-if '{text}': a metric needs a limit; {EXPECTED}.")
        return Gate(text, name)
    limit = float(match["limit"]) * _UNITS[unit]
    gate = Gate(text, name, limit, is_relative=unit == "%", is_decrease=direction == "<")
    if gate.is_on_findings and (gate.is_decrease or not gate.is_relative):
        raise InvalidArgument(
            f"--fail-if '{text}': findings are limited by the share of the job that fixing them would "
            f"save, such as '{name}>2%'."
        )
    if limit and gate.is_decrease != (limit < 0):
        raise InvalidArgument(
            f"--fail-if '{text}': '>' goes with an increase and '<' with a decrease, "
            f"such as '{name}>+3%' or '{name}<-3%'."
        )
    if name == "efficiency" and not gate.is_relative:
        raise InvalidArgument(f"--fail-if '{text}': efficiency has no unit; its limit is in %.")
    return gate


def judge(gates: Sequence[Gate], comparison: Comparison) -> list[Outcome]:
    """Judge gates, in their order.

    Probabilities are those of equal runs to differ so far in either direction, as in the headline,
    adjusted for how many gates are about metrics (Holm 1979).

    Raises:
        UnusableInput: a gate cannot be judged: no steps, or too few of them with one baseline.
    """
    metric_gates = [gate for gate in gates if not gate.is_on_findings]
    changes = [_find_change(gate, comparison) for gate in metric_gates]
    probabilities = [change.p_of_difference if change else None for change in changes]
    adjusted_probabilities = between_runs.adjust_for_count(probabilities)
    outcomes = {
        gate: _judge_metric(gate, change, probability)
        for gate, change, probability in zip(
            metric_gates, changes, adjusted_probabilities, strict=True
        )
    }
    return [outcomes.get(gate) or _judge_findings(gate, comparison) for gate in gates]


def _find_change(gate: Gate, comparison: Comparison) -> Change | None:
    """Return a metric's change; None where no run has any of it."""
    # It cannot be judged where the probability that equal runs differ so far is not known.
    runs_without_steps = [
        run for run in (*comparison.baseline_runs, comparison.new_run) if not run.step_count
    ]
    if runs_without_steps:
        raise UnusableInput(
            f"'{runs_without_steps[0].name}' has no steps, so '{gate.text}' cannot be judged: "
            "mark steps with tl.step(i)."
        )
    metric = comparison.find_metric(gate.metric_or_kind)
    if metric and metric.change.p_of_increase is None:
        raise UnusableInput(
            f"'{gate.text}' cannot be judged with one baseline and so few steps "
            f"({min(comparison.baseline_runs[0].step_count, comparison.new_run.step_count)}): "
            "give several baselines, or 30 steps."
        )
    return metric.change if metric else None


def _judge_metric(gate: Gate, change: Change | None, probability: float | None) -> Outcome:
    """Judge a condition on a metric by its change, and by how probable it is in equal runs."""
    # The limit is a share of what was before if it is relative, else in the metric's unit.
    if change is None:
        return Outcome(gate, "passed", "in no run for a thousandth of a step")
    limit = gate.limit_share_or_ns or 0.0
    difference = change.to_share(change.difference) if gate.is_relative else change.difference
    if difference is None:  # nothing before: any share is exceeded
        difference = float("inf") if change.difference > 0 else 0.0
    is_exceeded = difference < limit if gate.is_decrease else difference > limit
    has_failed = is_exceeded and between_runs.is_rare(probability)
    reason = (
        f"{write_signed_change(change, relative=gate.is_relative)}, {_write_p_value(probability)}"
    )
    if is_exceeded and not has_failed:
        reason += ": equal runs may differ so far"
    return Outcome(gate, "failed" if has_failed else "passed", reason, probability)


def _judge_findings(gate: Gate, comparison: Comparison) -> Outcome:
    """Judge a condition on findings: by new ones, or by what all of them would save of the job."""
    changes = [
        change
        for change in comparison.finding_changes
        if gate.metric_or_kind == change.finding.kind
        or (gate.metric_or_kind == FAULTS and change.finding.category == "fault")
    ]
    if gate.limit_share_or_ns is None:
        new_count = sum(change.state == "new" for change in changes)
        reason = fmt.count(new_count, "new finding") if new_count else "no new finding"
        return Outcome(gate, "failed" if new_count else "passed", reason)
    saving = sum(change.saving_share_after or 0.0 for change in changes)
    saving_before = sum(change.saving_share_before or 0.0 for change in changes)
    reason = f"{fmt.percent(saving)} of the job, {fmt.percent(saving_before)} in the baselines"
    return Outcome(
        gate, "failed" if saving - saving_before > gate.limit_share_or_ns else "passed", reason
    )


def write_signed_change(change: Change, *, relative: bool = True) -> str:
    """Write a change with its sign: `+4.6 %`, or `+2.30 ms`."""
    share = change.to_share(change.difference)
    if relative and share is not None:
        return f"{'+' if share >= 0 else '-'}{fmt.percent(abs(share), digits=1)}"
    return f"{'+' if change.difference >= 0 else '-'}{fmt.duration(abs(change.difference))}"


def _write_p_value(probability: float | None) -> str:
    shown = write_probability(probability)
    return f"p {shown}" if shown.startswith("<") else f"p = {shown}"


def write_probability(probability: float | None) -> str:
    """Write a probability: `0.03`, `< 0.001`; a dash where it is not known."""
    if probability is None:
        return "-"
    if probability < 0.001:
        return "< 0.001"
    return f"{probability:.3f}" if probability < 0.1 else f"{probability:.2f}"
